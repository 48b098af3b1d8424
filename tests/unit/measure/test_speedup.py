"""What the protocol's own time may decide: nothing."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from bottleneck_lab.grading.sequential import SequentialTest, State
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.speedup import Case, _refuse_more_threads, _refuse_overhead, _spared

TESTS = {"speedup": SequentialTest(target=3.0)}


def case(ratio: float, overhead_s: float, pairs: int = 12) -> Case:
    """Pairs whose true ratio is `ratio`, each call 10 ms of the learner's or more, plus the protocol's time."""
    return Case("only", overhead_s, [0.01 * ratio + overhead_s] * pairs, [0.01 + overhead_s] * pairs)


@pytest.mark.parametrize(("ratio", "state"), [(2.0, State.FAIL), (4.0, State.PASS)])
def test_what_holds_with_and_without_the_protocols_time_is_decided(ratio, state):
    made = case(ratio, overhead_s=0.001)
    assert not made.decide(TESTS, exhausted=False)
    assert made.states() == {"speedup": state}
    _refuse_overhead([made], TESTS)


def test_a_miss_that_is_the_protocols_own_is_none():
    made = case(3.1, overhead_s=0.001)  # 2.91x with the protocol's time, 3.1x without
    made.decide(TESTS, exhausted=True)
    assert made.states() == {"speedup": State.INCONCLUSIVE}
    with pytest.raises(VerifierFault, match="too short"):
        _refuse_overhead([made], TESTS)


def test_as_fast_as_is_not_granted_by_the_protocols_time_either():
    tests = {"speedup": SequentialTest(target=1.0, margin=0.97)}
    made = case(0.968, overhead_s=0.002)  # 0.973x with the protocol's time
    made.decide(tests, exhausted=True)
    assert made.states() == {"speedup": State.INCONCLUSIVE}


def test_a_little_of_the_protocols_time_leaves_it_undecided_but_is_no_error():
    made = case(3.01, overhead_s=0.0002)
    made.decide(TESTS, exhausted=True)
    assert made.states() == {"speedup": State.INCONCLUSIVE}
    _refuse_overhead([made], TESTS)


@pytest.mark.parametrize(
    ("waited_s", "spared"),
    [(0.0, set()), (0.02, set()), (0.05, {"speedup"}), (99.0, {"speedup"})],
    ids=["no wait", "too short a wait", "half the time", "several threads at once"],
)
def test_a_miss_is_spared_when_the_waiting_for_a_core_may_have_caused_it(waited_s, spared):
    made = case(2.0, overhead_s=0.0, pairs=12)  # 0.12 s of the learner's
    made.decide(TESTS, exhausted=True)
    assert made.states() == {"speedup": State.FAIL}
    assert _spared([made], TESTS, waited_s) == spared


def test_one_miss_that_waiting_cannot_have_caused_is_enough():
    slow, starved = case(0.5, overhead_s=0.0), case(2.5, overhead_s=0.0)
    for made in (slow, starved):
        made.decide(TESTS, exhausted=True)
    assert _spared([starved, slow], TESTS, waited_s=0.1) == set()
    assert _spared([starved], TESTS, waited_s=0.05) == {"speedup"}


def on(cores: float, allowed: int | None) -> None:
    """What is said of 0.12 s in which so many cores were busy, where a case allows so many threads."""
    made = case(2.0, overhead_s=0.0, pairs=12)
    made.cpu_s = 0.12 * cores
    _refuse_more_threads([made], SimpleNamespace(threads=lambda _case: allowed))


def test_a_case_for_one_thread_is_for_one_thread():
    for cores, allowed in ((1.05, 1), (2.0, 2), (16.0, None)):
        on(cores, allowed)
    with pytest.raises(LearnerFault, match="use one thread and kept"):
        on(1.8, 1)
    _refuse_more_threads([case(2.0, 0.0)], ModuleType("judge"))
