"""The device that does real work: commands and notes of its process, and what happens when it ends.
No time is judged.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.benchmark.bench import Bench, disturbance, stretches
from bottleneck_lab.measure.kinds.benchmark.device import COMMAND, REPORT, WORK, read

two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="host and device need a core each"
)


@pytest.fixture
def bench():
    with Bench.start() as started:
        yield started


@two_cores
def test_work_is_noted_once_and_in_its_order(bench):
    bench.work(1e-3)
    bench.work(2e-3)
    report = bench.report()
    assert report[:, 0].tolist() == [1e-3, 2e-3]
    assert (report[:, 2] - report[:, 1] >= report[:, 0]).all()
    assert report[1, 1] >= report[0, 1] + report[0, 0]
    assert bench.done_s >= report[1, 2]
    assert len(bench.report()) == 0


@two_cores
def test_host_and_device_have_cores_of_their_own_until_the_end():
    before = os.sched_getaffinity(0)
    with Bench.start() as bench:
        assert os.sched_getaffinity(bench.process.pid) == {max(before)}
        assert os.sched_getaffinity(0) == before - {max(before)}
    assert os.sched_getaffinity(0) == before


def test_one_core_is_too_few(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(MachineError, match="one core each"):
        Bench.start()


@two_cores
def test_a_device_that_ends_is_the_verifiers_fault(bench):
    bench.process.kill()
    bench.process.wait()
    with pytest.raises(VerifierFault, match="device process ended"):
        bench.report()


def test_commands_that_come_in_pieces_are_put_together():
    theirs, ours = os.pipe()
    os.set_blocking(theirs, False)
    sent = COMMAND.pack(WORK, 7.0) + COMMAND.pack(REPORT, 0.0)
    commands = read(theirs)
    os.write(ours, sent[:20])
    assert next(commands) == (WORK, 7.0, False)
    os.write(ours, sent[20:])
    os.close(ours)
    assert list(commands) == [(REPORT, 0.0, False)]
    os.close(theirs)


def test_a_stretch_is_relative_to_the_time_a_piece_should_take():
    assert stretches(np.array([[1.0, 1.0, 2.0], [4.0, 5.0, 7.0]])) == [1.0, 0.5]


@pytest.mark.parametrize("took_s", [1.5, 0.5])
@pytest.mark.parametrize(
    ("off", "seen"),
    [(10, ""), (11, "10% of the work was at least 50% slower or faster than it should be")],
)
def test_a_machine_kept_still_where_few_pieces_missed_their_time(off, seen, took_s):
    report = np.array([[1.0, 0.0, took_s if piece < off else 1.01] for piece in range(100)])
    assert disturbance(report, 0.02, 0.1) == seen
