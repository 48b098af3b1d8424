"""The `finding` kind: nothing is made faster; what the learner says of a workload is checked against the verifier's own captures.

The reference worker captures the pristine workload again and again until the operators' shares are known well enough; the learner's script then has to
make a capture of its own, of secret pictures and a secret number of passes. Answers are graded against the first, by pure functions.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.operators import OperatorRow, build_calls, find_operators, find_self_times
from bottleneck_lab.errors import CaptureError, UsageError
from bottleneck_lab.grading.criteria import Conditions, grade_check
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.process import Limits
from bottleneck_lab.measure.session import CallSession
from bottleneck_lab.trace.load import load
from bottleneck_lab.workspace.diagnosis_file import load_answers

PLACES = ("first", "second", "third")
MAX_TRACE_BYTES = 512 << 20
TIE_SHARE = 0.01
"""Shares this close are a tie, whatever the noise: no two profilers' overheads agree better."""
SHARE_TOLERANCE = 0.05
CEILING_TOLERANCE = 0.10
BALANCE_FACTOR = 2.0
"""Within this factor of the machine's balance an operator may be called either: ceilings are not known better."""
FORGED_SHARE = 0.15
"""A capture of the same work on the same machine differs less than this in any operator's share."""
UNDISTURBED = 0.25
"""Of the times that one call of the network took in all passes, the quantile that is taken for its time without other programs.

Measured on two cores with a program that kept one of them busy: plain shares of the convolutions fell from 87 to 75%, those from lower
quartiles came out as 92%; quiet, both say 87%. The least of all times, or single passes, lie no nearer.
"""
LOWER = 0.1
"""The quantile that it is compared with, to see whether other programs have a part in it."""
LEARNER_TRIES = 3
CLOCK_SLACK_S = 2.0

Answers = Mapping[str, Any]
Times = NDArray[np.int64]


# ------------------------------------------------------------------------------------------ reading a capture


class _Args(msgspec.Struct, frozen=True):
    dims: Any = msgspec.field(name="Input Dims", default=None)
    concrete: Any = msgspec.field(name="Concrete Inputs", default=())


class _Event(msgspec.Struct, frozen=True):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None


class _Trace(msgspec.Struct, frozen=True):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


@dataclass(frozen=True)
class Call:
    """One recorded call of an operator: its inputs' shapes, and the values of those inputs that are no tensors."""

    name: str
    dims: tuple[Any, ...]
    concrete: tuple[str, ...]


@dataclass(frozen=True)
class Capture:
    """What a trace says: operators with the largest self time on the device first, every call with shapes, and when it was (Unix time, s)."""

    operators: dict[str, OperatorRow]
    calls: list[Call]
    begin_s: float
    end_s: float
    has_device: bool
    times: dict[str, Times]
    """Nanoseconds of self time on the device of every single call, by operator, in the order of the calls."""

    def count(self, name: str) -> int:
        """How often an operator was called."""
        return self.operators[name].calls if name in self.operators else 0

    def shapes(self, names: set[str]) -> Counter[str]:
        """How often each of these operators met which shapes."""
        return Counter(f"{call.name} {call.dims}" for call in self.calls if call.name in names)


def read_capture(data: bytes, scratch: Path) -> Capture:
    """The capture in the bytes of a Kineto trace, plain or gzip. Raises CaptureError for anything else."""
    file, plain = scratch / "capture.json", _unpacked(data)
    file.write_bytes(plain)
    try:
        trace = msgspec.json.decode(plain, type=_Trace)  # first: what is no trace must not keep the reader busy
        timeline = load(file)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CaptureError(f"The trace cannot be read: {error}.", "Export it with `export_chrome_trace`.") from error
    finally:
        file.unlink()
    tree = build_calls(timeline, python=False)
    rows = find_operators(timeline, tree, top=10_000)
    events = [event for event in trace.events if event.ph == "X" and event.cat == "cpu_op"]
    if not rows or not events:
        raise CaptureError("The trace holds no operators.", "Run the passes inside the profiler's `with` block.")
    begin, end = min(event.ts for event in events), max(event.ts + event.dur for event in events)
    calls = [_call(event) for event in events if event.args is not None and event.args.dims is not None]
    return Capture(
        operators={row.name: row for row in rows},
        calls=calls,
        begin_s=trace.base_ns / 1e9 + begin / 1e6,
        end_s=trace.base_ns / 1e9 + end / 1e6,
        has_device=bool(len(timeline.device)),
        times=find_self_times(timeline, tree),
    )


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data
    unpack = zlib.decompressobj(wbits=31)
    try:
        plain = unpack.decompress(data, MAX_TRACE_BYTES)
    except zlib.error as error:
        raise CaptureError(f"The trace is damaged ({error}).", "Record it again.") from error
    if unpack.unconsumed_tail or not unpack.eof:
        raise CaptureError("The trace is cut off, or larger than 512 MiB.", "Record fewer passes.")
    return plain


def _call(event: _Event) -> Call:
    args = event.args or _Args()
    dims, concrete = args.dims, args.concrete
    return Call(event.name, _frozen(dims), tuple(map(str, concrete)) if isinstance(concrete, list | tuple) else ())


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------ what is true


@dataclass(frozen=True)
class Share:
    """An operator's share (0–1) of all self time on the device, with half the width of its 95% interval."""

    name: str
    share: float
    half_width: float


@dataclass(frozen=True)
class Truth:
    """What the verifier knows: the shares, the captures they are from, one with the cold passes in it, and the roofline."""

    shares: dict[str, Share]
    capture: Capture
    cold: Capture
    balance: float
    """FLOP a byte at which this machine's memory and arithmetic are equally busy."""
    intensity: dict[str, float]
    """FLOP a byte of each operator, from the recorded shapes; operators of unknown work are missing."""

    def ranked(self) -> list[Share]:
        return sorted(self.shares.values(), key=lambda share: -share.share)


def estimate_shares(captures: Sequence[Capture], passes: int) -> dict[str, Share]:
    """Every operator's share of the time without other programs, over captures of `passes` passes each. Fewer than three captures leave all uncertain.

    Half the width of the interval is the statistical error (jackknife over captures) and, on top of it, how far the shares would move if calls were taken
    at a lower quantile yet: on a quiet machine that hardly matters, on a busy one it does.
    """
    share, lower = (undisturbed_shares(captures, passes, quantile) for quantile in (UNDISTURBED, LOWER))
    count = len(captures)
    if count < 3:
        return {name: Share(name, value, 1.0) for name, value in share.items()}
    left_out = [undisturbed_shares([*captures[:n], *captures[n + 1 :]], passes) for n in range(count)]
    found = {}
    for name, value in share.items():
        spread = statistics.pstdev(one.get(name, 0.0) for one in left_out) * math.sqrt(count - 1)
        found[name] = Share(name, value, _student(count) * spread + abs(value - lower[name]))
    return found


def undisturbed_shares(captures: Sequence[Capture], passes: int, quantile: float = UNDISTURBED) -> dict[str, float]:
    """Every operator's share when each call of the network takes the given quantile of the times it took in all passes of all captures."""
    names = {name for capture in captures for name in capture.times}
    times = {name: _pass_ns([by_pass(capture, name, passes) for capture in captures], quantile) for name in names}
    whole = sum(times.values()) or 1.0
    return {name: value / whole for name, value in times.items()}


def by_pass(capture: Capture, name: str, passes: int) -> Times:
    """An operator's self times, passes × calls in a pass; one row with the mean pass's sum where passes differ in their number of calls."""
    times = capture.times.get(name, np.zeros(0, np.int64))
    if len(times) % passes:
        return np.array([[times.sum() // passes]])
    return times.reshape(passes, -1)


def _pass_ns(parts: Sequence[Times], quantile: float) -> float:
    """Nanoseconds in one pass: the sum of each call's quantile over all rows; of whole passes where captures differ in their calls."""
    if len({part.shape[1] for part in parts}) > 1:
        parts = [part.sum(axis=1, keepdims=True) for part in parts]
    return float(np.quantile(np.concatenate(parts), quantile, axis=0).sum())


def _student(count: int) -> float:
    """Two-sided 95% quantile of Student's distribution with `count` − 1 degrees of freedom; the next smaller one where none is listed."""
    table = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09}
    return table[max((key for key in table if key <= count), default=3)]


def uncertainty(shares: Mapping[str, Share]) -> float:
    """Half the width of the widest interval among the largest shares: the places that are asked for, and the next one."""
    largest = sorted(shares.values(), key=lambda share: -share.share)[: len(PLACES) + 1]
    return max(share.half_width for share in largest)


def intensities(capture: Capture, work: Callable[[str, Any, Any], tuple[float, float] | None]) -> dict[str, float]:
    """FLOP a byte of each operator over all its calls: sums of both, so that large calls weigh more."""
    sums: dict[str, tuple[float, float]] = {}
    for call in capture.calls:
        found = work(call.name, call.dims, call.concrete)
        if found is not None:
            flop, moved = sums.get(call.name, (0.0, 0.0))
            sums[call.name] = (flop + found[0], moved + found[1])
    return {name: flop / moved for name, (flop, moved) in sums.items() if moved}


# ------------------------------------------------------------------------------------------ judging the learner's capture


def not_genuine(capture: Capture, truth: Truth, passes: int, begin_s: float, end_s: float) -> str | None:
    """Why the learner's capture is not one of `passes` passes of this model, made between two moments; None when it is."""
    return (
        _incomplete(capture, truth)
        or _other_time(capture, begin_s, end_s)
        or _other_work(capture, truth, passes)
        or _copied_passes(capture, truth, passes)
    )


def _incomplete(capture: Capture, truth: Truth) -> str | None:
    if truth.capture.has_device and not capture.has_device:
        return "The capture has no GPU work in it: `activities` must hold ProfilerActivity.CUDA, and the GPU must be waited for before the end."
    if not any(_is_shape(shape) for call in capture.calls for shape in call.dims):
        return "The capture has no shapes: the profiler needs record_shapes=True."
    return None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) > 0


def _other_time(capture: Capture, begin_s: float, end_s: float) -> str | None:
    if begin_s - CLOCK_SLACK_S <= capture.begin_s and capture.end_s <= end_s + CLOCK_SLACK_S:
        return None
    return "The capture was not made when `record` was called: it is a copy of another one."


def _other_work(capture: Capture, truth: Truth, passes: int) -> str | None:
    """The layers' operators have to have met the very shapes of the model, each once a pass."""
    layers = _layers(truth)
    want, got = truth.capture.shapes(layers), capture.shapes(layers)
    unit = math.gcd(*want.values()) or 1
    if set(want) != set(got):
        return "The operators and shapes in the capture are not those of this model on these pictures."
    found = {shape: got[shape] * unit / want[shape] for shape in want}
    if len(set(found.values())) > 1:
        return "Some layers of the model are in the capture more often than others: it holds parts of passes."
    seen = next(iter(found.values())) * _passes(truth) / unit
    if seen == passes:
        return None
    more = "Are the warm-up passes in it?" if seen > passes else "Was the profiler stopped too early?"
    return f"The capture holds {seen:g} passes; `record` was asked for {passes}. {more}"


def _layers(truth: Truth) -> set[str]:
    """What a model's layers are called, whatever runs below them."""
    return {"aten::conv2d", "aten::batch_norm", "aten::linear", "aten::max_pool2d"} & set(truth.capture.operators)


def _passes(truth: Truth) -> int:
    """Passes in the reference's capture: its network has one fully connected layer."""
    return truth.capture.count("aten::linear")


def _copied_passes(capture: Capture, truth: Truth, passes: int) -> str | None:
    """The same work never takes the same time to the nanosecond in each of many calls."""
    rows = by_pass(capture, truth.ranked()[0].name, passes)
    if len(rows) == passes and len(np.unique(rows, axis=0)) < passes:
        return (
            "Two passes in the capture took the same time to the nanosecond in every call: one was written down twice."
        )
    return None


def other_times(capture: Capture, truth: Truth, passes: int) -> str | None:
    """Why the times in a capture that is genuine otherwise are not those of this machine; None when they are."""
    shares = undisturbed_shares([capture], passes)
    for share in truth.ranked()[: len(PLACES)]:
        seen = shares.get(share.name, 0.0)
        if abs(seen - share.share) > FORGED_SHARE:
            return (
                f"In the capture {share.name} takes {seen:.0%} of the self time, in captures made here beside it {share.share:.0%}: "
                "the passes were not recorded as they run, or the machine was busy."
            )
    return None


# ------------------------------------------------------------------------------------------ judging the answers


def full_name(answer: object) -> str:
    """An operator's name as traces have it: `addmm` and `aten::addmm` are the same answer."""
    text = str(answer or "").strip()
    return text if "::" in text or not text else f"aten::{text}"


def wrong_operators(answers: Answers, truth: Truth) -> str | None:
    """Why the three named operators are not those with the largest self time; near-ties within the noise are accepted in any order."""
    names = [full_name(answers.get(place)) for place in PLACES]
    if not all(names) or len(set(names)) < len(names):
        return "Name three different operators."
    ranked = truth.ranked()
    for place, name, right in zip(PLACES, names, ranked, strict=False):
        own = truth.shares.get(name, Share(name, 0.0, 0.0))
        if own.share + own.half_width + right.half_width + TIE_SHARE < right.share:
            found = f"{own.share:.1%} of the self time" if name in truth.shares else "not in the captures"
            return f"{name} is not {place}: it is {found}, and that place takes {right.share:.1%}. {_other_order(names, truth)}".strip()
    return None


def _other_order(names: list[str], truth: Truth) -> str:
    """Which mistaken order of operators the answer follows, as a sentence; empty when none fits."""
    orders = {
        "That is the order of total times, in which an operator holds all that it calls; sort by self time.": lambda row: (
            _total_ns(row, truth),
            row.total_ns,  # on a GPU a parent's total is just its child's
        ),
        "That is the order of the numbers of calls, not of times.": lambda row: row.calls,
    }
    if truth.capture.has_device:
        orders["That is the order of times on the CPU; on a GPU the device's own time counts."] = lambda row: (
            row.self_ns
        )
    best = {sentence: _top(truth.capture, key) for sentence, key in orders.items()}
    best["That is the order with the first, cold passes counted in; warm up before recording."] = _top(
        truth.cold, lambda row: row.share
    )
    right = [share.name for share in truth.ranked()[: len(PLACES)]]
    fits = {
        sentence: sum(name == other for name, other in zip(names, order, strict=False))
        for sentence, order in best.items()
        if order != right
    }
    sentence = max(fits, key=lambda one: fits[one], default="")
    plain = sum(name == other for name, other in zip(names, right, strict=False))
    return sentence if sentence and fits[sentence] > plain else "Sort by self time on the device."


def _total_ns(row: OperatorRow, truth: Truth) -> int:
    """An operator's time on the device with all that it calls."""
    return row.device_total_ns if truth.capture.has_device else row.total_ns


def _top(capture: Capture, key: Callable[[OperatorRow], Any]) -> list[str]:
    return [row.name for row in sorted(capture.operators.values(), key=key, reverse=True)[: len(PLACES)]]


def wrong_shares(answers: Answers, truth: Truth) -> str | None:
    """Why one of the three shares is off by more than five points of the operator that was named there."""
    for place in PLACES:
        name, answer = full_name(answers.get(place)), _number(answers.get(f"{place}_share"))
        if answer is None:
            return f"`{place}_share` is not given as a number from 0 to 1."
        if name not in truth.shares:
            return f"{name or 'An operator left unnamed'} is not in the captures, so it has no share."
        right = truth.shares[name]
        if abs(answer - right.share) > SHARE_TOLERANCE + right.half_width:
            why = _other_share(name, answer, truth)
            return f"{name} takes {right.share:.1%} (±{right.half_width:.1%}) of the self time, not {answer:.1%}. {why}".strip()
    return None


def _other_share(name: str, answer: float, truth: Truth) -> str:
    """Which mistaken share the answer is, as a sentence; empty when none fits."""
    rows = truth.capture.operators
    row, cold, gpu = rows[name], truth.cold.operators.get(name), truth.capture.has_device
    own = row.device_self_ns if gpu else row.self_ns
    whole = max(sum(each.device_self_ns if gpu else each.self_ns for each in rows.values()), 1)
    with_children = max(sum(_total_ns(each, truth) for each in rows.values()), 1)
    mistakes = {
        "That is its share of all total times, in which parents are counted together with their children.": own
        / with_children,
        "That is its total time, with all that it calls; its self time is asked for.": _total_ns(row, truth) / whole,
        "That is its share of the calls, not of the time.": row.calls / sum(each.calls for each in rows.values()),
        "That is its share with the first, cold passes counted in; warm up before recording.": cold.share
        if cold
        else 0.0,
    }
    if truth.capture.has_device:
        mistakes["That is its share of the CPU's time; on a GPU the device's own time counts."] = row.self_ns / max(
            sum(each.self_ns for each in rows.values()), 1
        )
    near = {sentence: abs(share - answer) for sentence, share in mistakes.items()}
    best = min(near, key=lambda sentence: near[sentence])
    return best if near[best] <= 0.02 else ""


def wrong_bounds(answers: Answers, truth: Truth) -> str | None:
    """Why one of the three operators is not bound by what the answer says: its FLOP a byte against the machine's balance."""
    for place in PLACES:
        name, answer = full_name(answers.get(place)), str(answers.get(f"{place}_bound") or "").strip().lower()
        if answer not in ("memory-bound", "compute-bound"):
            return f"`{place}_bound` is neither 'memory-bound' nor 'compute-bound'."
        intensity = truth.intensity.get(name)
        if intensity is None:
            return f"{name or 'An operator left unnamed'} is none whose work is known here: name an operator that computes."
        ratio = intensity / truth.balance
        if 1 / BALANCE_FACTOR < ratio < BALANCE_FACTOR:
            continue
        right = "compute-bound" if ratio >= 1 else "memory-bound"
        if answer != right:
            return (
                f"{name} is {right}, not {answer}: from its shapes it does {intensity:.2g} floating-point operations for each byte "
                f"it has to move, and this machine can do {truth.balance:.2g} in the time of a byte."
            )
    return None


def wrong_ceiling(answers: Answers, truth: Truth) -> str | None:
    """Why the Amdahl ceiling of the first operator is off by more than a tenth, of the measured share's or of the learner's own share's."""
    answer, name = _number(answers.get("ceiling")), full_name(answers.get("first"))
    if answer is None:
        return "`ceiling` is not given as a number."
    if name not in truth.shares:
        return f"{name or 'An operator left unnamed'} is not in the captures, so it has no ceiling."
    right, own = truth.shares[name], _number(answers.get("first_share"))
    ceilings = [ceiling(min(max(right.share, 0.0), 1.0))]
    if own is not None and 0 <= own <= 1 and abs(own - right.share) <= SHARE_TOLERANCE + right.half_width:
        ceilings.append(ceiling(own))
    if any(abs(answer - one) <= CEILING_TOLERANCE * one for one in ceilings):
        return None
    mistake = " 1 / share is another thing." if abs(answer - 1 / max(right.share, 1e-9)) < 0.05 else ""
    return f"With {name} at no time at all the whole would be {ceilings[-1]:.2f} times as fast, 1 / (1 − share), not {answer:.2f}.{mistake}"


def _number(answer: object) -> float | None:
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        return None
    return float(answer)


# ------------------------------------------------------------------------------------------ measuring


def measure(context: Context) -> Measured:
    """Captures the pristine workload until its shares are known, then the learner's script once, and grades the answers."""
    judge, generator = context.judge(), np.random.default_rng(context.rng.getrandbits(128))
    answers = load_answers(context.workspace)
    scratch = context.janitor.folder
    meter = LoadMeter(own_cpu_s)
    context.progress("starting the reference", 0.05)
    with CallSession.start(context, "reference", context.pristine(), "reference.py", _limits(context)) as reference:
        truth, captures = _find_truth(context, reference, judge, generator, scratch)
        meter_cores = max(0.0, meter.cores() - reference.worker.cpu_s() / max(captures.seconds, 1e-3))
    context.progress("running your script", 0.8)
    with CallSession.start(context, "learner", context.submission, "workload.py", _limits(context)) as learner:
        forged = _learners_capture(context, learner, judge, generator, truth)
        isolation = learner.worker.isolation
    problems = {
        "genuine-capture": forged,
        "top-operators": wrong_operators(answers, truth),
        "shares": wrong_shares(answers, truth),
        "bounds": wrong_bounds(answers, truth),
        "ceiling": wrong_ceiling(answers, truth),
    }
    results = [
        grade_check(context.required(id_), problem, captures.count, "captures") for id_, problem in problems.items()
    ]
    return Measured(
        results,
        isolation=isolation,
        details=_details(truth, captures.count),
        conditions=Conditions(other_cores=meter_cores, cores=os.cpu_count()),
    )


@dataclass(frozen=True)
class Effort:
    """How many captures the shares are from, and how long they took in all."""

    count: int
    seconds: float


def _limits(context: Context) -> Limits:
    return Limits(
        start_s=float(context.settings.get("start_s", 120)), call_s=float(context.settings.get("call_s", 120))
    )


def _find_truth(
    context: Context, reference: CallSession, judge: ModuleType, generator: np.random.Generator, scratch: Path
) -> tuple[Truth, Effort]:
    """Raises VerifierFault when the shares are not known well enough in the time there is."""
    settings, began = context.settings, time.monotonic()
    passes, precision = int(settings["passes"]), float(settings.get("precision", 0.02))
    least, max_s = int(settings.get("least_captures", 4)), float(settings.get("max_s", 60))

    def capture(job: str) -> Capture:
        pixels = judge.make_inputs(generator, context.data, settings)
        return read_capture(reference.call([job, pixels, passes])[1][0].tobytes(), scratch)

    context.progress("capture 1 of the workload", 0.1)
    cold = capture("cold")
    captures, error, spent_s = [capture("warm")], 1.0, 0.0
    while len(captures) < least or (error > precision and spent_s < max_s):
        known = f": shares ±{100 * error:.1f} points" if error < 1 else ""
        context.progress(
            f"capture {len(captures) + 1} of the workload{known}", 0.1 + 0.7 * max(spent_s / max_s, 0.1 * len(captures))
        )
        captures.append(capture("warm"))
        error, spent_s = uncertainty(estimate_shares(captures, passes)), time.monotonic() - began
    if error > float(settings.get("loosest", 0.04)):
        raise VerifierFault(
            f"After {len(captures)} captures in {spent_s:.0f} s the operators' shares are still uncertain by {100 * error:.0f} points: "
            "this machine is too busy.",
            "Close other programs and check again.",
        )
    (ceilings, name) = reference.call(["probe", np.zeros(1, np.uint8), 0])[1]
    balance = next((known_ for key, known_ in judge.KNOWN_BALANCE.items() if key in name), ceilings[1] / ceilings[0])
    quietest = min(captures, key=lambda one: sum(int(times.sum()) for times in one.times.values()))
    truth = Truth(estimate_shares(captures, passes), quietest, cold, float(balance), intensities(quietest, judge.work))
    return truth, Effort(len(captures), time.monotonic() - began)


def _learners_capture(
    context: Context, learner: CallSession, judge: ModuleType, generator: np.random.Generator, truth: Truth
) -> str | None:
    """Lets the learner's script capture secret pictures; why its trace is not genuine, or None.

    Times that another program may have disturbed are looked at again.
    """
    for _ in range(LEARNER_TRIES):
        passes = int(generator.integers(3, 7))
        pixels, begin_s = judge.make_inputs(generator, context.data, context.settings), time.time()
        answer = learner.call([pixels, passes])[1]
        if len(answer) != 1 or not isinstance(answer[0], np.ndarray) or answer[0].size == 0:
            return "`record` wrote no trace: wrap the passes in torch.profiler.profile and export the trace to the file it is given."
        try:
            capture = read_capture(answer[0].tobytes(), context.janitor.folder)
        except CaptureError as error:
            return f"{error.message} {error.remedy}"
        if problem := not_genuine(capture, truth, passes, begin_s, time.time()):
            return problem
        if not (problem := other_times(capture, truth, passes)):
            return None
    return problem


def _details(truth: Truth, captures: int) -> dict[str, Any]:
    top = truth.ranked()[:6]
    return {
        "captures": captures,
        "balance_flop_per_byte": truth.balance,
        "operators": [
            {"name": s.name, "share": s.share, "half_width": s.half_width, "flop_per_byte": truth.intensity.get(s.name)}
            for s in top
        ],
    }


def profile(context: Context, trace: Path, on_line: Callable[[str], object]) -> int:
    """`lab profile`: runs the learner's script, whose own recording is what this kind of lab is about; its exit status.

    The trace that it writes is copied to `trace`. Raises UsageError for a script that runs but writes none, as the shipped one does.
    """
    written = context.workspace / "trace.json.gz"
    written.unlink(missing_ok=True)  # an older one is not what is asked for
    with subprocess.Popen(
        [sys.executable, "-u", str(context.workspace / context.lab.spec.entry)],
        cwd=context.workspace,
        env={**os.environ, "LAB_PHOTOS": str(context.data), "LAB_DEVICE": context.device},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        context.janitor.follow(process.pid)
        for line in process.stdout or ():
            on_line(line)
        status = process.wait()
    context.janitor.forget(process.pid)
    if status == 0 and not written.is_file():
        raise UsageError(
            f"{context.lab.spec.entry} ran to its end, but recorded nothing: there is no trace.",
            "That is your part of this lab: see README.md, or `lab hint`; then `lab profile` again.",
        )
    if status == 0:
        shutil.copyfile(written, trace)
    return status
