"""A check waits for a quiet machine, but not for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bottleneck_lab.cohort.running import disturbance
from bottleneck_lab.cohort.running.disturbance import is_disturbed, wait_until_undisturbed


def waited_s(limit_s: float, quiet_from_s: float) -> float:
    """Seconds that are waited on a machine that is disturbed until `quiet_from_s`."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    wait_until_undisturbed(
        limit_s, lambda: clock[0] < quiet_from_s, clock=lambda: clock[0], sleep=sleep
    )
    return clock[0]


@pytest.mark.parametrize(
    ("limit_s", "quiet_from_s", "waited"),
    [(20.0, 0.0, 0.0), (20.0, 3.0, 3.0), (20.0, 1e9, 20.0), (0.0, 1e9, 0.0)],
)
def test_a_check_waits_while_it_would_be_disturbed(limit_s, quiet_from_s, waited):
    assert waited_s(limit_s, quiet_from_s) == waited


@pytest.mark.parametrize(
    ("pressure", "celsius", "disturbed"),
    [({}, 40, False), ({"cpu": 0.1}, None, False), ({"cpu": 0.3}, 40, True), ({}, 80, True)],
)
def test_waiting_programs_and_hot_gpus_disturb_a_check(monkeypatch, pressure, celsius, disturbed):
    nvml = SimpleNamespace(nvmlDeviceGetCount=lambda: 1, NVMLError=OSError)
    monkeypatch.setattr(disturbance, "read_host", lambda: SimpleNamespace(pressure=pressure))
    monkeypatch.setattr(disturbance, "open_nvml", lambda: (nvml, ""))
    gpu = SimpleNamespace(temperature_c=celsius)
    monkeypatch.setattr(disturbance, "read_gpu", lambda _nvml, _index: gpu)
    assert is_disturbed() is disturbed
