"""The `finding` kind: reading a capture, knowing the shares, and telling right answers from each kind of wrong one."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bottleneck_lab.analysis.operators import OperatorRow
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.measure import finding as f

PASSES = 4
CONV, NORM, POOL, ADD, OUTER = "aten::conv", "aten::norm", "aten::pool", "aten::add_", "aten::conv2d"
LAYER_CALLS = [f.Call(OUTER, ((4, 3, 8, 8), (8, 3, 3, 3)), ())] * 2 + [f.Call("aten::linear", ((4, 8), (10, 8)), ())]
RIGHT = {
    "first": CONV, "first_share": 0.60, "first_bound": "compute-bound",
    "second": NORM, "second_share": 0.20, "second_bound": "memory-bound",
    "third": "pool", "third_share": 0.12, "third_bound": "memory-bound",
    "ceiling": 2.5,
}  # fmt: skip


def row(name, share, calls=1, total=None):
    return OperatorRow(name, calls, int(1000 * share), int(1000 * (total or share)), 0, 0, share)


def made_up(shares, *, passes=PASSES, calls=None, begin_s=100.0, device=False, slowed=()):
    """A capture; in the passes `slowed` every call takes longer, as when another program runs, and those of NORM the longest."""
    rows = {name: row(name, share, 2) for name, share in shares.items()}
    rows[OUTER] = row(OUTER, 0.002, 50, total=0.70)
    rows["aten::empty"] = row("aten::empty", 0.001, 900)
    rows["aten::linear"] = row("aten::linear", 0.003, passes, total=0.01)
    slower = np.array([[2.0 if number in slowed else 1.0] for number in range(passes)])
    times = {
        name: ((1e6 * each.share + np.arange(passes)[:, None]) * slower ** (5 if name == NORM else 1) * [0.25, 0.75])
        .round()
        .astype(np.int64)
        .ravel()
        for name, each in rows.items()
    }
    return f.Capture(rows, (calls or LAYER_CALLS) * passes, begin_s, begin_s + 1, device, times)


SHARES = {CONV: 0.60, NORM: 0.20, POOL: 0.12, ADD: 0.074}
COLD = {CONV: 0.30, ADD: 0.50, NORM: 0.12, POOL: 0.074}


@pytest.fixture
def truth():
    warm = made_up(SHARES)
    shares = {name: f.Share(name, r.share, 0.005) for name, r in warm.operators.items()}
    return f.Truth(shares, warm, made_up(COLD), 8.0, {CONV: 60.0, NORM: 0.25, POOL: 0.3, ADD: 0.1, OUTER: 60.0})


def problems(answers, truth):
    judges = (f.wrong_operators, f.wrong_shares, f.wrong_bounds, f.wrong_ceiling)
    return {judge.__name__: found for judge in judges if (found := judge(answers, truth))}


def test_right_answers_pass(truth):
    assert problems(RIGHT, truth) == {}


def test_nothing_answered_fails_everywhere(truth):
    assert len(problems({}, truth)) == 4


@pytest.mark.parametrize(
    ("change", "judge", "says"),
    [
        ({"second": POOL, "third": NORM, "second_share": 0.12, "third_share": 0.20}, "wrong_operators", "self time"),
        ({"first_share": 0.70}, "wrong_shares", "not 70.0%"),
        ({"first_bound": "memory-bound"}, "wrong_bounds", "compute-bound"),
        ({"second_bound": "compute-bound"}, "wrong_bounds", "memory-bound"),
        ({"second_bound": "slow"}, "wrong_bounds", "neither"),
        ({"ceiling": 1.67}, "wrong_ceiling", "1 / share"),
        ({"ceiling": 3.0}, "wrong_ceiling", "2.50"),
    ],
)
def test_each_criterion_fails_alone(truth, change, judge, says):
    found = problems(RIGHT | change, truth)
    assert list(found) == [judge]
    assert says in found[judge]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((OUTER, CONV, NORM), "total times"),
        (("aten::empty", OUTER, "aten::linear"), "numbers of calls"),
        ((ADD, CONV, NORM), "cold passes"),
        ((CONV, CONV, NORM), "three different"),
        ((CONV, NORM, "aten::nonsense"), "not in the captures"),
    ],
)
def test_a_wrong_order_is_told_by_its_kind(truth, names, says):
    assert says in f.wrong_operators(dict(zip(f.PLACES, names, strict=True)), truth)


def test_cpu_time_on_a_gpu_is_told(truth):
    rows = dict(truth.capture.operators)
    rows["aten::launch"] = msgspec.structs.replace(row("aten::launch", 0.0), self_ns=9_000)
    gpu = replace(truth, capture=replace(truth.capture, operators=rows, has_device=True))
    assert "times on the CPU" in f.wrong_operators({"first": "launch", "second": CONV, "third": NORM}, gpu)


@pytest.mark.parametrize(
    ("share", "says"),
    [(0.35, "parents are counted"), (0.30, "cold passes"), (0.45, "")],
)
def test_a_wrong_share_is_told_by_its_kind(truth, share, says):
    assert says in f.wrong_shares(RIGHT | {"first_share": share}, truth)


def test_near_ties_may_stand_in_either_order(truth):
    tied = dict(truth.shares) | {POOL: f.Share(POOL, 0.19, 0.004)}
    swapped = RIGHT | {"second": POOL, "third": NORM, "second_share": 0.19, "third_share": 0.2}
    assert problems(swapped, replace(truth, shares=tied)) == {}


def test_near_the_balance_either_bound_is_right(truth):
    grey = replace(truth, intensity=truth.intensity | {CONV: 12.0})
    assert problems(RIGHT | {"first_bound": "memory-bound"}, grey) == {}


def genuine(capture, truth, passes=PASSES):
    return f.not_genuine(capture, truth, passes, 99.0, 102.0)


def test_a_genuine_capture_is_accepted_for_any_number_of_passes(truth):
    assert genuine(made_up(SHARES), truth) is None
    assert genuine(made_up(SHARES, passes=6), truth, 6) is None


@pytest.mark.parametrize(
    ("capture", "says"),
    [
        (made_up(SHARES, passes=7), "warm-up passes"),
        (made_up(SHARES, passes=2), "stopped too early"),
        (made_up(SHARES, begin_s=40.0), "copy of another"),
        (made_up(SHARES, calls=[f.Call(OUTER, (), ())]), "record_shapes"),
        (made_up(SHARES, calls=[f.Call(OUTER, ((1, 3, 8, 8), (8, 3, 3, 3)), ())]), "not those of this model"),
        (made_up(SHARES, calls=[*LAYER_CALLS[1:]]), "parts of passes"),
        (replace(made_up(SHARES), times={CONV: np.full(2 * PASSES, 300_000)}), "written down twice"),
    ],
)
def test_a_capture_that_is_not_genuine_is_told_by_its_kind(truth, capture, says):
    assert says in genuine(capture, truth)


def test_times_of_another_machine_are_refused(truth):
    assert f.other_times(made_up(SHARES, slowed=[1]), truth, PASSES) is None
    other = made_up({CONV: 0.2, NORM: 0.5, POOL: 0.2, ADD: 0.09})
    assert "not recorded as they run" in f.other_times(other, truth, PASSES)


def test_a_gpu_capture_without_gpu_work_is_refused(truth):
    gpu = replace(truth, capture=replace(truth.capture, has_device=True))
    assert "ProfilerActivity.CUDA" in genuine(made_up(SHARES), gpu)


# ------------------------------------------------------------------------------------------ files and statistics


def event(name, ts, dur, dims=None):
    args = {} if dims is None else {"Input Dims": dims, "Concrete Inputs": [""]}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def trace_bytes(events):
    return json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 5_000_000_000, "traceEvents": events}).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_is_read_with_self_times_shapes_and_clock(tmp_path: Path, pack):
    events = [event("aten::conv2d", 1e6, 100.0, [[4, 3], [8]]), event("aten::inner", 1e6 + 10, 80.0)]
    capture = f.read_capture(pack(trace_bytes(events)), tmp_path)
    assert capture.operators["aten::inner"].share == pytest.approx(0.8)
    assert capture.calls[0].dims == ((4, 3), (8,))
    assert (capture.begin_s, capture.end_s) == pytest.approx((6.0, 6.0001))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"nonsense", gzip.compress(b"{}")[:-4], b"\x1f\x8bxx", trace_bytes([]), b'{"traceEvents": 3}',
     gzip.compress(b"[" * (8 << 20)), b'{"traceEvents":[' + b'{"a":' * 1_000_000],
    ids=range(9),
)  # fmt: skip
def test_what_is_no_trace_is_an_error_with_a_remedy(tmp_path, data):
    with pytest.raises(CaptureError) as error:
        f.read_capture(data, tmp_path)
    assert error.value.remedy


def known(captures):
    shares = f.estimate_shares(captures, PASSES)
    return shares, f.uncertainty(shares)


def test_alike_captures_are_known_well():
    shares, error = known([made_up(SHARES | {CONV: 0.60 + wobble}) for wobble in (0.001, -0.001, 0.0, 0.002)])
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
    odd = replace(made_up(SHARES), times={CONV: np.array([6, 7, 8, 9, 10]), NORM: np.array([10, 10, 10, 10])})
    assert f.undisturbed_shares([odd], PASSES)[CONV] == pytest.approx(0.5)
