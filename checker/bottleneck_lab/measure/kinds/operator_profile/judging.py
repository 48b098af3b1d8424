"""Are the learner's answers right? Pure functions: each returns a sentence on what is wrong, or
None.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bottleneck_lab.analysis.amdahl import ceiling, describe_misfit, is_ceiling
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.measure.kinds.operator_profile.capture import OperatorCapture
from bottleneck_lab.measure.kinds.operator_profile.figures import PLACES, Share, Truth
from bottleneck_lab.measure.kinds.operator_profile.genuine import TimingComplaint

TIE_SHARE = 0.01
"""Shares this close are a tie, whatever the noise: no two profilers' overheads agree better."""
SMALL_SHARE, SMALL_PART = 0.15, 0.3
"""So are shares of at most the first that differ by less than this part of the larger: such
operators change places from one process to the next, by how its memory came to it.
"""
DISTURBED_SHARE = 0.2
"""Other programs shift a share by less than this. With several at work on both of two cores, the
convolutions had 31% and 52% in place of 48% and 40%.
"""
SHARE_TOLERANCE = 0.05
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
    share = round(top[0]["share"], 3)
    answers: dict[str, str | float] = {"share": share, "ceiling": round(ceiling(share), 2)}
    bounds = []
    for rank, operator in zip(PLACES, top, strict=True):
        computes = (operator["flop_per_byte"] or 0.0) >= measurement["balance_flop_per_byte"]
        reached = operator.get("roof_share")
        bound = COMPUTE if computes else MEMORY
        if reached is not None and reached < FAR_SHARE:
            bound = FAR
        answers[rank] = operator["name"]
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
    wrong = {
        name: fault
        for rank, name, right in places
        if (fault := _wrong_operator(rank, name, right, truth))
    }
    if not wrong:
        return None
    return _joined([*wrong.values(), TimingComplaint(_other_order(names, wrong, truth))])


def _wrong_operator(rank: str, name: str, right: Share, truth: Truth) -> str | None:
    """Say why an operator is not the one with a place among the largest self times."""
    own = truth.shares.get(name, Share(name, 0.0, 0.0))
    if _may_come_before(own, right):
        return None
    why = "it is not in the check's captures"
    if name in truth.shares:
        times = min(right.share / max(own.share, 1e-9), 99.0)
        more = " or more" * (times > 98)
        why = f"in the check's own captures, another has {times:.2g} times its self time{more}"
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
    return small and one.high >= (1 - SMALL_PART) * other.low


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
    """Return what the check has to say of right answers, by criterion: one figure each. Only for a
    PASS: it would answer the questions.
    """
    names = [full_name(answers.get(rank)) for rank in PLACES]
    first = truth.shares[names[0]]
    intensities = ", ".join(f"{truth.intensity[name]:.3g}" for name in names)
    return {
        "top-operators": either_order(answers, truth),
        "share": f"{_number(answers.get('share')):.1%}; {_measured_share(first)}",
        "bounds": f"{intensities} FLOP/byte",
        "ceiling": f"{_number(answers.get('ceiling')):.2f}x, which follows from your share",
    }


def _measured_share(share: Share) -> str:
    """Return an operator's share as the check's captures have it, with its uncertainty, and as a
    fresh process has it where that widens what is right.
    """
    points = 100 * share.half_width
    measured = f"measured {share.share:.1%} ± {points:.1f} points"
    if share.fresh is None or abs(share.fresh - share.share) <= share.half_width:
        return measured
    return f"{measured}, and {share.fresh:.1%} in a fresh process; either is right"


def _other_order(names: list[str], wrong: Collection[str], truth: Truth) -> str:
    """Name the mistaken order that has most of the wrong names among its first three, in a
    sentence, or say what to sort by. Of several, that which has most names in their places.
    """
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
    likeness = {
        sentence: (
            sum(name in order for name in wrong),
            sum(name == other for name, other in zip(names, order, strict=False)),
        )
        for sentence, order in best.items()
    }
    likest = max(likeness, key=lambda sentence: likeness[sentence])
    return likest if likeness[likest][0] else "Sort by self time on the device."


def _total_ns(row: OperatorRow, truth: Truth) -> int:
    """Return an operator's time on the device with all that it calls, ns."""
    return row.device_total_ns if truth.capture.has_device else row.total_ns


def _top(capture: OperatorCapture, key: Callable[[OperatorRow], Any]) -> list[str]:
    return [
        row.name for row in sorted(capture.operators.values(), key=key, reverse=True)[: len(PLACES)]
    ]


def wrong_share(answers: Answers, truth: Truth) -> str | None:
    """Say why the share of the operator named first is more than five points outside what an honest
    capture may show.
    """
    name, answer = full_name(answers.get("first")), _number(answers.get("share"))
    if answer is None:
        return "`share` must be a number from 0 to 1."
    if name not in truth.shares:
        return "It rests on `first`: correct that first."
    right = truth.shares[name]
    if right.off_by(answer) <= SHARE_TOLERANCE:
        return None
    why = _other_share(name, answer, truth)
    problem = (
        f"Your `share` is not that of {name}."
        f" {why or 'Divide its self time by the sum of all self times.'}"
    )
    if _wrong_operator("first", name, truth.ranked()[0], truth):
        problem = "It rests on `first`: correct that first."
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
    wrong = [each for each in mistakes if right.off_by(each[0]) > SHARE_TOLERANCE]
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
                f"{name or 'An operator left unnamed'} computes nothing itself: correct `{rank}`"
                " first."
            )
        reached = truth.reached.get(name)
        if answer not in right_bounds(intensity, truth.balance, reached):
            problem = (
                f"'{answer}' does not fit {name}: compare the FLOP it does per byte it must move"
                " with the machine's balance." + (_ROOF_RULE if truth.reached else "")
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
    " Then divide the least time that memory and arithmetic allow by the time it took: below"
    f" {FAR_SHARE:.0%}, neither limits it."
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


def wrong_ceiling(answers: Answers, truth: Truth | None = None) -> str | None:
    """Say why the ceiling is not what Amdahl's law gives for the learner's own share, to within a
    tenth. By `truth`, one that fits what an honest capture may show is right beside a wrong share.
    """
    answer, share = _number(answers.get("ceiling")), _number(answers.get("share"))
    if answer is None:
        return "`ceiling` must be a number."
    if share is None or not 0 <= share <= 1:
        return "It follows from `share`, which must be a number from 0 to 1."
    if is_ceiling(answer, share):
        return None
    if abs(answer - 1 / max(share, 1e-9)) < 0.05:
        return "You wrote 1 / share; Amdahl's law gives 1 / (1 - share)."
    # A right ceiling is not to be changed until it fits a wrong share.
    right = truth.shares.get(full_name(answers.get("first"))) if truth else None
    share_of_answer = 1 - 1 / max(answer, 1.0)
    is_right = right is not None and right.off_by(share_of_answer) <= SHARE_TOLERANCE
    return None if truth and is_right and wrong_share(answers, truth) else MISFIT


MISFIT = describe_misfit("share", "ceiling")


def _number(answer: object) -> float | None:
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return None
    # TOML has integers that no float holds, and `nan` and `inf`.
    if not abs(answer) <= sys.float_info.max:
        return None
    return float(answer)
