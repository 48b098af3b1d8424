"""Waiting for a quiet machine: with a clock and a load of the test's own."""

from __future__ import annotations

import pytest

from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.quiet import wait_until_quiet


def waited(loads, limit_s=60.0):
    """Seconds that were waited where other programs keep `loads` cores busy, look by look, and what
    was told.
    """
    now, told, loads = [0.0], [], iter(loads)

    def sleep(seconds):
        now[0] += seconds

    wait_until_quiet(
        limit_s, told.append, busy_cores=lambda: next(loads), clock=lambda: now[0], sleep=sleep
    )
    return now[0], told


def test_three_quiet_looks_in_a_row_are_enough():
    assert waited([0.0, 0.1, 0.0]) == (9.0, [0.0, 0.1, 0.0])


def test_a_pause_of_a_busy_program_is_not_quiet():
    assert waited([0.1, 0.0, 1.5, 0.0, 0.0, 0.0])[0] == 18.0


def test_after_the_limit_nothing_is_measured():
    with pytest.raises(MachineError, match="still busy after 1 minutes"):
        waited([2.0] * 100)
