"""Is the learner's capture genuine, and are the answers right? Pure functions: each says in one
sentence what is wrong, or None.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.measure.kinds.operator_profile.capture import OperatorCapture
from bottleneck_lab.measure.kinds.operator_profile.shares import (
    PLACES,
    Share,
    Truth,
    by_pass,
    undisturbed_shares,
)

TIE_SHARE = 0.01
"""Shares this close are a tie, whatever the noise: no two profilers' overheads agree better."""
SHARE_TOLERANCE = 0.05
CEILING_TOLERANCE = 0.10
BALANCE_FACTOR = 2.0
"""Within this factor of the machine's balance an operator may be called either: ceilings are not
known better.
"""
MEMORY, COMPUTE, FAR = "memory-bound", "compute-bound", "far below both"
FAR_SHARE, FAR_FACTOR = 1 / 3, 1.25
"""On a GPU, an operator that reaches less than this share of its roof is held up by neither; within
the factor, both that and the roof's side are right.
"""
FORGED_SHARE = 0.15
"""A capture of the same work on the same machine differs less than this in any operator's share."""
COLD_RATIO = 1.3
"""Where the reference's own first pass takes no more than this, a warm-up makes no measurable
difference.
"""
CLOCK_SLACK_S = 2.0
ROUNDING_NS = 2

Answers = Mapping[str, Any]


class TimingComplaint(str):
    """A problem that depends on measured times, and may be due to other programs. Every other
    problem is exact.
    """

    __slots__ = ()


def not_genuine(
    capture: OperatorCapture, truth: Truth, passes: int, begin_s: float, end_s: float
) -> str | None:
    """Why the learner's capture is not one of `passes` passes of this model, made between two
    moments; None when it is.
    """
    return (
        _incomplete(capture, truth)
        or _other_time(capture, begin_s, end_s)
        or _other_work(capture, truth, passes)
        or _left_out(capture, truth)
        or _beside(capture, truth)
        or _copied_passes(capture, truth, passes)
        or _not_warm(capture, truth, passes)
    )


MARK = "aten::neg"
"""After each pass a check's own script leaves one call of this a picture, on a vector whose length
is the class that the model gave it.
"""
MARKS_SHARE = 0.75
"""Of the marks that must be right: where two classes are as likely, rounding decides."""


def not_of_this_run(
    capture: OperatorCapture, classes: Sequence[int], passes: int, seconds: float
) -> str | None:
    """Why the capture cannot be of the run that took `seconds` on the verifier's clock, on pictures
    of these classes; None when it can.
    """
    if capture.end_s - capture.begin_s > seconds:
        return (
            "The passes in the capture took longer than your script ran, so they are not from this"
            " run."
        )
    marks = Counter(call.dims[0] for call in capture.calls if call.name == MARK and call.dims)
    wanted = Counter((index + 1,) for index in classes)
    right = sum(min(marks[length], passes * count) for length, count in wanted.items())
    if right >= MARKS_SHARE * passes * len(classes):
        return None
    return (
        "The capture does not show this model at work on the pictures that `record` was given: run "
        "`model(images)` itself inside the profiler, once a pass."
    )


def _incomplete(capture: OperatorCapture, truth: Truth) -> str | None:
    if truth.capture.has_device and not capture.has_device:
        return (
            "The capture has no GPU work in it: `activities` needs ProfilerActivity.CUDA, and the"
            " script must wait for the GPU before the profiler stops."
        )
    if not any(_is_shape(shape) for call in capture.calls for shape in call.dims):
        return "The capture has no shapes: pass record_shapes=True to the profiler."
    return None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) > 0


def _other_time(capture: OperatorCapture, begin_s: float, end_s: float) -> str | None:
    if begin_s - CLOCK_SLACK_S <= capture.begin_s and capture.end_s <= end_s + CLOCK_SLACK_S:
        return None
    return "The capture was not made when `record` was called: it is an old one."


def _other_work(capture: OperatorCapture, truth: Truth, passes: int) -> str | None:
    """The layers' operators must have seen exactly the model's shapes, each once a pass."""
    layers = _layers(truth)
    want, got = truth.capture.shapes(layers), capture.shapes(layers)
    unit = math.gcd(*want.values()) or 1
    if set(want) != set(got):
        return (
            "The operators and shapes in the capture are not those of this model on these pictures."
        )
    found = {shape: got[shape] * unit / want[shape] for shape in want}
    if len(set(found.values())) > 1:
        return (
            "Some layers of the model appear more often than others: the capture holds incomplete"
            " passes."
        )
    seen = next(iter(found.values())) * _passes(truth) / unit
    if seen == passes:
        return None
    more = (
        "Are the warm-up passes in it?" if seen > passes else "Was the profiler stopped too early?"
    )
    return f"The capture holds {seen:g} passes; `record` was told to record {passes}. {more}"


def _layers(truth: Truth) -> set[str]:
    """What a model's layers are called, whatever runs below them."""
    return {"aten::conv2d", "aten::batch_norm", "aten::linear", "aten::max_pool2d"} & set(
        truth.capture.operators
    )


def _passes(truth: Truth) -> int:
    """Passes in the reference's capture: its network has one fully connected layer."""
    return truth.capture.count("aten::linear")


def _left_out(capture: OperatorCapture, truth: Truth) -> str | None:
    """The layers' names may be there without what they call; what takes most of the time must be
    there as well.
    """
    top = truth.ranked()[0]
    if top.name in capture.times:
        return None
    return (
        "The capture lacks the operator that does most of this model's work: this is not a"
        " recording of the model."
    )


def _beside(capture: OperatorCapture, truth: Truth) -> str | None:
    """Operators that the passes do not have: what is done with the pictures or the scores is no
    part of them.
    """
    more = sorted(name for name in capture.operators if "::" in name and name not in truth.allowed)
    if not more:
        return None
    return (
        f"The capture holds more than the passes: {', '.join(more[:5])}. Do everything else before"
        " or after recording."
    )


def _copied_passes(capture: OperatorCapture, truth: Truth, passes: int) -> str | None:
    """The same work never takes the same time to the nanosecond in each of many calls."""
    rows = by_pass(capture, truth.ranked()[0].name, passes)
    if any(np.abs(one - other).max() <= ROUNDING_NS for one, other in combinations(rows, 2)):
        return (
            "Two passes in the capture agree to the nanosecond in every call: one is a copy of the"
            " other."
        )
    return None


def _not_warm(capture: OperatorCapture, truth: Truth, passes: int) -> str | None:
    """Where the first pass of the reference's own cold capture stands out, one half-way to it has
    not been warmed up.
    """
    cold = _first_pass_ratio(truth.cold, _passes_in(truth.cold))
    if cold < COLD_RATIO or _first_pass_ratio(capture, passes) < math.sqrt(cold):
        return None
    return TimingComplaint(
        "The first pass in the capture takes longer than the others: it allocates and prepares. Run"
        " passes without recording first."
    )


def _passes_in(capture: OperatorCapture) -> int:
    return max(capture.count("aten::linear"), 1)


def _first_pass_ratio(capture: OperatorCapture, passes: int) -> float:
    """How many times as long as the median of the others the first pass took; 1 where there is
    nothing to compare.
    """
    rows = [
        times.reshape(passes, -1).sum(axis=1)
        for times in capture.times.values()
        if len(times) % passes == 0
    ]
    if passes < 3 or not rows:
        return 1.0
    total = np.sum(rows, axis=0)
    return float(total[0] / max(np.median(total[1:]), 1))


def other_times(capture: OperatorCapture, truth: Truth, passes: int) -> str | None:
    """Why the times in a capture that is genuine otherwise are not those of this machine; None when
    they are.
    """
    shares = undisturbed_shares([capture], passes)
    for share in truth.ranked()[: len(PLACES)]:
        seen = shares.get(share.name, 0.0)
        if abs(seen - share.share) > FORGED_SHARE:
            return TimingComplaint(
                f"{share.name} takes a different share of the self time in the capture than in"
                " captures made here: the passes were not recorded as they run, or the machine was"
                " busy."
            )
    return None


def full_name(answer: object) -> str:
    """An operator's name as traces have it: `addmm` and `aten::addmm` are the same answer."""
    text = str(answer or "").strip()
    return text if "::" in text or not text else f"aten::{text}"


def measured_answers(measurement: Mapping[str, Any]) -> dict[str, str | float]:
    """The answers that a check's own figures (`Verdict.measurement`) give: other devices have other
    operators. None if nothing was captured.
    """
    top = measurement.get("operators", [])[: len(PLACES)]
    if len(top) < len(PLACES):
        return {}
    answers: dict[str, str | float] = {"ceiling": round(ceiling(top[0]["share"]), 2)}
    for place, operator in zip(PLACES, top, strict=True):
        computes = (operator["flop_per_byte"] or 0.0) >= measurement["balance_flop_per_byte"]
        reached = operator.get("roof_share")
        far = reached is not None and reached < FAR_SHARE
        answers |= {
            place: operator["name"],
            f"{place}_share": round(operator["share"], 3),
            f"{place}_bound": FAR if far else COMPUTE if computes else MEMORY,
        }
    return answers


def wrong_operators(answers: Answers, truth: Truth) -> str | None:
    """Why the three named operators are not those with the largest self time; near-ties within the
    noise are accepted in any order.
    """
    names = [full_name(answers.get(place)) for place in PLACES]
    if not all(names) or len(set(names)) < len(names):
        return "Name three different operators."
    ranked = truth.ranked()
    for place, name, right in zip(PLACES, names, ranked, strict=False):
        own = truth.shares.get(name, Share(name, 0.0, 0.0))
        if own.share + own.half_width + right.half_width + TIE_SHARE < right.share:
            found = "" if name in truth.shares else " It is not in the captures."
            said = (
                f"{name} is not {place} by self time on the device.{found}"
                f" {_other_order(names, truth)}".strip()
            )
            # An operator that only calls others is never among the slowest, however busy the
            # machine.
            return TimingComplaint(said) if name in truth.intensity else said
    return None


def _other_order(names: list[str], truth: Truth) -> str:
    """Which mistaken order of operators the answer follows, as a sentence; empty when none fits."""
    orders = {
        "That is the order by total time, which includes everything an operator calls; sort by self time.": lambda row: (
            _total_ns(row, truth),
            row.total_ns,  # on a GPU a parent's total is just its child's
        ),
        "That is the order by number of calls, not by time.": lambda row: row.calls,
    }
    if truth.capture.has_device:
        orders["That is the order by CPU time; on a GPU the device's own time counts."] = (
            lambda row: row.self_ns
        )
    best = {sentence: _top(truth.capture, key) for sentence, key in orders.items()}
    best["That order includes the first, cold passes; warm up before recording."] = _top(
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


def _top(capture: OperatorCapture, key: Callable[[OperatorRow], Any]) -> list[str]:
    return [
        row.name for row in sorted(capture.operators.values(), key=key, reverse=True)[: len(PLACES)]
    ]


def wrong_shares(answers: Answers, truth: Truth) -> str | None:
    """Why one of the three shares is off by more than five points of the operator that was named
    there.
    """
    for place in PLACES:
        name, answer = full_name(answers.get(place)), _number(answers.get(f"{place}_share"))
        if answer is None:
            return f"`{place}_share` must be a number from 0 to 1."
        if name not in truth.shares:
            return (
                f"{name or 'An operator left unnamed'} is not in the captures, so it has no share."
            )
        right = truth.shares[name]
        if abs(answer - right.share) > SHARE_TOLERANCE + right.half_width:
            why = _other_share(name, answer, truth)
            return TimingComplaint(
                f"`{place}_share` is off by more than five points."
                f" {why or 'Divide its self time by the sum of all self times.'}"
            )
    return None


def _other_share(name: str, answer: float, truth: Truth) -> str:
    """Which mistaken share the answer is, as a sentence; empty when none fits."""
    rows = truth.capture.operators
    row, cold, gpu = rows[name], truth.cold.operators.get(name), truth.capture.has_device
    own = row.device_self_ns if gpu else row.self_ns
    whole = max(sum(each.device_self_ns if gpu else each.self_ns for each in rows.values()), 1)
    with_children = max(sum(_total_ns(each, truth) for each in rows.values()), 1)
    mistakes = {
        "That is its share of the summed total times, which count children again in their parents.": (
            own / with_children
        ),
        "That is its total time, including everything it calls; the question is about self time.": (
            _total_ns(row, truth) / whole
        ),
        "That is its share of the calls, not of the time.": (
            row.calls / sum(each.calls for each in rows.values())
        ),
        "That share includes the first, cold passes; warm up before recording.": (
            cold.share if cold else 0.0
        ),
    }
    if truth.capture.has_device:
        mistakes["That is its share of the CPU's time; on a GPU the device's own time counts."] = (
            row.self_ns / max(sum(each.self_ns for each in rows.values()), 1)
        )
    near = {sentence: abs(share - answer) for sentence, share in mistakes.items()}
    best = min(near, key=lambda sentence: near[sentence])
    return best if near[best] <= 0.02 else ""


def wrong_bounds(answers: Answers, truth: Truth) -> str | None:
    """Why one of the three operators is not held up by what the answer says: its FLOP per byte
    against the machine's balance; on a GPU also its distance to its roof.
    """
    for place in PLACES:
        name, answer = (
            full_name(answers.get(place)),
            str(answers.get(f"{place}_bound") or "").strip().lower(),
        )
        if answer not in (MEMORY, COMPUTE, FAR):
            return f"`{place}_bound` is neither '{MEMORY}' nor '{COMPUTE}' nor '{FAR}'."
        intensity = truth.intensity.get(name)
        if intensity is None:
            return (
                f"{name or 'An operator left unnamed'} does no work that can be counted: name an"
                " operator that computes."
            )
        if answer not in right_bounds(intensity, truth.balance, truth.reached.get(name)):
            return TimingComplaint(  # the machine's balance is measured
                f"'{answer}' does not fit {name}: work out from its shapes how many floating-point"
                " operations it does per byte that it must move, and compare that with the"
                " machine's balance: its operations per second over its bytes per second."
                + (_ROOF_RULE if truth.reached else "")
            )
    return None


_ROOF_RULE = (
    " Then divide the least time that these ceilings allow by the time it took: below"
    f" {FAR_SHARE:.0%}, neither of the two limits it."
)


def right_bounds(intensity: float, balance: float, reached: float | None) -> set[str]:
    """What may be said of an operator. `reached`: its share (0-1) of its roof, None on a CPU."""
    ratio = intensity / balance
    sides = {COMPUTE if ratio >= 1 else MEMORY} | (
        {MEMORY, COMPUTE} if 1 / BALANCE_FACTOR < ratio < BALANCE_FACTOR else set()
    )
    if reached is None or reached > FAR_SHARE * FAR_FACTOR:
        return sides
    return {FAR} if reached < FAR_SHARE / FAR_FACTOR else sides | {FAR}


def wrong_ceiling(answers: Answers, truth: Truth) -> str | None:
    """Why the Amdahl ceiling of the first operator is off by more than a tenth, of the measured
    share's or of the learner's own share's.
    """
    answer, name = _number(answers.get("ceiling")), full_name(answers.get("first"))
    if answer is None:
        return "`ceiling` must be a number."
    if name not in truth.shares:
        return f"{name or 'An operator left unnamed'} is not in the captures, so it has no ceiling."
    right, own = truth.shares[name], _number(answers.get("first_share"))
    ceilings = [ceiling(min(max(right.share, 0.0), 1.0))]
    if (
        own is not None
        and 0 <= own <= 1
        and abs(own - right.share) <= SHARE_TOLERANCE + right.half_width
    ):
        ceilings.append(ceiling(own))
    if any(abs(answer - one) <= CEILING_TOLERANCE * one for one in ceilings):
        return None
    mistake = " You wrote 1 / share." if abs(answer - 1 / max(right.share, 1e-9)) < 0.05 else ""
    return TimingComplaint(
        f"That is not what Amdahl's law gives for the share of {name}: 1 / (1 - share), when it"
        f" takes no time at all.{mistake}"
    )


def _number(answer: object) -> float | None:
    if (
        isinstance(answer, bool)
        or not isinstance(answer, int | float)
        or not abs(answer) <= sys.float_info.max
    ):
        return None
    return float(answer)
