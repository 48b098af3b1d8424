"""Devices whose ceilings are known from data sheets."""

import pytest

from bottleneck_lab.analysis.counters.roofline import MACHINES, find_machine


def test_machines_are_told_by_name():
    balance = {"NVIDIA A100-SXM4-80GB": 153, "NVIDIA H100 80GB HBM3": 296, "NVIDIA H200": 206}
    assert {name: find_machine(name).balance("fp16") for name in balance} == pytest.approx(
        balance, abs=1
    )
    assert find_machine("NVIDIA H200").name == "H200"
    assert find_machine("Something else") is None
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)
