"""The `operator_profile` kind: reading a capture, knowing the shares, and telling right answers
from each kind of wrong one.
"""

import gzip
import itertools
import json
import re
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from PIL import Image

from bottleneck_lab.analysis.counters.roofline import Machine
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.catalog import CriterionSpec, find_lab
from bottleneck_lab.course import proving
from bottleneck_lab.errors import BusyMachineError, CaptureError
from bottleneck_lab.grading.verdict import WHEN_QUIET
from bottleneck_lab.measure.kinds.operator_profile import capture, check
from bottleneck_lab.measure.kinds.operator_profile.capture import (
    OperatorCall,
    OperatorCapture,
    read_capture,
)
from bottleneck_lab.measure.kinds.operator_profile.figures import (
    PLACES,
    Share,
    Truth,
    estimate_shares,
    reached_shares,
    uncertainty,
    undisturbed_shares,
    with_fresh,
)
from bottleneck_lab.measure.kinds.operator_profile.genuine import (
    ALTERATIONS,
    MARK,
    NO_SHAPES,
    NOT_RUN_BEFORE,
    TimingComplaint,
    missing_parts,
    not_genuine,
    other_times,
)
from bottleneck_lab.measure.kinds.operator_profile.judging import (
    COMPUTE,
    FAR,
    MEMORY,
    described_answers,
    either_order,
    measured_answers,
    wrong_bounds,
    wrong_ceiling,
    wrong_operators,
    wrong_share,
)
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.verifier import check_lab
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.start import start_workspace, take_solution

PASSES = 4
CONV, NORM, POOL, ADD, OUTER = (
    "aten::conv",
    "aten::norm",
    "aten::pool",
    "aten::add_",
    "aten::conv2d",
)
LAYER_CALLS = [OperatorCall(OUTER, ((4, 3, 8, 8), (8, 3, 3, 3)), ())] * 2 + [
    OperatorCall("aten::linear", ((4, 8), (10, 8)), ())
]
RIGHT = {
    "first": CONV,
    "second": NORM,
    "third": "pool",
    "share": 0.60,
    "bounds": "compute-bound, memory-bound, memory-bound",
    "ceiling": 2.5,
}


def row(name, share, calls=1, total=None):
    return OperatorRow(name, calls, int(1000 * share), int(1000 * (total or share)), 0, 0, share)


def made_up(shares, *, passes=PASSES, calls=None, begin_s=100.0, device=False, slowed=()):
    """A capture; in the passes `slowed` every call takes longer, as when another program runs, and
    those of NORM the longest.
    """
    rows = {name: row(name, share, 2) for name, share in shares.items()}
    rows[OUTER] = row(OUTER, 0.002, 50, total=0.70)
    rows["aten::empty"] = row("aten::empty", 0.001, 900)
    rows["aten::linear"] = row("aten::linear", 0.003, passes, total=0.01)
    slower = np.array([[2.0 if number in slowed else 1.0] for number in range(passes)])
    times = {
        name: (
            (
                (1e6 * each.share + 20 * np.arange(passes)[:, None])
                * slower ** (5 if name == NORM else 1)
                * [0.25, 0.75]
            )
            .round()
            .astype(np.int64)
            .ravel()
        )
        for name, each in rows.items()
    }
    return OperatorCapture(
        rows, (calls or LAYER_CALLS) * passes, begin_s, begin_s + 1, device, times
    )


SHARES = {CONV: 0.60, NORM: 0.20, POOL: 0.12, ADD: 0.074}
COLD = {CONV: 0.30, ADD: 0.50, NORM: 0.12, POOL: 0.074}


@pytest.fixture
def truth():
    warm = made_up(SHARES)
    shares = {name: Share(name, r.share, 0.005) for name, r in warm.operators.items()}
    intensity = {CONV: 60.0, NORM: 0.25, POOL: 0.3, ADD: 0.1, OUTER: 60.0}
    return Truth(shares, warm, made_up(COLD), 8.0, intensity, {*warm.operators, MARK})


def problems(answers, truth):
    judges = (wrong_operators, wrong_share, wrong_bounds)
    wrong = {judge.__name__: judge(answers, truth) for judge in judges}
    wrong |= {wrong_ceiling.__name__: wrong_ceiling(answers, truth)}
    return {name: fault for name, fault in wrong.items() if fault}


def test_right_answers_pass(truth):
    assert problems(RIGHT, truth) == {}


def test_what_a_fresh_process_shows_is_right_too(truth):
    fresh = {CONV: 0.55, NORM: 0.19, ADD: 0.14, POOL: 0.11}
    answers = RIGHT | {"share": 0.54, "third": ADD, "ceiling": 2.2}
    assert problems(answers, truth).keys() == {"wrong_operators", "wrong_share"}
    truth = replace(truth, shares=with_fresh(truth.shares, made_up(fresh), PASSES))
    assert problems(answers, truth) == problems(RIGHT, truth) == {}
    lower = answers | {"share": 0.48, "ceiling": 1.92}
    assert problems(lower, truth).keys() == {"wrong_share"}
    swapped = {"first": NORM, "second": CONV}
    assert "wrong_operators" in problems(answers | swapped, truth)


def test_the_cold_pass_of_a_fresh_process_does_not_count():
    shares = {name: Share(name, share, 0.005) for name, share in SHARES.items()}
    cold = made_up(SHARES, slowed=[0])
    fresh = {name: share.fresh for name, share in with_fresh(shares, cold, PASSES).items()}
    whole = sum(SHARES.values())
    assert fresh == pytest.approx({name: s / whole for name, s in SHARES.items()}, abs=0.002)


def test_what_a_check_measured_answers_its_questions(truth):
    assert problems(measured_answers(check._details(truth, 4)), truth) == {}
    assert measured_answers({}) == {}


def test_the_copied_solution_leaves_the_answers_open_since_its_figures_are_another_machine_s(
    tmp_path,
):
    workspace, _ = start_workspace(find_lab("resnet-top-ops"), tmp_path / "work", "cpu")
    take_solution(workspace)
    assert "torch.profiler" in (workspace.root / "profile_resnet.py").read_text()
    assert not any(map(is_given, load_answers(workspace.root).values()))


def test_a_check_never_asks_for_as_many_passes_as_the_lab_names():
    context = SimpleNamespace(settings=SimpleNamespace(passes=PASSES, judge={}), data=None)
    reference = SimpleNamespace(call=lambda _: (0.0, [np.zeros(1, np.int64)]))
    judge = SimpleNamespace(make_inputs=lambda *_: np.zeros(1))
    drawn = {
        check._draw_task(context, reference, judge, np.random.default_rng(seed)).passes
        for seed in range(100)
    }
    assert drawn == {3, 5, 6}


def test_nothing_answered_fails_everywhere(truth):
    assert len(problems({}, truth)) == 4


@pytest.mark.parametrize(
    ("change", "judge", "says"),
    [
        (
            {"second": POOL, "third": NORM},
            "wrong_operators",
            "self time",
        ),
        ({"share": 0.66, "ceiling": 2.9}, "wrong_share", f"not that of {CONV}"),
        ({"bounds": "memory-bound, memory-bound, memory-bound"}, "wrong_bounds", "does not fit"),
        ({"bounds": "compute-bound, compute-bound, memory-bound"}, "wrong_bounds", "does not fit"),
        ({"bounds": "compute-bound, slow, memory-bound"}, "wrong_bounds", "one answer for each"),
        ({"bounds": "compute-bound, memory-bound"}, "wrong_bounds", "one answer for each"),
        ({"ceiling": 1.67}, "wrong_ceiling", "1 / share"),
        ({"ceiling": 3.0}, "wrong_ceiling", "Amdahl"),
    ],
)
def test_each_criterion_fails_alone(truth, change, judge, says):
    wrong = problems(RIGHT | change, truth)
    assert list(wrong) == [judge]
    assert says in wrong[judge]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((OUTER, CONV, NORM), "by total time"),
        (("aten::empty", OUTER, "aten::linear"), "by number of calls"),
        ((ADD, CONV, NORM), "cold passes"),
        ((CONV, CONV, NORM), "three different"),
        ((CONV, NORM, "aten::nonsense"), "not in the check's captures"),
    ],
)
def test_a_wrong_order_is_told_by_its_kind(truth, names, says):
    assert says in wrong_operators(dict(zip(PLACES, names, strict=True)), truth)


def test_an_operator_that_computes_nothing_itself_is_a_wrong_answer_on_a_busy_machine_too(truth):
    answers = {"first": CONV, "second": POOL, "third": NORM}
    assert isinstance(wrong_operators(answers, truth), TimingComplaint)
    assert "in the check's own captures, another has 1.7 times its self time." in wrong_operators(
        answers, truth
    )
    too_far = {"first": NORM, "second": CONV, "third": POOL}
    assert not isinstance(wrong_operators(too_far, truth), TimingComplaint)
    del truth.intensity[POOL]
    assert not isinstance(wrong_operators(answers, truth), TimingComplaint)


def test_all_wrong_operators_are_named_at_once(truth):
    wrong = RIGHT | {"first": OUTER, "third": "aten::empty"}
    named = wrong_operators(wrong, truth)
    assert f"`first` is not {OUTER}: " in named
    assert "`third` is not aten::empty: " in named
    assert "`second`" not in named
    assert wrong_share(wrong, truth) == "It rests on `first`: correct that first."
    total = wrong_operators(RIGHT | {"first": OUTER}, truth)
    assert "the order by total time" in total, "only the wrong names are to be explained"


def test_a_share_that_is_far_off_is_wrong_on_a_busy_machine_too(truth):
    assert isinstance(wrong_share(RIGHT | {"share": 0.75}, truth), TimingComplaint)
    assert not isinstance(wrong_share(RIGHT | {"share": 0.85}, truth), TimingComplaint)


def test_no_other_program_explains_a_total_time(truth):
    rows = dict(truth.capture.operators) | {CONV: row(CONV, 0.60, 2, total=0.70)}
    nested = replace(truth, capture=replace(truth.capture, operators=rows))
    off = wrong_share(RIGHT | {"share": 0.70}, nested)
    assert "That is its total time" in off
    assert not isinstance(off, TimingComplaint)
    leaf = wrong_share(RIGHT | {"share": 0.70}, truth)
    assert "That is" not in leaf, "its total is its self time, which is right"
    assert isinstance(leaf, TimingComplaint)


def test_a_ceiling_is_right_if_it_follows_from_the_learner_s_own_share(truth):
    wrong = RIGHT | {"share": 0.75, "ceiling": 4.0}
    assert problems(wrong, truth).keys() == {"wrong_share"}
    unlike = problems(RIGHT | {"share": 0.56, "ceiling": 2.6}, truth)
    assert unlike.keys() == {"wrong_ceiling"}
    assert not isinstance(unlike["wrong_ceiling"], TimingComplaint), "nothing in it is measured"


def test_a_right_ceiling_is_not_blamed_for_a_wrong_share(truth):
    right = RIGHT["ceiling"]
    assert problems(RIGHT | {"share": 0.85}, truth).keys() == {"wrong_share"}
    neither = problems(RIGHT | {"share": 0.85, "ceiling": 2 * right}, truth)
    assert "one of them is wrong" in neither["wrong_ceiling"]


def test_answers_that_do_not_fit_together_are_both_marked_on_a_busy_machine():
    specs = {id_: CriterionSpec(id_, "diagnosis", id_) for id_ in check.CRITERIA}
    context = SimpleNamespace(required=specs.__getitem__)
    busy = BusyMachineError("It is busy.", "Close other programs.")
    faults = [None, None, None, wrong_ceiling(RIGHT | {"ceiling": 3.0})]
    measured = check._certain_faults(context, faults, 5, busy)
    assert {each.id for each in measured.results if each.holds is False} == {"share", "ceiling"}


def test_cpu_time_on_a_gpu_is_told(truth):
    rows = dict(truth.capture.operators)
    rows["aten::launch"] = msgspec.structs.replace(row("aten::launch", 0.0), self_ns=9_000)
    gpu = replace(truth, capture=replace(truth.capture, operators=rows, has_device=True))
    assert "by CPU time" in wrong_operators({"first": "launch", "second": CONV, "third": NORM}, gpu)


@pytest.mark.parametrize(
    ("share", "says"),
    [(0.35, "summed total times"), (0.30, "cold passes"), (0.45, "")],
)
def test_a_wrong_share_is_told_by_its_kind(truth, share, says):
    assert says in wrong_share(RIGHT | {"share": share}, truth)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": NORM, "second": CONV},
        {"share": 0.9},
        {"bounds": "memory-bound, memory-bound, memory-bound"},
        {"ceiling": 9.0},
    ],
    ids=str,
)
def test_no_sentence_tells_the_right_answer(truth, wrong):
    """Other figures are not in it: neither a share in any form, nor a name, nor the ceiling."""
    text = " ".join(problems(RIGHT | wrong, truth).values())
    assert text
    assert not re.search(r"60(\.0)?%|0\.6\b|20(\.0)?%|0\.2\b|2\.50?\b", text)


def test_a_first_pass_that_was_not_warmed_up_is_told(truth):
    slow_first = 13 * np.arange(2 * PASSES) ** 2 + np.where(
        np.arange(2 * PASSES) < 2, 900_000, 300_000
    )
    cold = replace(truth, cold=replace(truth.capture, times={CONV: slow_first}))
    raw = replace(made_up(SHARES), times={CONV: slow_first + 7})
    complaint = genuine(raw, cold)
    assert "without recording first" in complaint
    assert isinstance(complaint, TimingComplaint), "another program may be why"
    assert isinstance(genuine(raw, cold, warm_ups=1), TimingComplaint)
    for recorded_cold in (raw, made_up(SHARES)):  # counted, whatever the times say
        at_once = genuine(recorded_cold, cold, warm_ups=0)
        assert "did not run the model before" in at_once
        assert not isinstance(at_once, TimingComplaint), "no other program explains that"
    assert genuine(raw, truth) is None, (
        "where a cold pass takes no longer, there is nothing to tell"
    )
    assert genuine(made_up(SHARES), cold) is None


def test_near_ties_may_stand_in_either_order(truth):
    tied = dict(truth.shares) | {POOL: Share(POOL, 0.19, 0.004)}
    swapped = RIGHT | {"second": POOL, "third": NORM}
    assert problems(swapped, replace(truth, shares=tied)) == {}


def test_small_operators_within_three_tenths_may_stand_in_either_order(truth):
    """However near they are in one check's captures, another process shows the other order."""
    for pool, other, is_tie in ((0.055, 0.074, True), (0.04, 0.074, False)):
        shares = truth.shares | {NORM: Share(NORM, 0.2, 0.005), POOL: Share(POOL, pool, 0.001)}
        shares |= {ADD: Share(ADD, other, 0.001)}
        answers = RIGHT | {"third": POOL}
        now = replace(truth, shares=shares)
        assert (wrong_operators(answers, now) is None) == is_tie
        assert wrong_operators(RIGHT | {"third": ADD}, now) is None
        if is_tie:
            assert either_order(answers, now).startswith("the third place is too close to call")
            assert either_order(RIGHT | {"third": ADD}, now) == ""


def test_near_the_balance_either_bound_is_right(truth):
    grey = replace(truth, intensity=truth.intensity | {CONV: 12.0})
    assert problems(RIGHT | {"bounds": "memory-bound, memory-bound, memory-bound"}, grey) == {}


@pytest.mark.parametrize(
    ("reached", "right"),
    [
        (None, {"memory-bound", "compute-bound"}),
        (0.12, {"far below both"}),
        (0.30, {"memory-bound", "compute-bound", "far below both"}),
        (0.60, {"memory-bound", "compute-bound"}),
    ],
    ids=["on a CPU", "far", "between", "near"],
)
def test_near_a_gpus_balance_the_distance_to_its_roof_tells_operators_apart(truth, reached, right):
    """As FLOP per byte of ResNet-50's convolutions: within a factor of two of the balance of an
    A100, an H100 and an H200.
    """
    shares = {} if reached is None else {CONV: reached, NORM: 0.8, POOL: 0.7}
    grey = replace(truth, intensity=truth.intensity | {CONV: 12.0}, reached=shares)
    answered = {
        answer: problems(RIGHT | {"bounds": f"{answer}, {MEMORY}, {MEMORY}"}, grey)
        for answer in (MEMORY, COMPUTE, FAR)
    }
    assert {answer for answer, problem in answered.items() if not problem} == right
    sentences = [problem["wrong_bounds"] for problem in answered.values() if problem]
    assert all(
        ("below 33%, neither" in sentence) == (reached is not None) for sentence in sentences
    )
    assert problems(measured_answers(check._details(grey, 4)), grey) == {}


def test_the_distance_to_the_roof_is_the_least_time_that_the_ceilings_allow_over_the_time_taken():
    capture = made_up(
        {CONV: 0.5, NORM: 0.25},
        calls=[OperatorCall(CONV, ((8,),), ()), OperatorCall(NORM, ((8,),), ())],
    )
    work = {CONV: (4e6, 1e3), NORM: (1e3, 1e6)}
    reached = reached_shares(
        capture, lambda name, _dims, _concrete: work[name], bytes_per_s=1e10, flops_per_s=2e10
    )
    seconds = {name: capture.times[name].sum() / 1e9 for name in work}
    assert reached == pytest.approx(
        {CONV: PASSES * 2e-4 / seconds[CONV], NORM: PASSES * 1e-4 / seconds[NORM]}
    )


def genuine(capture, truth, passes=PASSES, warm_ups=None):
    return not_genuine(capture, truth, passes, 99.0, 102.0, warm_ups)


def test_a_genuine_capture_is_accepted_for_any_number_of_passes(truth):
    assert genuine(made_up(SHARES), truth) is None
    assert genuine(made_up(SHARES, passes=6), truth, 6) is None


@pytest.mark.parametrize(
    ("capture", "says"),
    [
        (made_up(SHARES, passes=7), "warm-up passes"),
        (made_up(SHARES, passes=2), "schedule spend passes"),
        (made_up(SHARES, begin_s=40.0), "an old one, or was changed"),
        (made_up(SHARES, calls=[OperatorCall(OUTER, (), ())]), "record_shapes"),
        (
            made_up(SHARES, calls=[OperatorCall(OUTER, ((1, 3, 8, 8), (8, 3, 3, 3)), ())]),
            "not those of this model",
        ),
        (
            made_up(SHARES, calls=[*LAYER_CALLS[1:]]),
            "incomplete passes",
        ),
        *((replace(made_up(SHARES), altered=(name,)), why) for name, why in ALTERATIONS.items()),
        (
            replace(made_up(SHARES), times={CONV: np.full(2 * PASSES, 300_000)}),
            "a copy of the other",
        ),
        (replace(made_up(SHARES), times={NORM: np.arange(2 * PASSES)}), "lacks the operator"),
        (made_up(SHARES | {"aten::softmax": 0.001}), "more than the passes: aten::softmax."),
    ],
)
def test_a_capture_that_is_not_genuine_is_told_by_its_kind(truth, capture, says):
    assert says in genuine(capture, truth)


def test_a_learner_s_own_capture_is_told_what_it_lacks(tmp_path):
    assert missing_parts(made_up(SHARES), PASSES) == []
    bare = replace(made_up(SHARES), calls=[])
    assert missing_parts(bare, PASSES) == [NO_SHAPES]
    assert missing_parts(made_up(SHARES), PASSES - 1) == [
        f"The capture holds {PASSES} passes; {PASSES - 1} are asked for."
    ]
    for runs, said in ((0, [NOT_RUN_BEFORE]), (1, []), (None, [])):
        assert missing_parts(replace(made_up(SHARES), runs_before=runs), PASSES) == said
    under_autocast = replace(made_up(SHARES, passes=2 * PASSES), altered=("precision",))
    assert missing_parts(under_autocast, PASSES) == [ALTERATIONS["precision"]]
    added = b'{"runs_before": 3, "altered": ["layout"], '
    read = read_capture(trace_bytes([event("aten::mm", 1.0, 1.0)]).replace(b"{", added, 1))
    assert (read.runs_before, read.altered) == (3, ("layout",))
    lab = find_lab("resnet-top-ops")
    (tmp_path / "trace").write_text("{}")
    assert "cannot be read" in kind_of(lab).missing_parts(lab, "cpu", tmp_path / "trace")[0]


def test_times_of_another_machine_are_refused(truth):
    assert other_times(made_up(SHARES, slowed=[1]), truth, PASSES) is None
    other = made_up({CONV: 0.2, NORM: 0.5, POOL: 0.2, ADD: 0.09})
    assert "not recorded as they run" in other_times(other, truth, PASSES)


def test_a_gpu_capture_without_gpu_work_is_refused(truth):
    gpu = replace(truth, capture=replace(truth.capture, has_device=True))
    assert "ProfilerActivity.CUDA" in genuine(made_up(SHARES), gpu)


# ------------------------------------------------------------------------------------------ files
# and statistics


def event(name, ts, dur, dims=None):
    args = {} if dims is None else {"Input Dims": dims, "Concrete Inputs": [""]}
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def trace_bytes(events):
    return json.dumps(
        {"schemaVersion": 1, "baseTimeNanoseconds": 5_000_000_000, "traceEvents": events}
    ).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_is_read_with_self_times_shapes_and_clock(pack):
    events = [
        event("aten::conv2d", 1e6, 100.0, [[4, 3], [8]]),
        event("aten::inner", 1e6 + 10, 80.0),
    ]
    capture = read_capture(pack(trace_bytes(events)))
    assert capture.operators["aten::inner"].share == pytest.approx(0.8)
    assert {name: times.tolist() for name, times in capture.times.items()} == {
        "aten::conv2d": [20_000],
        "aten::inner": [80_000],
    }
    assert capture.calls[0].dims == ((4, 3), (8,))
    assert (capture.begin_s, capture.end_s) == pytest.approx((6.0, 6.0001))


def test_a_trace_of_too_many_calls_or_of_calls_too_deep_is_refused_before_they_are_added_up(
    monkeypatch,
):
    def nested(depth):
        return trace_bytes([event(f"aten::{i}", 1e6 + i, 1e4 - 2 * i) for i in range(depth + 1)])

    monkeypatch.setattr(capture, "MAX_CALLS", capture.MAX_NESTED + 2)
    assert read_capture(nested(capture.MAX_NESTED)).count("aten::0") == 1
    monkeypatch.setattr(capture, "find_operators", None)
    with pytest.raises(CaptureError, match="more than 200 deep"):
        read_capture(nested(capture.MAX_NESTED + 1))
    monkeypatch.setattr(capture, "build_calls", None)
    with pytest.raises(CaptureError, match="more than 202 calls"):
        read_capture(nested(capture.MAX_NESTED + 2))


MULTIPLIED = trace_bytes([event("aten::mm", 1.0, 1.0)])
SHAPELESS = trace_bytes([event("aten::mm", 1.0, 1.0, [])])
NESTED = b"[" * 600 + b"]" * 600


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"nonsense",
        gzip.compress(b"{}")[:-4],
        b"\x1f\x8bxx",
        trace_bytes([]),
        b'{"traceEvents": 3}',
        b'{"traceEvents":[' + b'{"a":' * 1_000_000,
        MULTIPLIED.replace(b"5000000000", b"5" * 400),
        trace_bytes([event("aten::mm", 1.0, 1.0, 5)]),
        trace_bytes([event("aten::mm", 1.0, 1.0, [[1 << 80]])]),
        SHAPELESS.replace(b'Dims": []', b'Dims": ' + NESTED),
        SHAPELESS.replace(b'Inputs": [', b'Inputs": [' + NESTED + b","),
    ],
    ids=range(13),
)
def test_what_is_no_trace_is_an_error_with_a_remedy(data):
    with pytest.raises(CaptureError) as error:
        read_capture(data)
    assert error.value.remedy


@pytest.mark.parametrize(("byte", "mib"), [(b"[", 8), (b"\0", 65)])
def test_what_unpacks_to_more_than_it_seems_is_no_trace(byte, mib):
    test_what_is_no_trace_is_an_error_with_a_remedy(gzip.compress(byte * (mib << 20)))


def test_an_empty_trace_is_told_what_a_schedule_does():
    """torch.profiler's own, of a schedule that began again after the last pass."""
    began_again = b'{"traceEvents": [{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)"}]}'
    with pytest.raises(CaptureError) as error:
        read_capture(began_again)
    assert "repeat=1" in error.value.remedy


def known(captures):
    shares = estimate_shares(captures, PASSES)
    return shares, uncertainty(shares)


def test_alike_captures_are_known_well():
    shares, error = known(
        [made_up(SHARES | {CONV: 0.60 + wobble}) for wobble in (0.001, -0.001, 0.0, 0.002)]
    )
    assert shares[CONV].share == pytest.approx(0.60, abs=0.003)
    assert error < 0.01


def test_some_disturbed_passes_do_not_move_the_shares():
    quiet, disturbed = made_up(SHARES), made_up(SHARES, slowed=[0, 2])
    assert sum(disturbed.times[NORM]) > 4 * sum(quiet.times[NORM])
    shares, error = known([disturbed] * 4)
    assert shares[NORM].share == pytest.approx(0.20, abs=0.003)
    assert error < 0.01
    assert known([*[quiet] * 4, made_up(SHARES, slowed=range(PASSES))])[1] < 0.01


def test_too_many_disturbed_passes_are_told_as_uncertainty():
    assert known([made_up(SHARES, slowed=[0, 1, 2])] * 4)[1] > 0.04


def test_shares_that_scatter_or_are_too_few_are_not_known():
    scattered = [made_up(SHARES | {CONV: share}) for share in (0.3, 0.6, 0.5, 0.7, 0.4)]
    assert known(scattered)[1] > 0.04
    assert known(scattered[:2])[1] == 1.0


def test_calls_that_differ_from_pass_to_pass_count_as_a_mean():
    odd = replace(
        made_up(SHARES), times={CONV: np.array([6, 7, 8, 9, 10]), NORM: np.array([10, 10, 10, 10])}
    )
    assert undisturbed_shares([odd], PASSES)[CONV] == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------ whole
# checks, on made-up traces

PASS = [
    (
        "aten::conv2d",
        "aten::mkldnn_convolution",
        7000,
        [[4, 3, 224, 224], [64, 3, 7, 7], [], [], [], [], []],
    ),
    ("aten::batch_norm", "aten::native_batch_norm", 1000, [[4, 64, 112, 112], [64]]),
    (
        "aten::max_pool2d",
        "aten::max_pool2d_with_indices",
        800,
        [[4, 64, 112, 112], [], [], [], [], []],
    ),
    ("aten::linear", "aten::addmm", 300, [[1000], [4, 2048], [2048, 1000], [], []]),
]
"""Of one pass: an operator, the one that it calls, its microseconds and the shapes of both."""
VALUES = {
    "aten::mkldnn_convolution": ["", "", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"],
    "aten::max_pool2d_with_indices": ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"],
}
ANSWERS = {
    "first": "aten::mkldnn_convolution",
    "second": "aten::native_batch_norm",
    "third": "aten::max_pool2d_with_indices",
    "share": 0.767,
    "bounds": "compute-bound, memory-bound, memory-bound",
    "ceiling": 4.3,
}


CPU_ONLY = {
    "aten::addmm": 9000,
    "aten::max_pool2d_with_indices": 5000,
    "aten::native_batch_norm": 700,
}
"""Microseconds that launching takes on a GPU's host, where it takes others than the kernel."""


CLASSES = [3, 950, 7, 7]
"""Of the four pictures, as the model classifies them."""


def recorded(passes, rng, begin_s, device="cpu", cold=(), marks=CLASSES):
    """The bytes of a trace of so many passes: no two take the same time. Operators in `cold` take
    45 times as long in the first.
    """
    events, now = [], 0.0
    for number, (outer, inner, micros, dims) in enumerate(PASS * passes):
        first = number < len(PASS)
        taken = micros * (1 + 0.002 * rng.random()) * (45 if first and inner in cold else 1)
        host = taken if device == "cpu" else CPU_ONLY.get(inner, 50)
        events += [event("aten::empty", now + each, 1) for each in (0, 2)]
        events += [event(outer, now + 4, host + 10, dims), event(inner, now + 9, host, dims)]
        events[-1]["args"]["Concrete Inputs"] = VALUES.get(inner, [""])
        if device == "cuda":
            events += launch(number, now + 10, 30_000.0 * number, taken)
        now += host + 20
        if outer == PASS[-1][0]:
            events += [
                event(MARK, now + each, 1, [[index + 1]]) for each, index in enumerate(marks)
            ]
            now += 10
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": int(begin_s * 1e9), "traceEvents": events}
    return np.frombuffer(json.dumps(trace).encode(), dtype=np.uint8)


def launch(number, ts, kernel_ts, dur):
    """A kernel, and the runtime call that launches it."""
    linked = {"correlation": number + 1}
    call = event("cudaLaunchKernel", ts, 3) | {"cat": "cuda_runtime", "args": linked}
    kernel = {"cat": "kernel", "pid": 0, "tid": 7, "args": linked | {"device": 0, "stream": 7}}
    return [call, event("some_kernel", kernel_ts, dur) | kernel]


class Recorder:
    """Stands where a worker stands: the reference's answers, or a learner's that records as many
    passes more as it is told.
    """

    extra_passes = 0
    warm_ups = 3
    altered = ""
    writes = True
    seconds = 60.0
    marks = CLASSES

    def __init__(self, role, device):
        self.role, self.device, self.worker, self.rng = (
            role,
            device,
            self,
            np.random.default_rng(len(role)),
        )

    @classmethod
    def start(cls, context, role, folder, entry, limits):
        return cls(role, context.device)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def cpu_s(self):
        return 0.0

    def call(self, inputs):
        if len(inputs) == 3 and inputs[0] == "probe":
            return 0.0, [np.array([25e9, 160e9]), "cpu"]
        if len(inputs) == 3 and inputs[0] == "classes":
            return 0.0, [np.array(CLASSES)]
        if self.role == "learner" and not self.writes:
            return 0.0, [np.zeros(0, np.uint8), 0, ""]
        passes = inputs[-1] + (self.extra_passes if self.role == "learner" else 0)
        cold = ("aten::addmm",) if len(inputs) == 3 and inputs[0] == "cold" else ()
        marked = self.role == "learner" or inputs[0] == "marked"
        trace = recorded(
            passes, self.rng, time.time(), self.device, cold, self.marks if marked else ()
        )
        if self.role == "learner":
            return self.seconds, [trace, self.warm_ups, self.altered]
        return self.seconds, [trace]


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """The verdict on a workspace with the solution's script and these answers, by `check_lab`; only
    the workers are stood in for.
    """
    monkeypatch.setattr(check, "CallSession", Recorder)
    monkeypatch.setattr(
        check.LoadMeter, "cores", lambda _: 0.0
    )  # stand-ins are done within a tick of its clock
    (tmp_path / "photos" / "small").mkdir(parents=True)
    Image.new("RGB", (300, 300)).save(tmp_path / "photos" / "small" / "0.jpg")
    lab = find_lab("resnet-top-ops")

    def checked_as(answers, device="cpu"):
        lay_out_answers(tmp_path / "work", answers)
        return check_lab(lab, tmp_path / "work", device, data=tmp_path / "photos")

    return checked_as


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_solution_s_figures_of_another_machine_do_not_fail_it_here(
    checked, tmp_path, monkeypatch, device
):
    monkeypatch.setattr("bottleneck_lab.course.proving.data_folder", lambda _: tmp_path / "photos")
    lab = find_lab("resnet-top-ops")
    assert checked(load_answers(lab.solution), device).reason == "wrong diagnosis"
    assert proving.check(lab, lab.solution, device).outcome == "PASS"
    monkeypatch.setattr(Recorder, "writes", False)
    assert failed(proving.check(lab, lab.solution, device)) == ["genuine-capture"]


@pytest.mark.parametrize(("answers", "checks"), [(ANSWERS, 1), (ANSWERS | {"share": 0.5}, 2)])
def test_a_mutant_that_fails_for_its_own_criterion_alone_is_checked_once(
    checked, tmp_path, monkeypatch, answers, checks
):
    monkeypatch.setattr(proving, "data_folder", lambda _: tmp_path / "photos")
    monkeypatch.setattr(
        proving, "lay_out", lambda _lab, _folder, workspace: lay_out_answers(workspace, answers)
    )
    monkeypatch.setattr(Recorder, "marks", [])
    made, check_once = [], proving._check_once
    monkeypatch.setattr(
        proving, "_check_once", lambda *arguments: made.append(1) or check_once(*arguments)
    )
    (tmp_path / "mutant").mkdir()
    verdict = proving.check(
        find_lab("resnet-top-ops"), tmp_path / "mutant", "cpu", breaks="genuine-capture"
    )
    assert "genuine-capture" in failed(verdict)
    assert len(made) == checks


def lay_out_answers(workspace, answers):
    shutil.copytree(find_lab("resnet-top-ops").solution, workspace, dirs_exist_ok=True)
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in answers.items())
    (workspace / "diagnosis.toml").write_text(text)


def failed(verdict):
    return [result.id for result in verdict.criteria if result.holds is False]


EXACT = [
    {"first": ""},
    {"first": "aten::nonsense"},
    {"share": "much"},
    {"bounds": "foo"},
    {"ceiling": "high"},
    {"first": ANSWERS["second"], "second": ANSWERS["first"]},
    {"share": 0.5},
    {"bounds": "memory-bound, memory-bound, memory-bound"},
    {"ceiling": 1.3},
]
LATE = {"second": ANSWERS["third"], "third": "aten::addmm"}
OFF = {"share": 0.62, "ceiling": 2.63}
BY_TIME = [LATE, OFF]


@pytest.mark.parametrize(
    ("wrong", "outcome"),
    [*((one, "FAIL") for one in EXACT), *((one, "INCONCLUSIVE") for one in BY_TIME)],
)
def test_beside_other_programs_only_what_hangs_on_times_is_spared(
    checked, monkeypatch, wrong, outcome
):
    monkeypatch.setattr(check.LoadMeter, "cores", lambda _: 0.9)
    assert checked(ANSWERS | wrong).outcome == outcome


@pytest.mark.parametrize(
    ("balances", "outcome"), [((20.0, 20.0), "FAIL"), ((20.0, 60.0), "INCONCLUSIVE")], ids=str
)
def test_beside_other_programs_a_bound_is_spared_only_if_a_measured_balance_explains_it(
    checked, monkeypatch, balances, outcome
):
    """The convolution does 51 FLOP a byte: out of reach of a balance of 20, not of one of 60."""
    monkeypatch.setattr(check.LoadMeter, "cores", lambda _: 1.4)
    probed, call = itertools.cycle(balances), Recorder.call

    def probe(recorder, inputs):
        if len(inputs) == 3 and inputs[0] == "probe":
            return 0.0, [np.array([100e9 / next(probed), 100e9]), "cpu"]
        return call(recorder, inputs)

    monkeypatch.setattr(Recorder, "call", probe)
    monkeypatch.setattr(
        check, "intensities", lambda *_: dict.fromkeys(PROBED, 0.25) | {PROBED[0]: 51.0}
    )
    verdict = checked(ANSWERS | {"bounds": "memory-bound, memory-bound, memory-bound"})
    assert verdict.outcome == outcome
    assert ("cores busy" in verdict.summary) == (outcome == "INCONCLUSIVE")


PROBED = [ANSWERS[rank] for rank in PLACES]


def test_a_saved_balance_is_named_where_the_answers_would_be_right_by_it(checked, monkeypatch):
    """The check's own is 160 GFLOP/s over 25 GB/s: 6.4; the convolution does 12 FLOP a byte."""
    monkeypatch.setattr(
        check, "intensities", lambda *_: dict.fromkeys(PROBED, 0.25) | {PROBED[0]: 16.0}
    )
    machine = Machine("CPU", {"fp32": 96e9}, 5e9, threads=1)
    monkeypatch.setattr(check, "stored_ceilings", lambda *_: machine)
    by_saved = ANSWERS | {"bounds": "memory-bound, memory-bound, memory-bound"}
    notes = " ".join(checked(by_saved).notes)
    assert "`lab doctor --measure` saved here, 19 FLOP/byte. The check measured 6.4" in notes
    assert "lab doctor --measure" not in " ".join(checked(ANSWERS).notes)


def test_a_pass_has_one_figure_an_answer(truth):
    assert described_answers(RIGHT, truth) == {
        "top-operators": "",
        "share": "60.0%; measured 60.0% ± 0.5 points",
        "bounds": "60, 0.25, 0.3 FLOP/byte",
        "ceiling": "2.50x, which follows from your share",
    }
    wide = dict(truth.shares) | {CONV: Share(CONV, 0.60, 0.04, fresh=0.55)}
    answers = RIGHT | {"share": 0.48, "ceiling": 1.92}
    assert problems(answers, replace(truth, shares=wide)) == {}
    far = described_answers(answers, replace(truth, shares=wide))
    assert far["share"] == (
        "48.0%; measured 60.0% ± 4.0 points, and 55.0% in a fresh process; either is right"
    )


def test_on_a_machine_too_busy_to_know_the_shares_what_is_certainly_wrong_fails(
    checked, monkeypatch
):
    monkeypatch.setattr(check, "uncertainty", lambda _: 0.1)
    clock = itertools.count(step=30.0)
    made_up = SimpleNamespace(monotonic=lambda: next(clock), time=time.time)
    monkeypatch.setattr(check, "time", made_up)
    right = checked(ANSWERS)
    assert right.outcome == "INCONCLUSIVE"
    assert "still uncertain by 10 points" in right.summary
    assert right.advice == [WHEN_QUIET]
    assert checked(ANSWERS | OFF).outcome == "INCONCLUSIVE"
    wrong = checked(ANSWERS | {"first": "aten::conv2d", "share": 0.2})
    assert (wrong.outcome, wrong.reason) == ("FAIL", "wrong diagnosis")
    assert failed(wrong) == ["top-operators", "share", "bounds", "ceiling"]
    held = {each.id: each.holds for each in wrong.criteria}
    assert held["genuine-capture"] is None
    assert "too busy" in wrong.notes[0]


def test_a_script_that_wrote_no_trace_fails_beside_other_programs_too(checked, monkeypatch):
    monkeypatch.setattr(check.LoadMeter, "cores", lambda _: 0.9)
    monkeypatch.setattr(Recorder, "writes", False)
    verdict = checked(ANSWERS)
    assert failed(verdict) == ["genuine-capture"]
    assert "wrote no trace" in verdict.summary


def test_a_script_is_judged_before_the_timing_and_all_its_faults_are_named(checked, monkeypatch):
    monkeypatch.setattr(check, "_find_truth", lambda *_: pytest.fail("nothing is to be timed"))
    monkeypatch.setattr(Recorder, "extra_passes", 1)
    monkeypatch.setattr(Recorder, "warm_ups", 0)
    verdict = checked(ANSWERS)
    assert failed(verdict) == ["genuine-capture"]
    assert "Are the warm-up passes in it?" in verdict.summary
    assert NOT_RUN_BEFORE in verdict.summary
    assert [each.holds for each in verdict.criteria] == [False, None, None, None, None]


@pytest.mark.parametrize("name", ALTERATIONS)
def test_a_script_that_alters_what_it_is_given_is_told_that_alone(checked, monkeypatch, name):
    monkeypatch.setattr(check, "_find_truth", lambda *_: pytest.fail("nothing is to be timed"))
    monkeypatch.setattr(Recorder, "altered", name)
    # Autocast records each layer twice.
    monkeypatch.setattr(Recorder, "extra_passes", 4 if name == "precision" else 0)
    verdict = checked(ANSWERS)
    assert failed(verdict) == ["genuine-capture"]
    assert ALTERATIONS[name] in verdict.summary
    assert "passes;" not in verdict.summary


def test_a_program_that_comes_for_the_learners_capture_spares_that_capture_and_no_answer(
    checked, monkeypatch
):
    readings = []
    monkeypatch.setattr(
        check.LoadMeter,
        "cores",
        lambda _: readings.append(1) or (0.0 if len(readings) % 2 else 0.9),
    )
    monkeypatch.setattr(check, "other_times", lambda *_: TimingComplaint("It was slow."))
    verdict = checked(ANSWERS)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "cores busy" in verdict.summary
    assert checked(ANSWERS | {"ceiling": 1.3}).outcome == "FAIL"


def test_beside_other_programs_a_miss_is_not_held_against_an_answer(checked, monkeypatch):
    monkeypatch.setattr(check.LoadMeter, "cores", lambda _: 0.9)
    verdict = checked(ANSWERS | OFF)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "cores busy" in verdict.summary
    passed = checked(ANSWERS)
    assert passed.outcome == "PASS"
    assert "its figures are less certain" in passed.notes[0]
    assert checked({}).outcome == "FAIL"


@pytest.mark.parametrize("by_s", [-3600, 3600])
def test_a_wall_clock_that_is_set_while_the_script_records_is_allowed_for(
    checked, monkeypatch, by_s
):
    honest, call = time.time, Recorder.call

    def set_before(recorder, inputs):
        if recorder.role == "learner":
            monkeypatch.setattr(time, "time", lambda: honest() + by_s)
        return call(recorder, inputs)

    monkeypatch.setattr(Recorder, "call", set_before)
    verdict = checked(ANSWERS)
    assert verdict.outcome == "PASS", verdict.summary


def test_a_capture_of_other_pictures_or_of_no_run_is_not_genuine(checked, monkeypatch):
    monkeypatch.setattr(Recorder, "marks", [])
    assert "pictures that `record` was given" in checked(ANSWERS).summary
    monkeypatch.setattr(Recorder, "marks", [950, 7, 8, 9])
    assert failed(checked(ANSWERS)) == ["genuine-capture"]
    monkeypatch.setattr(Recorder, "marks", [3, 950, 7, 8])  # rounding may decide one of four
    assert checked(ANSWERS).outcome == "PASS"


def test_a_capture_that_lasts_longer_than_the_script_ran_is_not_of_this_run(checked, monkeypatch):
    monkeypatch.setattr(Recorder, "seconds", 0.01)
    verdict = checked(ANSWERS)
    assert failed(verdict) == ["genuine-capture"]
    assert "longer than your script ran" in verdict.summary


def test_right_answers_and_a_genuine_capture_pass(checked):
    verdict = checked(ANSWERS)
    assert verdict.outcome == "PASS", (verdict.summary, verdict.measurement)
    figures = {each.id: each.counted for each in verdict.criteria}
    assert figures["share"].startswith("76.7%; ")
    assert figures["bounds"].endswith(" FLOP/byte")
    partly = checked(ANSWERS | OFF)
    assert not any(each.counted for each in partly.criteria), "they would answer the questions"


@pytest.mark.parametrize(
    ("criterion", "wrong"),
    [
        (
            "top-operators",
            {
                "second": ANSWERS["third"],
                "third": "aten::addmm",
            },
        ),
        ("share", OFF),
        ("bounds", {"bounds": "memory-bound, memory-bound, memory-bound"}),
        ("ceiling", {"ceiling": 1.3}),
    ],
)
def test_each_criterion_fails_for_its_own_reason_where_all_else_is_right(checked, criterion, wrong):
    verdict = checked(ANSWERS | wrong)
    assert (verdict.outcome, verdict.reason) == ("FAIL", "wrong diagnosis")
    assert failed(verdict) == [criterion], verdict.summary


def test_the_capture_fails_alone_where_the_answers_are_right(checked, monkeypatch):
    monkeypatch.setattr(Recorder, "extra_passes", 3)
    verdict = checked(ANSWERS)
    assert failed(verdict) == ["genuine-capture"]
    assert verdict.reason == "wrong output"
    assert "warm-up passes" in verdict.summary


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("aten::conv2d", "aten::mkldnn_convolution", "aten::batch_norm"), "order by total time"),
        (("aten::empty", "aten::addmm", "aten::native_batch_norm"), "by number of calls"),
        (("aten::mkldnn_convolution", "aten::addmm", "aten::native_batch_norm"), "cold passes"),
    ],
)
def test_a_wrong_order_is_told_apart_in_a_recorded_trace(checked, names, says, device):
    verdict = checked(ANSWERS | dict(zip(PLACES, names, strict=True)), device)
    assert says in next(
        result.sentence for result in verdict.criteria if result.id == "top-operators"
    )


def test_times_on_the_host_are_told_apart_from_the_gpus(checked):
    assert checked(ANSWERS, "cuda").outcome == "PASS"
    names = ("aten::addmm", "aten::max_pool2d_with_indices", "aten::native_batch_norm")
    sentences = {
        r.id: r.sentence
        for r in checked(ANSWERS | dict(zip(PLACES, names, strict=True)), "cuda").criteria
    }
    assert "by CPU time" in sentences["top-operators"]


@pytest.mark.parametrize(
    ("share", "says"),
    [(0.38, "summed total times"), (0.06, "share of the calls"), (0.56, "cold passes")],
)
def test_a_wrong_share_is_told_apart_in_a_recorded_trace(checked, share, says):
    sentences = {r.id: r.sentence for r in checked(ANSWERS | {"share": share}).criteria}
    assert says in sentences["share"]
