"""Where the seconds of a check go: nested phases, threads, a worker's word, and the verdict."""

from __future__ import annotations

from threading import Thread
from types import ModuleType

import pytest

from bottleneck_lab.grading.attest import canonical_bytes
from bottleneck_lab.measure.clock import PHASES, PhaseClock, TimedModule
from bottleneck_lab.measure.verifier import check_lab


class Time:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time():
    return Time()


def test_a_second_belongs_to_the_innermost_phase(time):
    clock = PhaseClock(time)
    time.now += 1
    with clock.phase("workers"):
        time.now += 2
        with clock.phase("imports"):
            time.now += 4
        time.now += 8
    time.now += 16
    seconds = clock.seconds()
    assert (seconds["imports"], seconds["workers"], seconds["rest"]) == (4, 10, 17)
    assert sum(seconds.values()) == clock.total_s() == 31
    assert list(seconds) == list(PHASES)


def test_a_phase_that_raises_ends(time):
    clock = PhaseClock(time)

    def fail():
        with clock.phase("learner"):
            time.now += 1
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the one raised above
        fail()
    time.now += 1
    assert clock.seconds()["learner"] == 1


def test_a_thread_beside_the_check_counts_nothing(time):
    clock = PhaseClock(time)

    def beside():
        with clock.phase("judging"):
            time.now += 5

    with clock.phase("learner"):
        thread = Thread(target=beside)
        thread.start()
        thread.join()
    assert clock.seconds()["learner"] == 5
    assert clock.seconds()["judging"] == 0


@pytest.mark.parametrize(
    ("claimed", "moved"), [(2.0, 2.0), (99.0, 3.0), (-1.0, 0.0), (float("nan"), 0.0)]
)
def test_a_worker_s_word_moves_no_more_seconds_than_there_are(time, claimed, moved):
    clock = PhaseClock(time)
    with clock.phase("workers"):
        time.now += 3
    clock.move(claimed, "workers", "imports")
    assert clock.seconds()["imports"] == moved
    assert clock.seconds()["workers"] == 3 - moved


def test_a_judge_s_functions_count_as_judging(time):
    module = ModuleType("judge")

    def judge(answer, *, within):
        time.now += 2
        return answer < within

    module.judge, module.LIMIT, module.Case = judge, 7, Time
    clock = PhaseClock(time)
    timed = TimedModule(module, clock)
    assert timed.judge(3, within=timed.LIMIT)
    assert clock.seconds()["judging"] == 2
    assert isinstance(timed.Case(), timed.Case), "a class stays a class"
    assert not hasattr(timed, "adversarial")
    assert getattr(timed, "overall", None) is None


def test_a_verdict_says_where_its_seconds_went(lab, workspace, tmp_path):
    verdict = check_lab(lab, workspace, "cpu", data=tmp_path)
    assert list(verdict.seconds) == list(PHASES)
    assert sum(verdict.seconds.values()) == pytest.approx(verdict.duration_s, abs=0.1)
    assert all(verdict.seconds[phase] > 0 for phase in ("imports", "workers", "learner", "judging"))
    assert b'"seconds"' in canonical_bytes(verdict)
