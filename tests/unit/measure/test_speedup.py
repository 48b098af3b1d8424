"""The protocol's own time decides nothing."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from bottleneck_lab.catalog import CriterionSpec, DeviceSpec, find_lab
from bottleneck_lab.errors import BusyMachineError, LabError
from bottleneck_lab.grading.sequential import SELF_TEST_LIMIT, SequentialTest, State
from bottleneck_lab.grading.verdict import Outcome
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings, check, sampling
from bottleneck_lab.measure.kinds.speedup.against_itself import SELF_TEST_SIZES, AgainstItself
from bottleneck_lab.measure.kinds.speedup.figures import MOVED_PAIRS, Case
from bottleneck_lab.measure.kinds.speedup.refusals import (
    Turns,
    refuse_counted_threads,
    refuse_kernels_left_running,
    refuse_more_threads,
    refuse_overhead,
)
from bottleneck_lab.measure.kinds.speedup.results import (
    case_notes,
    misses_from_waiting,
    speedup_from_waiting,
    target_results,
)
from bottleneck_lab.measure.kinds.speedup.sampling import first_look, judge_untimed, sample
from bottleneck_lab.measure.kinds.speedup.session import Workers
from bottleneck_lab.measure.verifier import check_lab

TESTS = {"speedup": SequentialTest(target=3.0)}


def case(ratio: float, overhead_s: float, pairs: int = 12) -> Case:
    """Pairs whose true ratio is `ratio`, each call 10 ms of the learner's or more, plus the
    protocol's time.
    """
    return Case(
        "only", overhead_s, [0.01 * ratio + overhead_s] * pairs, [0.01 + overhead_s] * pairs
    )


@pytest.mark.parametrize("moved_s", [0.0, 0.02, 0.08])
@pytest.mark.parametrize(
    ("ratio", "state"), [(0.5, State.FAIL), (0.9, State.FAIL), (1.05, State.PASS)]
)
def test_moving_data_hides_no_difference_between_kernels(ratio, state, moved_s):
    made = Case(
        "only",
        idle=True,
        reference_s=[0.01 * ratio + moved_s] * 40,
        learner_s=[0.01 + moved_s] * 40,
    )
    made.moved_s = [moved_s] * 39 + [9.0]
    tests = {"speedup": SequentialTest(target=1.0, margin=0.97)}
    made.decide(tests, exhausted=True)
    assert made.states() == {"speedup": state}
    refuse_overhead([made], tests)


def test_a_call_that_takes_no_longer_than_moving_its_data_is_not_infinitely_fast():
    made = Case(
        "only", idle=True, reference_s=[0.04] * 3, learner_s=[0.01] * 3, moved_s=[0.02] * 3
    ).without_moving()
    assert made.ratios() == pytest.approx([20.0] * 3)
    assert made.moved_s == []


def test_each_pair_comes_with_a_call_that_computes_nothing_where_the_judge_knows_one():
    calls = []

    def side(name):
        worker = SimpleNamespace(cpu_s=lambda: 0.0)
        return SimpleNamespace(
            call=lambda inputs: (calls.append((name, inputs)), (0.5, inputs))[1], worker=worker
        )

    workers = Workers.__new__(Workers)
    workers.context, workers.reference, workers.learner = (
        SimpleNamespace(rng=random.Random(1), settings=SpeedupSettings()),
        side("reference"),
        side("learner"),
    )
    workers.judge = SimpleNamespace(
        make_inputs=lambda *_: [1, 2], idle=lambda inputs: inputs[:1], judge=lambda *_: None
    )
    workers.generator, workers.context.data = None, None
    workers._ready, workers.standards = {}, None
    with_idle, without = Case("a", idle=True), Case("a")
    workers.time_pair(with_idle)
    assert sorted(calls) == [("learner", [1, 2]), ("reference", [1]), ("reference", [1, 2])]
    workers.time_pair(without)
    assert (with_idle.moved_s, without.moved_s) == ([0.5], [])
    for _ in range(2 * MOVED_PAIRS):
        workers.time_pair(with_idle)
    assert len(with_idle.moved_s) == MOVED_PAIRS, "their median no longer changes"


@pytest.mark.parametrize(("ratio", "state"), [(2.0, State.FAIL), (4.0, State.PASS)])
def test_what_holds_with_and_without_the_protocols_time_is_decided(ratio, state):
    made = case(ratio, overhead_s=0.001)
    assert not made.decide(TESTS, exhausted=False)
    assert made.states() == {"speedup": state}
    refuse_overhead([made], TESTS)


def test_a_miss_that_is_the_protocols_own_is_none():
    made = case(3.1, overhead_s=0.001)  # 2.91x with the protocol's time, 3.1x without
    made.decide(TESTS, exhausted=True)
    assert made.states() == {"speedup": State.INCONCLUSIVE}
    with pytest.raises(VerifierFault, match="too short"):
        refuse_overhead([made], TESTS)


def test_a_compiler_that_is_missing_is_the_machines_fault(lab, workspace, tmp_path):
    device = lab.spec.devices["cpu"]
    needs = msgspec.structs.replace(
        device, settings={**device.settings, "tools": ["no-such-compiler"]}
    )
    needing = msgspec.structs.replace(
        lab, spec=msgspec.structs.replace(lab.spec, devices={"cpu": needs})
    )
    verdict = check_lab(needing, workspace, "cpu", data=tmp_path)
    assert verdict.outcome is Outcome.ERROR
    assert "no-such-compiler is not installed here" in verdict.summary
    assert verdict.advice == ["Install no-such-compiler."]


def test_what_one_case_has_missed_for_sure_needs_no_other():
    undecided, missed = case(3.1, overhead_s=0.001), case(2.0, overhead_s=0.001)
    for made in (undecided, missed):
        made.decide(TESTS, exhausted=True)
    refuse_overhead([undecided, missed], TESTS)


def test_as_fast_as_is_not_granted_by_the_protocols_time_either():
    tests = {"speedup": SequentialTest(target=1.0, margin=0.97)}
    made = case(0.968, overhead_s=0.002)  # 0.973x with the protocol's time
    made.decide(tests, exhausted=True)
    assert made.states() == {"speedup": State.INCONCLUSIVE}


def test_a_little_of_the_protocols_time_leaves_it_undecided_but_is_no_error():
    made = case(3.01, overhead_s=0.0002)
    made.decide(TESTS, exhausted=True)
    assert made.states() == {"speedup": State.INCONCLUSIVE}
    refuse_overhead([made], TESTS)


QUIET = Turns([0.1] * 7, [0.1] * 16, [0.1] * 7)


def beside(before_s: float, after_s: float, *beside_s: float) -> Turns:
    return Turns([before_s] * 7, list(beside_s), [after_s] * 7)


@pytest.mark.parametrize(("before_s", "after_s"), [(0.1, 0.2), (0.2, 0.1), (0.16, 0.16)])
def test_a_gpu_that_somebody_else_uses_or_that_lowers_its_clocks_is_no_attack(before_s, after_s):
    refuse_kernels_left_running({"one": beside(before_s, after_s, *[0.2] * 9)}, failed=False)


@pytest.mark.parametrize("case", ["first", "last"])
def test_kernels_that_go_on_while_their_process_is_stopped_are_tampering_whichever_case_shows_it(
    case,
):
    turns = {
        "first": QUIET,
        "middle": QUIET,
        "last": QUIET,
        case: beside(0.1, 0.09, *[0.25] * 7, 0.1, 0.1),
    }
    with pytest.raises(
        LearnerFault, match=rf"2\.5 times as long alongside .* \({case}\)"
    ) as caught:
        refuse_kernels_left_running(turns, failed=False)
    assert caught.value.reason == "tampered"


@pytest.mark.parametrize(
    "turns",
    [
        beside(0.1, 0.09, *[0.15] * 16),
        beside(0.1, 0.09, *[0.3] * 9, *[0.1] * 7),
        Turns([0.1] * 6 + [0.4], [0.3] * 16, [0.1] * 7),
    ],
    ids=[
        "slowed by less than another user or a falling clock would",
        "not always",
        "once as slow alone",
    ],
)
def test_what_may_have_another_cause_accuses_nobody_and_passes_nobody(turns):
    with pytest.raises(BusyMachineError, match="used the GPU, or its clocks fell"):
        refuse_kernels_left_running({"quiet": QUIET, "slowed": turns}, failed=False)


def test_work_that_fails_beside_a_slowed_reference_fails():
    refuse_kernels_left_running({"only": beside(0.1, 0.09, *[0.15] * 16)}, failed=True)


def test_a_case_that_was_never_timed_shows_nothing():
    refuse_kernels_left_running({"timed": QUIET, "not": beside(0.1, 0.1)}, failed=False)


@pytest.mark.parametrize(
    ("waited_s", "expected"),
    [(0.0, set()), (0.02, set()), (0.05, {"speedup"}), (99.0, {"speedup"})],
    ids=["no wait", "too short a wait", "half the time", "several threads at once"],
)
def test_a_miss_is_spared_when_the_waiting_for_a_core_may_have_caused_it(waited_s, expected):
    made = case(2.0, overhead_s=0.0, pairs=12)  # 0.12 s of the learner's
    made.decide(TESTS, exhausted=True)
    assert made.states() == {"speedup": State.FAIL}
    assert set(misses_from_waiting([made], TESTS, waited_s)) == expected


def test_what_was_computed_is_no_waiting():
    """Threads that wait side by side wait for longer than the calls take: 12 calls of 0.01 s that
    computed for 0.1 s on two cores need 0.05 s of them.
    """
    made = case(2.0, overhead_s=0.0, pairs=12)
    made.cpu_s, made.threads = 0.1, 2
    assert sum(made.without_waiting(1.0).learner_s) == pytest.approx(0.05)
    assert sum(made.without_waiting(0.2).learner_s) == pytest.approx(0.096)


def test_one_miss_that_waiting_cannot_have_caused_is_enough():
    slow, starved = case(0.5, overhead_s=0.0), case(2.5, overhead_s=0.0)
    for made in (slow, starved):
        made.decide(TESTS, exhausted=True)
    assert set(misses_from_waiting([starved, slow], TESTS, waited_s=0.1)) == set()
    assert set(misses_from_waiting([starved], TESTS, waited_s=0.05)) == {"speedup"}


@pytest.mark.parametrize(
    ("learner", "reference", "doubted"),
    [(0.0, 0.0, False), (0.3, 0.3, False), (0.5, 0.3, False), (0.0, 0.2, False), (0.1, 0.6, True)],
)
def test_a_speed_up_that_the_references_waiting_made_is_in_doubt(learner, reference, doubted):
    made = case(5.0, overhead_s=0.0)
    made.decide(TESTS, exhausted=True)
    assert made.states() == {"speedup": State.PASS}
    shares = {"learner": learner, "reference": reference}
    assert speedup_from_waiting([made], TESTS, shares) is doubted


@pytest.mark.parametrize(("other_cores", "holds"), [(0.0, True), (1.0, None)])
def test_a_speed_up_in_doubt_counts_on_a_quiet_machine_alone(other_cores, holds):
    made = case(5.0, overhead_s=0.0)
    made.decide(TESTS, exhausted=True)
    spec = CriterionSpec("speedup", "target", "speed", 3.0, unit="x")
    lab = SimpleNamespace(spec=SimpleNamespace(devices={"cpu": DeviceSpec([spec])}))
    context = SimpleNamespace(lab=lab, device="cpu")
    (result,) = target_results(context, [made], {}, other_cores, reference_waited=True)
    assert result.holds is holds
    assert ("waited for a core for longer than yours" in result.sentence) is (holds is None)


class Timed:
    """Stands where a comparison stands: each pair of a case takes the seconds given for reference
    and learner, on a made-up clock.
    """

    def __init__(self, monkeypatch, max_s, judged=0, **seconds):
        self.context = SimpleNamespace(
            settings=SpeedupSettings(max_s=max_s, judged=judged),
            rng=random.Random(1),
            progress=lambda *_: None,
            criterion={"speedup": CriterionSpec("speedup", "target", "speed", 3.0)}.get,
        )
        self.seconds, self.now, self.untimed_at = seconds, 0.0, []
        self.itself = Narrowed(self, 0.0)
        monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: self.now))

    def time_pair(self, case):
        reference_s, learner_s = self.seconds[case.name]
        case.reference_s.append(reference_s)
        case.learner_s.append(learner_s)
        self.now += reference_s + learner_s

    def untimed(self):
        while True:
            yield None

    def judge_untimed(self, _call):
        self.untimed_at.append(self.now)
        self.now += sum(next(iter(self.seconds.values())))

    def sampled(self):
        cases = [Case(name) for name in self.seconds]
        sample(self, cases, self.itself)
        return cases

    def looked(self, tests=TESTS):
        cases = [Case(name) for name in self.seconds]
        return first_look(self, cases, tests), cases


class Narrowed:
    """Stands where the reference's pairs with itself stand: each doubt after the first takes ten
    made-up seconds.
    """

    def __init__(self, timed, *doubts):
        self.timed, self.doubts, self.spent_s = timed, list(doubts), 0.0
        self.narrow()

    def narrow(self):
        if not self.doubts:
            return False
        if hasattr(self, "outcome"):
            self.spent_s += 10.0
            self.timed.now += 10.0
        self.outcome = SimpleNamespace(doubt=self.doubts.pop(0))
        return True


def in_turns(timed, *pairs):
    """Have the pairs take these seconds, over and over."""
    honest, turns = timed.time_pair, itertools.cycle(pairs)

    def time_pair(case):
        timed.seconds = {case.name: next(turns)}
        honest(case)

    timed.time_pair = time_pair


@pytest.mark.parametrize(
    ("doubts", "ratios", "pairs", "left"),
    [
        pytest.param([0.4, 0.2, 0.0], [6.0], 12, [0.2, 0.0], id="clear of the target by more"),
        pytest.param([0.4, 0.2, 0.0], [4.0], 12, [0.0], id="by a third"),
        pytest.param([0.4, 0.2, 0.0], [3.3], 12, [], id="by a tenth"),
        # One in twelve is below the target: 12 pairs show nothing yet, and 24 all that is needed.
        pytest.param([0.05, 0.0], [2.9, *[4.0] * 11], 24, [0.0], id="the pairs are open, too"),
        pytest.param([0.4, 0.0], [2.9, *[3.3] * 11], 24, [], id="hopeless with the doubt"),
    ],
)
def test_a_doubt_is_narrowed_where_it_is_in_the_way_and_only_there(
    monkeypatch, doubts, ratios, pairs, left
):
    timed = Timed(monkeypatch, 1000, only=(1.0, 1.0))
    timed.itself = Narrowed(timed, *doubts)
    in_turns(timed, *[(ratio, 1.0) for ratio in ratios])
    (case,) = timed.sampled()
    assert case.states() == {"speedup": State.PASS}
    assert (len(case.learner_s), timed.itself.doubts) == (pairs, left)


def test_narrowing_a_doubt_takes_none_of_the_time_for_pairs(monkeypatch):
    timed = Timed(monkeypatch, 150, only=(1.0, 1.0))
    timed.itself = Narrowed(timed, *[0.4] * 10, 0.0)  # 100 s, after 12 of 24 pairs
    in_turns(timed, (2.9, 1.0), *[(3.3, 1.0)] * 11)
    (case,) = timed.sampled()
    assert timed.now > 150
    assert case.states() == {"speedup": State.PASS}


def against_itself(*slowdowns):
    """An A/A test whose sides are this much apart in one pair after another."""
    calls = itertools.chain.from_iterable((factor, 1.0) for factor in slowdowns)
    worker = SimpleNamespace(waiting=lambda: SimpleNamespace(seconds=lambda: 0.5))
    reference = SimpleNamespace(worker=worker, call=lambda _inputs: (next(calls), []))
    context = SimpleNamespace(
        settings=SimpleNamespace(self_test_margin=0.2),
        rng=SimpleNamespace(getrandbits=lambda _bits: 1),
    )
    workers = SimpleNamespace(
        context=context, names=["first", "second"], reference=reference, inputs=lambda case: [case]
    )
    return AgainstItself(workers)


def test_a_quiet_machine_leaves_no_doubt_to_narrow():
    itself = against_itself(*[1.01] * 12)
    assert (itself.outcome.doubt, itself.waited_s, itself.narrow()) == (0.0, 0.5, False)


def test_a_noisy_machine_is_measured_on_as_long_as_it_is_asked_for():
    itself = against_itself(*[1.4, 1.0] * 24)
    assert itself.outcome.doubt == pytest.approx(0.4)
    assert "6 times" in itself.outcome.sentence
    assert itself.narrow()
    assert "9 times" in itself.outcome.sentence
    while itself.narrow():
        pass
    assert "48 times" in itself.outcome.sentence
    assert itself.waited_s == 0.5 * len(SELF_TEST_SIZES)


def test_of_six_pairs_each_counts_and_nine_bear_an_outlier():
    itself = against_itself(2.0, *[1.01] * 8)
    assert itself.outcome.quiet
    assert "9 times" in itself.outcome.sentence


def test_an_unfit_machine_gets_all_its_pairs_before_it_is_refused():
    assert against_itself(*[2.0] * 12, *[1.01] * 12, *[1.01] * 24).outcome.quiet
    with pytest.raises(BusyMachineError, match="48 times"):
        against_itself(*[2.0] * 48)


WORST_MACHINE = {"speedup": SequentialTest(target=3.0, doubt=SELF_TEST_LIMIT)}


@pytest.mark.parametrize(("slower_s", "pairs"), [(1.3, 10), (1.9, 10), (2.1, 3), (9.0, 3)])
def test_far_off_work_is_told_so_at_the_first_look(monkeypatch, slower_s, pairs):
    """One that misses by six times takes three pairs, one that misses by three takes ten."""
    timed = Timed(
        monkeypatch, 120, judged=100, fine=(4.0, 1.0), slow=(1.0, 1.2), slower=(1.0, slower_s)
    )
    far, cases = timed.looked(WORST_MACHINE)
    assert far.name == "slower"
    assert [len(case.learner_s) for case in cases] == [1, 1, pairs]
    assert not timed.untimed_at
    for case in cases:
        case.decide(WORST_MACHINE, exhausted=True)
    assert far.states() == {"speedup": State.FAIL}
    assert not any(case.failed() for case in cases if case is not far)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([(1.0, 1.0)], "0.33x of the target is not far on the worst machine"),
        ([(1.0, 1.5)] * 9 + [(1.0, 1.0)], "one pair of ten is not far off"),
        ([(1.0, 9.0)] * 2 + [(1.0, 1.0)], "two pairs are too few, however far off"),
    ],
)
def test_what_is_not_surely_far_off_is_measured_in_full(monkeypatch, pairs, why):
    timed = Timed(monkeypatch, 120, only=pairs[0])
    in_turns(timed, *pairs)
    far, (case,) = timed.looked(WORST_MACHINE)
    assert far is None, why
    assert len(case.learner_s) == len(pairs)
    case.decide(TESTS, exhausted=True)
    assert not case.failed()


def test_what_waiting_leaves_open_is_said_in_figures_after_three_pairs_too(monkeypatch):
    """Without the waiting the pairs would be no longer far off, and too few for a bound."""
    timed = Timed(monkeypatch, 120, only=(1.0, 9.0))
    in_turns(timed, (1.0, 8.0), (1.0, 9.0), (1.0, 10.0))
    far, _ = timed.looked(WORST_MACHINE)
    far.decide(WORST_MACHINE, exhausted=True)
    spared = misses_from_waiting([far], WORST_MACHINE, waited_s=0.9 * sum(far.learner_s))
    assert spared["speedup"].endswith("it would be 1–1.25x")


@pytest.mark.parametrize(
    ("device", "far", "steps"),
    [
        pytest.param("cpu", True, ["meters", "look", "stop"], id="far off"),
        pytest.param(
            "cpu", False, ["meters", "look", "standards", "meters", "pairs", "stop"], id="not far"
        ),
        pytest.param("cuda", None, ["standards", "meters", "pairs", "stop"], id="on a GPU"),
    ],
)
def test_far_off_work_does_without_standards_and_other_work_is_measured_anew(
    monkeypatch, device, far, steps
):
    """What comes before the pairs, such as the standards' loading, is no load by other programs."""
    done, cases = [], []

    def looked(_workers, looked_at, _tests):
        done.append("look")
        cases.append(looked_at)
        return looked_at[0] if far else None

    def sampled(_workers, sampled_from, _itself):
        done.append("pairs")
        cases.append(sampled_from)

    meters = SimpleNamespace(stop=lambda *_: done.append("stop"))
    monkeypatch.setattr(check, "Meters", lambda _: done.append("meters") or meters)
    monkeypatch.setattr(check, "first_look", looked)
    monkeypatch.setattr(check, "sample", sampled)
    monkeypatch.setattr(check, "AgainstItself", lambda _: None)
    monkeypatch.setattr(check, "_case", lambda _, name: Case(name))
    context = SimpleNamespace(
        device=device,
        settings=SpeedupSettings(),
        progress=lambda *_: None,
        criterion={"speedup": CriterionSpec("speedup", "target", "speed", 3.0)}.get,
    )
    workers = SimpleNamespace(
        context=context, names=["only"], load_standards=lambda _: done.append("standards")
    )
    check._time_pairs(workers, standards=object())
    assert done == steps
    assert len({id(case) for each in cases for case in each}) == len(cases), "pairs of their own"


def test_a_first_look_that_waited_for_a_core_is_spared(monkeypatch):
    far, _ = Timed(monkeypatch, 120, only=(1.0, 9.0)).looked(WORST_MACHINE)
    far.decide(WORST_MACHINE, exhausted=True)
    assert set(misses_from_waiting([far], WORST_MACHINE, waited_s=0.0)) == set()
    assert set(misses_from_waiting([far], WORST_MACHINE, waited_s=0.95 * sum(far.learner_s))) == {
        "speedup"
    }


def test_the_case_that_misses_is_measured_first(monkeypatch):
    pairs = []
    for seed in range(20):
        timed = Timed(
            monkeypatch, 1e9, fine=(4.0, 1.0), better=(5.0, 1.0), good=(6.0, 1.0), slow=(2.0, 1.0)
        )
        timed.context.rng = random.Random(seed)
        pairs.append(sum(len(case.learner_s) for case in timed.sampled()))
    assert sum(pairs) / len(pairs) < 30, "by lot alone it takes 48 until one of four has 12"


SIX = {f"case_{number}": (0.5, 19.0) for number in range(6)}


@pytest.mark.parametrize(
    ("max_s", "seconds", "state"),
    [
        (120, {"only": (0.1, 11.0)}, State.FAIL),
        (120, {"only": (0.1, 29.0)}, State.FAIL),
        (150, SIX, State.FAIL),
        (150, {**dict.fromkeys(SIX, (1.0, 0.2)), "slow": (0.1, 20.0)}, State.FAIL),
        (
            120,
            {"only": (20.0, 11.0)},
            State.INCONCLUSIVE,
        ),  # the target is 3x: missed, but not by far
        (
            120,
            {"only": (20.0, 15.0)},
            State.INCONCLUSIVE,
        ),  # missed by far, but the reference is what takes the time
        (120, {"only": (40.0, 11.0)}, State.INCONCLUSIVE),  # and never a PASS
    ],
)
def test_calls_that_use_up_the_time_fail_where_they_are_far_too_slow(
    monkeypatch, max_s, seconds, state
):
    cases = Timed(monkeypatch, max_s, **seconds).sampled()
    worst = max(cases, key=lambda case: sum(case.learner_s))
    assert worst.states() == {"speedup": state}
    assert len(worst.learner_s) < 12


class Drawn(Timed):
    """Pairs whose ratio varies by 2% around a speed of each case, where the target is 3x."""

    def time_pair(self, case):
        speed, noise = self.seconds[case.name], random.Random(f"{case.name} {self.now}")
        case.reference_s.append(speed * noise.lognormvariate(0.0, 0.02))
        case.learner_s.append(1.0)
        self.now += 1.0


@pytest.mark.parametrize("slow", [2.995, 3.0, 3.01])
def test_a_tie_is_left_undecided_long_before_the_time_is_up(monkeypatch, slow):
    timed = Drawn(monkeypatch, 150, fine=3.5, better=4.0, slow=slow)
    cases = timed.sampled()
    assert [case.states()["speedup"] for case in cases] == [
        State.PASS,
        State.PASS,
        State.INCONCLUSIVE,
    ], "the tie is the worst of the cases, and the one to speak of"
    assert timed.now < 120


def test_a_limit_that_was_sized_for_a_faster_machine_leaves_every_case_its_first_look(monkeypatch):
    timed = Drawn(monkeypatch, 10, fine=3.5, better=4.0, fast=4.5)
    assert {case.states()["speedup"] for case in timed.sampled()} == {State.PASS}
    assert 10 < timed.now < sampling.FIRST_LOOKS_S


@pytest.mark.parametrize(("slow", "state"), [(2.9, State.FAIL), (3.1, State.PASS)])
def test_what_more_pairs_can_decide_is_measured_on(monkeypatch, slow, state):
    cases = Drawn(monkeypatch, 150, fine=3.5, better=4.0, slow=slow).sampled()
    assert cases[-1].states() == {"speedup": state}


def test_a_case_that_can_still_fail_is_measured_beside_one_that_cannot_be_decided(monkeypatch):
    timed = Drawn(monkeypatch, 1000, tie=3.0, slow=2.95)
    assert any(case.failed() for case in timed.sampled())


def test_one_pair_that_is_not_far_off_leaves_it_undecided(monkeypatch):
    timed = Timed(monkeypatch, 120, only=(0.1, 29.0))
    honest = timed.time_pair

    def pair(case):
        timed.seconds = {"only": (20.0, 11.0) if len(case.learner_s) == 5 else (0.1, 29.0)}
        honest(case)

    timed.time_pair = pair
    (case,) = timed.sampled()
    assert case.states() == {"speedup": State.INCONCLUSIVE}
    assert len(case.learner_s) == 6


def test_time_used_up_by_waiting_for_a_core_is_spared(monkeypatch):
    cases = Timed(monkeypatch, 120, only=(1.0, 11.0)).sampled()
    waited = sum(cases[0].learner_s)
    assert set(misses_from_waiting(cases, TESTS, waited_s=0.5 * waited)) == set()
    why = misses_from_waiting(cases, TESTS, waited_s=0.95 * waited)["speedup"]
    assert why.startswith(
        f"without the {0.95 * waited:.1f} s in which its threads waited for a core, it would be "
    )


def test_what_used_up_the_time_is_said(monkeypatch):
    cases = Timed(monkeypatch, 120, only=(0.1, 11.0)).sampled()
    spec = CriterionSpec("speedup", "target", "speed", 3.0, unit="x")
    lab = SimpleNamespace(spec=SimpleNamespace(devices={"cpu": DeviceSpec([spec])}))
    (result,) = target_results(SimpleNamespace(lab=lab, device="cpu"), cases, set(), 0.0)
    assert result.holds is False
    assert "11 pairs" in result.sentence
    assert result.sentence.endswith("Time ran out after these pairs; each call took 11 s.")


def on(cores: float, allowed: int | None, waiting: float = 0.0, ratio: float = 2.0) -> None:
    """Check 0.12 s in which so many cores were busy and so many threads waited for one, where
    a case allows so many threads.
    """
    made = case(ratio, overhead_s=0.0, pairs=12)
    made.cpu_s, made.waited_s, made.threads = 0.12 * cores, 0.12 * waiting, allowed
    made.decide({"speedup": SequentialTest(target=1.0)}, exhausted=True)
    refuse_more_threads([made])


def test_a_case_for_one_thread_is_for_one_thread():
    for cores, allowed in ((1.05, 1), (2.0, 2), (16.0, None)):
        on(cores, allowed)
    with pytest.raises(LearnerFault, match="use one thread but kept"):
        on(1.8, 1)
    refuse_more_threads([case(2.0, 0.0)])


def counted(allowed: int, *computing: int, ready: float = 1.9) -> Case:
    """A case whose calls computed with so many threads, for half of their time without a core."""
    made = case(2.0, overhead_s=0.0, pairs=len(computing))
    made.threads, made.computing = allowed, list(computing)
    made.cpu_s, made.waited_s = (ready / 2 * sum(made.learner_s) for _ in range(2))
    return made


def test_threads_are_counted_where_they_get_no_cores():
    for right in (counted(1, 2, 2, 1), counted(1, 2, 2), counted(2, 2, 2, 2)):
        refuse_counted_threads([right])
    refuse_counted_threads([counted(1, 2, 2, 2, ready=1.0)])  # one after the other
    for wrong in ([counted(1, 2, 2, 2)], [counted(1, 2)] * 3, [counted(2, 2), counted(1, 3, 2, 2)]):
        with pytest.raises(LearnerFault, match="use one thread but computed with 2 in every call"):
            refuse_counted_threads(wrong)


def test_threads_that_other_programs_kept_from_running_are_no_reason_to_pass():
    on(0.6, 1, waiting=0.4)
    on(1.1, 2, waiting=0.9)
    on(0.9, 1, waiting=1.0, ratio=0.5)  # too slow however many
    with pytest.raises(BusyMachineError, match=r"use one thread, and 1\.9 were ready"):
        on(0.9, 1, waiting=1.0)


def test_a_second_thread_s_share_of_the_work_is_charged_as_time():
    made = case(1.04, overhead_s=0.0, pairs=12)
    made.cpu_s, made.threads = 1.09 * 0.12, 1
    assert made.charged().ratios() == pytest.approx([1.04 / 1.09] * 12)
    made.decide({"speedup": SequentialTest(target=1.0, margin=0.97)}, exhausted=True)
    assert made.states() == {"speedup": State.FAIL}
    made.cpu_s = 0.9 * 0.12
    assert made.charged().ratios() == pytest.approx([1.04] * 12)


def test_every_case_is_named_with_what_it_came_to_where_there_are_several():
    short, long = case(0.72, 0.0, pairs=12), case(1.3, 0.0, pairs=16)
    short.name, long.name = "length 200", "length 872"
    assert case_notes([short, long]) == [
        "length 200: 0.72x in 12 pairs",
        "length 872: 1.30x in 16 pairs",
    ]
    assert case_notes([short]) == []


@pytest.mark.parametrize("learner_s", [0.001, 1.0, 20.0])
def test_how_many_answers_are_judged_does_not_depend_on_how_fast_they_come(monkeypatch, learner_s):
    timed = Timed(monkeypatch, 1e5, judged=100, only=(10 * learner_s, learner_s))
    cases = timed.sampled()
    judge_untimed(timed, cases)
    assert len(cases[0].learner_s) + len(timed.untimed_at) == 100


def test_code_that_will_not_pass_is_asked_for_no_more_answers_than_the_seconds_allow(monkeypatch):
    timed = Timed(monkeypatch, 1e5, judged=100, only=(1.0, 9.0))
    cases = timed.sampled()
    assert not timed.untimed_at, "they come last"
    paired_s = timed.now
    judge_untimed(timed, cases)
    assert timed.untimed_at == [paired_s], "one more would not fit"
    (far_off,) = [replace(case, far_off=True) for case in cases]
    judge_untimed(timed, [far_off])
    assert len(timed.untimed_at) == 1, "nor would one in a second"


def both_sides(learner, *, standards=None):
    """Return a comparison of numbers, the reference of which doubles them; the names of its calls
    in their order, with the inputs; and what the judge was given to compare.
    """
    calls, compared = [], []
    judge = SimpleNamespace(
        cases=lambda *_: ["only"],
        make_inputs=lambda *_: [3.0],
        untimed_inputs=lambda *_: [1.0],
        judge=lambda case, inputs, answer, reference, settings: (
            None if abs(answer[0] - reference[0]) < 0.1 else "off"
        ),
        disagreement=lambda got, want: abs(got - want),
        compare=lambda *one: compared.append(one),
    )

    def side(name, function):
        def hand_over(inputs):
            calls.append((name, *inputs))
            return function(*inputs)

        def collect(answer):
            return 0.5, [answer]

        return SimpleNamespace(
            hand_over=hand_over,
            collect=collect,
            call=lambda inputs: collect(hand_over(inputs)),
            worker=SimpleNamespace(cpu_s=lambda: 0.0),
            release=lambda: calls.append((name, "release")),
            wait_ready=lambda: calls.append((name, "ready")),
        )

    settings = SpeedupSettings(standards="standards.py" if standards else None)
    context = SimpleNamespace(rng=random.Random(1), settings=settings, data=None)
    workers = Workers(context, side("reference", lambda n: 2 * n), judge)
    workers.learner = side("learner", learner)
    if standards:
        workers.warm_up("only", 1)
        workers.load_standards(side("standards", standards))
    calls.clear()
    return workers, calls, compared


def test_calls_that_nobody_times_may_have_inputs_of_their_own_and_run_beside_the_reference():
    workers, calls, _ = both_sides(lambda number: 2 * number)
    workers.judge_untimed(next(workers.untimed()))
    assert calls == [("reference", 1.0), ("learner", 1.0)]
    workers.time_pair(Case("only"))
    assert sorted(calls[2:]) == [("learner", 3.0), ("reference", 3.0)]
    assert workers.untimed_answers == 1


def test_inputs_are_drawn_while_the_workers_compute_and_judged_in_their_order():
    drawn = threading.Event()
    workers, calls, _ = both_sides(lambda number: 2 * number)
    numbers = itertools.count(1.0)

    def untimed_inputs(*_):
        if (number := next(numbers)) == 2.0:
            drawn.set()
        return [number]

    workers.judge.untimed_inputs = untimed_inputs
    with contextlib.closing(workers.untimed()) as untimed:
        call = next(untimed)
        assert drawn.wait(10)
        workers.judge_untimed(call)
        workers.judge_untimed(next(untimed))
    inputs = [inputs for _, inputs in calls]
    assert inputs == [1.0, 1.0, 2.0, 2.0]


def test_a_quick_reference_spares_untimed_calls_the_slow_one():
    workers, calls, compared = both_sides(
        lambda number: 2 * number, standards=lambda number, ways: "ways" if ways else 2 * number
    )
    workers.time_pair(Case("only"))
    for call in itertools.islice(workers.untimed(), 100):
        workers.judge_untimed(call)
    workers.refuse_overall()
    assert [name for name, *_ in calls].count("reference") == 1
    assert workers.untimed_answers == 100
    assert compared == [([6.0], [6.0], ["ways"])], "the timed one"


def test_code_that_is_less_precise_only_when_it_is_timed_is_held_against_the_standards():
    workers, _, compared = both_sides(
        lambda number: 2 * number + (0.01 if number == 3.0 else 0.0),
        standards=lambda number, ways: 2 * number,
    )
    for _ in range(24):
        workers.time_pair(Case("only"))
    for call in itertools.islice(workers.untimed(), 100):
        workers.judge_untimed(call)
    workers.refuse_overall()
    assert [answer for answer, *_ in compared] == [[6.01]] * 16


def test_a_wrong_answer_to_an_untimed_call_is_refused():
    workers, _, _ = both_sides(
        lambda number: 2 * number + (number == 1.0), standards=lambda number, ways: 2 * number
    )
    workers.time_pair(Case("only"))
    with pytest.raises(LearnerFault, match="off"):
        workers.judge_untimed(next(workers.untimed()))


def test_a_quick_reference_that_is_another_is_the_labs_fault():
    with pytest.raises(LabError, match=r"quick reference is 0\.03 away"):
        both_sides(lambda number: 2 * number, standards=lambda number, ways: 2.01 * number)


def compared(judge) -> Workers:
    """A comparison whose judge is that function."""
    context = SimpleNamespace(
        rng=random.Random(1),
        settings=SpeedupSettings(),
    )
    return Workers(
        context, None, SimpleNamespace(cases=lambda rng, settings: ["only"], judge=judge)
    )


def test_an_answer_of_another_shape_is_wrong_and_no_fault_of_the_machine():
    def judge(case, inputs, answer, reference, settings):
        return None if np.abs(answer[0] - reference[0]).max() < 1 else "off"

    right = [np.zeros((3, 4), np.float32)]
    compared(judge).check("only", [], right, right)
    for wrong in ([np.zeros(3)], ["text"], []):
        with pytest.raises(
            LearnerFault, match="cannot be compared: expected float32 3×4, got"
        ) as caught:
            compared(judge).check("only", [], wrong, right)
        assert caught.value.reason == "wrong output"


def test_a_judge_that_cannot_take_the_references_own_answer_is_broken():
    def judge(case, inputs, answer, reference, settings):
        return settings["missing"]

    with pytest.raises(KeyError, match="missing"):
        compared(judge).check("only", [], [1.0], [1.0])


@pytest.mark.parametrize("verdict", [True, False, 0.0, ["off"]])
def test_a_judge_that_says_neither_none_nor_a_sentence_is_told_what_to_say(verdict):
    with pytest.raises(LabError, match="neither None nor a sentence") as caught:
        compared(lambda *_: verdict).check("only", [], [1.0], [1.0])
    assert "return None when the answer is right" in caught.value.remedy


def test_a_judge_that_fails_is_named_with_its_line(lab, workspace, tmp_path):
    copy = tmp_path / "broken"
    shutil.copytree(lab.path, copy)
    (copy / "judge.py").write_text("def cases(rng, settings):\n    return settings['bands']\n")
    verdict = check_lab(msgspec.structs.replace(lab, path=copy), workspace, "cpu", data=tmp_path)
    assert verdict.outcome is Outcome.ERROR
    assert "own judge.py failed: KeyError: 'bands'" in verdict.summary
    assert "judge.py, line 2)" in verdict.summary
    assert "author" in verdict.advice[0]


def test_a_lab_with_standards_needs_what_its_judge_compares_with(tmp_path):
    lab = find_lab("resnet-latency")
    kind = kind_of(lab)
    assert list(kind.problems(lab)) == []
    text = (lab.path / "judge.py").read_text(encoding="utf-8")
    (tmp_path / "judge.py").write_text(text.replace("def disagreement(", "def distance("))
    (problem,) = kind.problems(msgspec.structs.replace(lab, path=tmp_path))
    assert problem.endswith("`disagreement` is missing; a lab with `standards` needs it.")
