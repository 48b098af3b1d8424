"""Waiting for a quiet machine: with a clock and a load of the test's own."""

from __future__ import annotations

import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.errors import BusyMachineError, ExitCode
from bottleneck_lab.grading.criteria import BUSY_CORES
from bottleneck_lab.measure import quiet
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.quiet import wait_until_quiet


def waited(loads, limit_s=60.0):
    """Seconds that were waited where other programs keep `loads` cores busy, look by look, and what
    was told.
    """
    now, told, loads = [0.0], [], iter(loads)

    def sleep(seconds):
        now[0] += seconds

    wait_until_quiet(
        limit_s, told.append, look=lambda: next(loads), clock=lambda: now[0], sleep=sleep
    )
    return now[0], told


def test_three_quiet_looks_in_a_row_are_enough():
    assert waited([0.0, 0.1, 0.0]) == (9.0, [0.0, 0.1, 0.0])


def test_a_pause_of_a_busy_program_is_not_quiet():
    assert waited([0.1, 0.0, 1.5, 0.0, 0.0, 0.0])[0] == 18.0


def test_a_check_that_leaves_cores_free_shares_the_machine(monkeypatch):
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 16)
    assert quiet.busy_cores_allowed(needed=3) == 12
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
    assert quiet.busy_cores_allowed(needed=2) == BUSY_CORES


def test_each_lab_needs_as_many_cores_as_it_is_measured_on():
    def cores(slug, device):
        lab = load_labs()[slug]
        return kind_of(lab).cores(lab, device)

    assert cores("stuttering-tagger", "virtual") == 0
    assert cores("ddp-scaling", "virtual") == 0
    assert cores("perf-gate", "virtual") == 0
    assert cores("perf-gate", "cpu") == 1
    assert cores("roofline", "cpu") == 1
    assert cores("resnet-latency", "cpu") == 2
    assert cores("idle-gpu", "virtual") == 3
    assert cores("past-the-plateau", "virtual") == 3


def test_after_the_limit_nothing_is_measured():
    match = r"After 1 minutes .* 2\.0 cores busy, where 0\.25"
    with pytest.raises(BusyMachineError, match=match) as raised:
        waited([2.0] * 100)
    assert raised.value.exit_code == ExitCode.INCONCLUSIVE, "as of a check that could not decide"
