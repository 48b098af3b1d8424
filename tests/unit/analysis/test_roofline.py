"""Kernels under the roofline, by construction."""

from dataclasses import replace

import pytest

from bottleneck_lab.analysis.counters.roofline import (
    MACHINES,
    Machine,
    find_machine,
    find_placements,
    place,
)
from bottleneck_lab.trace.counters import KernelCounters

from ..report import made_up_capture

MACHINE = Machine("made up", {"fp32": 10e12}, 1e12)


@pytest.mark.parametrize(
    ("flop", "moved", "seconds", "bound", "share"),
    [
        (1e9, 1e9, 1.25e-3, "memory-bound", 0.8),
        (100e9, 1e9, 20e-3, "compute-bound", 0.5),
        (1e9, 1e9, 100e-3, "latency-bound", 0.01),
        (0, 1e9, 2e-3, "memory-bound", 0.5),
    ],
)
def test_a_kernel_is_placed(flop, moved, seconds, bound, share):
    found = place("k", flop, moved, seconds, MACHINE)
    assert (found.bound, found.intensity) == (bound, flop / moved)
    assert found.ceiling_share == pytest.approx(share)


def test_nonsense_has_no_place():
    with pytest.raises(ValueError, match="positive"):
        place("k", 1, 0, 1, MACHINE)


def test_machines_are_told_by_name():
    balance = {"NVIDIA A100-SXM4-80GB": 153, "NVIDIA H100 80GB HBM3": 296, "NVIDIA H200": 206}
    assert {name: find_machine(name).balance("fp16") for name in balance} == pytest.approx(
        balance, abs=1
    )
    assert find_machine("NVIDIA H200").name == "H200"
    assert find_machine("Something else") is None
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)


def test_counters_are_placed():
    metrics = {
        "gpu__time_duration.sum": 1.25e6,
        "sm__sass_thread_inst_executed_op_ffma_pred_on.sum": 5e8,
        "dram__bytes_read.sum": 6e8,
        "dram__bytes_write.sum": 4e8,
    }
    kernel = KernelCounters("k", 0, "9.0", (1,), (1,), metrics)
    silent = KernelCounters("unmeasured", 0, "9.0", (1,), (1,), {})
    (found,) = find_placements(replace(made_up_capture.empty(), counters=(kernel, silent)), MACHINE)
    assert (found.intensity, found.bound) == (1.0, "memory-bound")
