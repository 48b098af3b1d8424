"""Are the learner's answers right? Pure functions: each returns a sentence on what is wrong, or
None.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.measure.kinds.operator_profile.capture import OperatorCapture
from bottleneck_lab.measure.kinds.operator_profile.figures import (
    PLACES,
    Share,
    Truth,
    uncertainty,
)
from bottleneck_lab.measure.kinds.operator_profile.genuine import TimingComplaint

TIE_SHARE = 0.01
"""Shares this close are a tie, whatever the noise: no two profilers' overheads agree better."""
SMALL_SHARE = 0.15
"""So are shares of at most this that differ by less than an answer about one may be off: such
operators change places from one process to the next, by how its memory came to it.
"""
DISTURBED_SHARE = 0.2
"""Other programs shift a share by less than this. With several at work on both of two cores, the
convolutions had 31% and 52% in place of 48% and 40%.
"""
SHARE_TOLERANCE, SHARE_PART = 0.05, 0.3
"""A share may be off by the first, but by no more than this part of itself: a small operator takes
less than five points in all.
"""
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
Answers = Mapping[str, Any]


def full_name(answer: object) -> str:
    """Return an operator's name as in traces: `addmm` and `aten::addmm` are the same answer."""
    text = str(answer or "").strip()
    return text if "::" in text or not text else f"aten::{text}"


def measured_answers(measurement: Mapping[str, Any]) -> dict[str, str | float]:
    """Return the right answers by a check's own figures (`Verdict.measurement`); empty if nothing
    was captured. Other devices have other operators.
    """
    top = measurement.get("operators", [])[: len(PLACES)]
    if len(top) < len(PLACES):
        return {}
    answers: dict[str, str | float] = {"ceiling": round(ceiling(top[0]["share"]), 2)}
    bounds = []
    for rank, operator in zip(PLACES, top, strict=True):
        computes = (operator["flop_per_byte"] or 0.0) >= measurement["balance_flop_per_byte"]
        reached = operator.get("roof_share")
        bound = COMPUTE if computes else MEMORY
        if reached is not None and reached < FAR_SHARE:
            bound = FAR
        answers |= {
            rank: operator["name"],
            f"{rank}_share": round(operator["share"], 3),
        }
        bounds.append(bound)
    return answers | {"bounds": ", ".join(bounds)}


def wrong_operators(answers: Answers, truth: Truth) -> str | None:
    """Say which of the three named operators are not those with the largest self time, and why.
    Those that an honest capture may show in another order are accepted in any.
    """
    names = [full_name(answers.get(rank)) for rank in PLACES]
    if not all(names) or len(set(names)) < len(names):
        return "Name three different operators."
    places = zip(PLACES, names, truth.ranked(), strict=False)
    wrong = [
        fault
        for rank, name, right in places
        if (fault := _wrong_operator(rank, name, right, truth))
    ]
    return _joined([*wrong, TimingComplaint(_other_order(names, truth))]) if wrong else None


def _wrong_operator(rank: str, name: str, right: Share, truth: Truth) -> str | None:
    """Say why an operator is not the one with a place among the largest self times."""
    own = truth.shares.get(name, Share(name, 0.0, 0.0))
    if _may_come_before(own, right):
        return None
    why = "it is not in the captures"
    if name in truth.shares:
        times = min(right.share / max(own.share, 1e-9), 99.0)
        why = f"by self time another takes {times:.2g} times as long{' or more' * (times > 98)}"
    problem = f"`{rank}` is not {name}: {why}."
    # An operator that only calls others is never among the slowest, however busy the machine.
    may_be_noise = name in truth.intensity and own.high + DISTURBED_SHARE > right.low
    return TimingComplaint(problem) if may_be_noise else problem


def _joined(problems: list[str]) -> str | None:
    """Return several problems as one, which may be due to other programs if all of them may."""
    text = " ".join(problems)
    may_be_noise = all(isinstance(each, TimingComplaint) for each in problems)
    return (TimingComplaint(text) if may_be_noise else text) if problems else None


def _may_come_before(one: Share, other: Share) -> bool:
    """Return True if an honest capture may show `one` as slow as `other`."""
    if one.high + TIE_SHARE >= other.low:
        return True
    small = max(one.share, other.share) <= SMALL_SHARE
    return small and one.high >= (1 - SHARE_PART) * other.low


def either_order(answers: Answers, truth: Truth) -> str:
    """Say which of the three operators, in the order of the answers, stand in another place in the
    check's captures, and are too close for that to count; empty if none does.
    """
    names = [full_name(answers.get(rank)) for rank in PLACES]
    places = zip(PLACES, names, truth.ranked(), strict=False)
    moved = [rank for rank, name, right in places if name != right.name]
    if not moved:
        return ""
    be = "places are" if len(moved) > 1 else "place is"
    return f"the {' and '.join(moved)} {be} too close to call, so either order is right"


def described_answers(answers: Answers, truth: Truth) -> dict[str, str]:
    """Return the answers beside what the check measured, by criterion. Only for a PASS: they would
    answer the questions.
    """
    names = [full_name(answers.get(rank)) for rank in PLACES]
    shares = [truth.shares[name].share for name in names]
    own = [_number(answers.get(f"{rank}_share")) or 0.0 for rank in PLACES]
    # The names stand with their shares once: where two places are too close to call, the measured
    # third is another operator than the learner's.
    measured = ", ".join(f"{n} {share:.1%}" for n, share in zip(names, shares, strict=True))
    ranked = ", ".join(share.name for share in truth.ranked()[: len(PLACES)])
    close = either_order(answers, truth)
    known = f"{100 * uncertainty(truth.shares):.1f}"
    intensities = ", ".join(f"{truth.intensity[name]:.3g}" for name in names)
    return {
        "top-operators": f"measured {ranked}{f'; {close}' if close else ''}",
        "shares": (
            f"{', '.join(f'{share:.1%}' for share in own)}; measured {measured}, known to"
            f" {known} points{_far_shares(answers, truth)}"
        ),
        "bounds": f"{intensities} FLOP/byte, where the balance is {truth.balance:.2g}",
        "ceiling": (
            f"{_number(answers.get('ceiling')):.2f}x; measured {ceiling(min(shares[0], 1.0)):.2f}x"
            f"{_far_ceiling(answers, shares[0])}"
        ),
    }


def _far_shares(answers: Answers, truth: Truth) -> str:
    """Say why shares count that are further from the measured ones than the lab allows: by what
    is accepted around the range that an honest capture may show. Begins with a semicolon; empty if
    there is none.
    """
    ranges = []
    for rank in PLACES:
        right = truth.shares[full_name(answers.get(rank))]
        off = abs((_number(answers.get(f"{rank}_share")) or 0.0) - right.share)
        allowed = _share_tolerance(right)
        if off > allowed:
            low, high = max(right.low - allowed, 0.0), right.high + allowed
            ranges.append(f"{low:.1%} to {high:.1%} for the {rank}")
    if not ranges:
        return ""
    return f"; accepted: {', '.join(ranges)}"


def _far_ceiling(answers: Answers, share: float) -> str:
    """Say why a ceiling counts that is further from the measured share's than the lab allows."""
    answer, right = _number(answers.get("ceiling")) or 0.0, ceiling(min(share, 1.0))
    if abs(answer - right) <= CEILING_TOLERANCE * right:
        return ""
    return "; it follows from your own share of the first, which is right"


def _share_tolerance(right: Share) -> float:
    """Return by how much an answer may be outside what an honest capture may show."""
    return min(SHARE_TOLERANCE, SHARE_PART * right.share)


def _other_order(names: list[str], truth: Truth) -> str:
    """Name the mistaken order that the answer follows, in a sentence, or say what to sort by."""
    by_total = (
        "That is the order by total time, which includes everything an operator calls; sort by self"
        " time."
    )
    by_calls = "That is the order by number of calls, not by time."
    by_cpu = "That is the order by CPU time; on a GPU the device's own time counts."
    orders: dict[str, Callable[[OperatorRow], Any]] = {
        # On a GPU a parent's total is just its child's: the host's total breaks the tie.
        by_total: lambda row: (_total_ns(row, truth), row.total_ns),
        by_calls: lambda row: row.calls,
    }
    if truth.capture.has_device:
        orders[by_cpu] = lambda row: row.self_ns
    best = {sentence: _top(truth.capture, key) for sentence, key in orders.items()}
    best["That is the order with the first, cold passes; warm up before recording."] = _top(
        truth.cold, lambda row: row.share
    )
    right = [share.name for share in truth.ranked()[: len(PLACES)]]
    # A mistake explains the answer if it has more names in their places than the right order has.
    explanation, most = "Sort by self time on the device.", _in_place(names, right)
    for sentence, order in best.items():
        if order != right and _in_place(names, order) > most:
            explanation, most = sentence, _in_place(names, order)
    return explanation


def _in_place(names: list[str], order: list[str]) -> int:
    return sum(name == other for name, other in zip(names, order, strict=False))


def _total_ns(row: OperatorRow, truth: Truth) -> int:
    """Return an operator's time on the device with all that it calls, ns."""
    return row.device_total_ns if truth.capture.has_device else row.total_ns


def _top(capture: OperatorCapture, key: Callable[[OperatorRow], Any]) -> list[str]:
    return [
        row.name for row in sorted(capture.operators.values(), key=key, reverse=True)[: len(PLACES)]
    ]


def wrong_shares(answers: Answers, truth: Truth) -> str | None:
    """Say which of the three shares are off by more than five points, or by more than three tenths
    of themselves, of those of the operators named there, and why.
    """
    return _joined([fault for rank in PLACES if (fault := _wrong_share(rank, answers, truth))])


def _wrong_share(rank: str, answers: Answers, truth: Truth) -> str | None:
    name, answer = full_name(answers.get(rank)), _number(answers.get(f"{rank}_share"))
    if answer is None:
        return f"`{rank}_share` must be a number from 0 to 1."
    if name not in truth.shares:
        return f"`{rank}_share` rests on `{rank}`, which is no operator in the captures."
    right = truth.shares[name]
    if right.off_by(answer) <= _share_tolerance(right):
        return None
    why = _other_share(name, answer, truth)
    problem = (
        f"`{rank}_share` is off by more than five points or three tenths of itself."
        f" {why or 'Divide its self time by the sum of all self times.'}"
    )
    # Other programs make no total of a self time.
    may_be_noise = why not in _TOTALS and right.off_by(answer) < DISTURBED_SHARE
    return TimingComplaint(problem) if may_be_noise else problem


_SUMMED_TOTALS = (
    "That is its share of the summed total times, which count children again in their parents."
)
_TOTAL = "That is its total time, including everything it calls; the question is about self time."
_TOTALS = (_SUMMED_TOTALS, _TOTAL)


def _other_share(name: str, answer: float, truth: Truth) -> str:
    """Name the mistaken share that the answer is, in a sentence; empty when none fits. A mistake
    that gives the right share explains nothing.
    """
    rows = truth.capture.operators
    row, cold, gpu = rows[name], truth.cold.operators.get(name), truth.capture.has_device
    own = row.device_self_ns if gpu else row.self_ns
    whole = max(sum(each.device_self_ns if gpu else each.self_ns for each in rows.values()), 1)
    with_children = max(sum(_total_ns(each, truth) for each in rows.values()), 1)
    mistakes = [
        (own / with_children, _SUMMED_TOTALS),
        (_total_ns(row, truth) / whole, _TOTAL),
        (
            row.calls / sum(each.calls for each in rows.values()),
            "That is its share of the calls, not of the time.",
        ),
        (
            cold.share if cold else 0.0,
            "That is its share with the first, cold passes; warm up before recording.",
        ),
    ]
    if gpu:
        host = row.self_ns / max(sum(each.self_ns for each in rows.values()), 1)
        mistakes.append(
            (host, "That is its share of the CPU's time; on a GPU the device's own time counts.")
        )
    right = truth.shares[name]
    wrong = [each for each in mistakes if right.off_by(each[0]) > _share_tolerance(right)]
    near = [each for each in wrong if abs(each[0] - answer) <= min(0.02, 0.1 * each[0])]
    return min(near, key=lambda mistake: abs(mistake[0] - answer))[1] if near else ""


def wrong_bounds(answers: Answers, truth: Truth) -> str | None:
    """Say why one of the three operators is not limited by what the answer names: its FLOP per byte
    against the machine's balance; on a GPU also its distance to its roof.
    """
    bounds = [each.strip().lower() for each in str(answers.get("bounds") or "").split(",")]
    if len(bounds) != len(PLACES) or not {*bounds} <= {MEMORY, COMPUTE, FAR}:
        return (
            f"`bounds` needs one answer for each of the three, separated by commas: '{MEMORY}',"
            f" '{COMPUTE}' or '{FAR}'."
        )
    for rank, answer in zip(PLACES, bounds, strict=True):
        name = full_name(answers.get(rank))
        intensity = truth.intensity.get(name)
        if intensity is None:
            return (
                f"{name or 'An operator left unnamed'} does no work that can be counted: name an"
                " operator that computes."
            )
        reached = truth.reached.get(name)
        if answer not in right_bounds(intensity, truth.balance, reached):
            problem = (
                f"'{answer}' does not fit {name}: work out from its shapes how many floating-point"
                " operations it does per byte that it must move, and compare that with the"
                " machine's balance: its operations per second over its bytes per second."
                + (_ROOF_RULE if truth.reached else "")
            )
            # The machine's balance is measured, and so is the time that a GPU's operator took. An
            # answer that fits no balance that was measured is wrong, however busy the machine.
            may_be_noise = reached is not None or any(
                answer in right_bounds(intensity, balance, reached)
                for balance in truth.balance_range
            )
            return TimingComplaint(problem) if may_be_noise else problem
    return None


_ROOF_RULE = (
    " Then divide the least time that these ceilings allow by the time it took: below"
    f" {FAR_SHARE:.0%}, neither of the two limits it."
)


def right_bounds(intensity: float, balance: float, reached: float | None) -> set[str]:
    """Return the answers that are right for an operator. `reached`: its share (0–1) of its roof,
    None on a CPU.
    """
    ratio = intensity / balance
    sides = {COMPUTE if ratio >= 1 else MEMORY}
    if 1 / BALANCE_FACTOR < ratio < BALANCE_FACTOR:
        sides = {MEMORY, COMPUTE}
    if reached is None or reached > FAR_SHARE * FAR_FACTOR:
        return sides
    return {FAR} if reached < FAR_SHARE / FAR_FACTOR else sides | {FAR}


def wrong_ceiling(answers: Answers, truth: Truth) -> str | None:
    """Say why the Amdahl ceiling of the first operator is off by more than a tenth of that of the
    measured share; that of the learner's own share is as good, if the share is right.
    """
    answer, name = _number(answers.get("ceiling")), full_name(answers.get("first"))
    if answer is None:
        return "`ceiling` must be a number."
    if name not in truth.shares:
        return f"{name or 'An operator left unnamed'} is not in the captures, so it has no ceiling."
    right, own = truth.shares[name], _number(answers.get("first_share"))
    ceilings = [ceiling(min(max(right.share, 0.0), 1.0))]
    if own is not None and 0 <= own <= 1 and right.off_by(own) <= SHARE_TOLERANCE:
        ceilings.append(ceiling(own))
    if any(abs(answer - one) <= CEILING_TOLERANCE * one for one in ceilings):
        return None
    mistake = " You wrote 1 / share." if abs(answer - 1 / max(right.share, 1e-9)) < 0.05 else ""
    problem = (
        f"That is not what Amdahl's law gives for the share of {name}: 1 / (1 - share), when it"
        f" takes no time at all.{mistake}"
    )
    # Only the share is measured: an answer that does not follow from the learner's own is wrong
    # arithmetic, however busy the machine.
    if own is None or not 0 <= own <= 1:
        return TimingComplaint(problem)
    follows = abs(answer - ceiling(own)) <= CEILING_TOLERANCE * ceiling(own)
    # Nor does one excuse it that follows from a share which is certainly wrong.
    excused = follows and isinstance(_wrong_share("first", answers, truth), TimingComplaint)
    return TimingComplaint(problem) if excused else problem


def _number(answer: object) -> float | None:
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return None
    # TOML has integers that no float holds, and `nan` and `inf`.
    if not abs(answer) <= sys.float_info.max:
        return None
    return float(answer)
