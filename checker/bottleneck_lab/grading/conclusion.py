"""From the results of all criteria to the outcome of a check: pure functions, with a sentence for
each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from bottleneck_lab.catalog import CriterionKind, CriterionSpec, FailReason
from bottleneck_lab.errors import BusyMachineError, LabError
from bottleneck_lab.grading.criteria import (
    BUSY_CORES,
    OPEN_BECAUSE,
    as_sentence,
    format_figure,
    format_limit,
)
from bottleneck_lab.grading.verdict import WHEN_QUIET, CriterionResult, Outcome

PRESSURED_SHARE = 0.05
"""Share of time in which some program waited for a CPU (Linux pressure stall information) that is
worth naming.
"""

NOISY_SHARE = 0.1
"""Difference between single measurements, as a share, that is worth naming: ten times that of a
quiet machine.
"""

NOT_YOURS = "Not your work's fault: "
"""How the summary of an ERROR begins, to a learner."""


class Stopped(NamedTuple):
    """Why the learner's code did not run to the end, with one sentence on what was seen."""

    reason: Literal["crashed", "timed out", "tampered", "forbidden call", "does not compile"]
    sentence: str


class Conditions(msgspec.Struct, frozen=True):
    """The state of the machine while it measured; None if it could not be seen.

    `noise`: typical difference between single measurements, a share. `other_cores`: cores kept busy
    by other programs. `waiting`: share of time in which some program waited for a CPU. `doubt`: by
    how much, a share, the self-test made every target to be cleared.
    """

    noise: float | None = None
    other_cores: float | None = None
    cores: int | None = None
    waiting: float | None = None
    doubt: float = 0.0


class Conclusion(NamedTuple):
    """The answer of a check, in the order of the verdict's fields."""

    outcome: Outcome
    reason: FailReason | None
    summary: str
    advice: list[str]


def conclude(
    results: Sequence[CriterionResult],
    *,
    specs: Sequence[CriterionSpec],
    about: FailReason = "correct but slow",
    machine: LabError | None = None,
    stopped: Stopped | None = None,
    conditions: Conditions | None = None,
) -> Conclusion:
    """Return the outcome of a check from all results, each criterion of `specs` having
    exactly one result for a PASS.

    `machine` is a fault of the machine or of the checker: it says nothing about the learner's work,
    so it goes first. Then what surely fails, the gravest reason first; then what is undecided; and
    only then PASS. `about`: the reason for which the lab's shipped code fails. Such a criterion is
    what the lab is about: of right work, the summary names it before others.
    """
    if isinstance(machine, BusyMachineError):
        advice = list(dict.fromkeys([machine.remedy, WHEN_QUIET]))
        return Conclusion(Outcome.INCONCLUSIVE, None, machine.message, advice)
    machine = machine or _incomplete(results, specs, may_stop_early=stopped is not None)
    if machine is not None:
        message = machine.message
        # A sentence goes on after a colon; names in capitals stay.
        if not message[:2].isupper():
            message = message[:1].lower() + message[1:]
        return Conclusion(Outcome.ERROR, None, f"{NOT_YOURS}{message}", [machine.remedy])
    no_pass = _failure(results, specs, about, stopped)
    no_pass = no_pass or _undecided(results, conditions or Conditions())
    if no_pass:
        return no_pass
    # One with a figure says more than a plain yes.
    main = min(
        results,
        key=lambda one: (REASONS[one.kind] != about, one.kind != "target", one.value is None),
    )
    count = f"All {len(results)} criteria are met"
    if len(results) == 1:
        count = "The only criterion is met"
    return Conclusion(Outcome.PASS, None, f"{count}. {main.sentence}", [])


def _incomplete(
    results: Sequence[CriterionResult], specs: Sequence[CriterionSpec], *, may_stop_early: bool
) -> LabError | None:
    """Return the error of a check that skipped a criterion, or judged one twice or as another kind;
    such a check is broken and must never pass.
    """
    # Counted with their kinds: a kind decides what a miss means, so a result must not change it.
    wanted = Counter((spec.id, spec.kind) for spec in specs)
    got = Counter((result.id, result.kind) for result in results)
    missing, extra = wanted - got, got - wanted
    surely_fails = may_stop_early or any(result.holds is False for result in results)
    if specs and not extra and (surely_fails or not missing):
        return None
    names = ", ".join(sorted(id_ for id_, _ in missing + extra)) or "none is declared"
    message = f"The checker did not judge each criterion once ({names})."
    return LabError(message, "Report this as a bug of the lab or of `lab check`.")


REASONS: dict[CriterionKind, FailReason] = {
    "correctness": "wrong output",
    "target": "correct but slow",
    "mechanism": "the mechanism is still there",
    "diagnosis": "wrong diagnosis",
}
"""By kind, gravest first: wrong output outranks slow, and the diagnosis comes last."""

WRONG_ANSWERS = "Correct the answers that are wrong with `lab diagnose`."
"""The advice on wrong answers, to which a learner's own machine adds where to look."""

ADVICE: dict[FailReason, list[str]] = {
    "wrong output": [
        "Make the results right first: nothing else counts without them. If they were right before,"
        " undo your changes one at a time."
    ],
    "correct but slow": [
        "`lab profile` captures your code as it is now; `lab report` then shows what takes the"
        " time.",
        "`lab hint` shows the next hint, if one is left and not locked.",
    ],
    "the mechanism is still there": [
        "`lab profile` captures your code as it is now; `lab report` then shows where it is."
    ],
    "wrong diagnosis": [WRONG_ANSWERS],
    "crashed": [
        "`lab run` shows the whole error, unless it comes from one of the other inputs that a check"
        " tries."
    ],
    "timed out": [
        "`lab run` shows where it hangs; a check allows several times what the shipped code takes."
    ],
    "does not compile": ["`lab run` compiles it too, and shows the compiler's full output."],
    "forbidden call": ["Write that part yourself: the brief says what you may call."],
    "tampered": [
        "Every call must do all of its work, in its own process; `lab reset` restores the shipped"
        " files."
    ],
}


WRONG_AS_SHIPPED = "Mend what the ✗ names first: nothing else counts without right results."
"""Advice on wrong output in a lab whose task is to make it right: undoing changes leads nowhere."""

IN_COMMON = (
    "Begin with the first ✗ that counts cases: what do they have in common? Answer that before the"
    " next change."
)
"""The same where several cases are counted."""


def _failure(
    results: Sequence[CriterionResult],
    specs: Sequence[CriterionSpec],
    about: FailReason,
    stopped: Stopped | None,
) -> Conclusion | None:
    # Only right work can be fast; then what the lab is about comes before its side conditions.
    kinds = sorted(REASONS, key=lambda kind: (kind != "correctness", REASONS[kind] != about))
    wrong = [result for result in results if result.holds is False]
    failed = sorted(wrong, key=lambda result: kinds.index(result.kind))
    # A wrong output that came before a crash explains it, and is what to mend first; what tampered
    # with the check is worse than either.
    if stopped is not None and (
        stopped.reason == "tampered" or not failed or failed[0].kind != "correctness"
    ):
        return Conclusion(
            Outcome.FAIL, stopped.reason, as_sentence(stopped.sentence), _advice_after(stopped)
        )
    if not failed:
        return None
    reason = REASONS[failed[0].kind]
    advice = [*ADVICE[reason]]
    if reason == "wrong output" and about == reason:
        advice = [IN_COMMON if _counts_several(failed) else WRONG_AS_SHIPPED]
    if reason == "the mechanism is still there":
        advice.insert(0, _what_is_left(results, specs, about))
    # Wrong answers are to be corrected whatever else is wrong.
    if reason != "wrong diagnosis" and any(result.kind == "diagnosis" for result in failed):
        advice += ADVICE["wrong diagnosis"]
    return Conclusion(Outcome.FAIL, reason, failed[0].sentence, advice)


def _counts_several(failed: Sequence[CriterionResult]) -> bool:
    """Return True if one of the results counts two cases or more that are wrong."""
    for result in failed:
        count = re.match(r"([\d,]+) of ([\d,]+)\b", result.counted or "")
        if count is None:
            continue
        part, whole = (int(number.replace(",", "")) for number in count.groups())
        if (part if result.direction == "at_most" else whole - part) > 1:
            return True
    return False


def _what_is_left(
    results: Sequence[CriterionResult], specs: Sequence[CriterionSpec], about: FailReason
) -> str:
    """Return what is reached and what is left, by the labels of the criteria; the first that is
    missed has its figure.
    """
    labels = {spec.id: spec.label or spec.id for spec in specs}
    targets = [result for result in results if result.kind == "target"]
    mechanisms = [result for result in results if result.kind == "mechanism"]
    first, *others = [one for one in (*mechanisms, *targets) if one.holds is False]
    left = f"Not there yet: {labels.get(first.id, first.id)}"
    if first.value is not None and first.target is not None:
        left += (
            f", {format_figure(first.value, first.unit, first.target)} (wanted at"
            f" {first.direction.removeprefix('at_')} {format_limit(first.target, first.unit)})"
        )
    if others:
        left += f"; also {', '.join(labels.get(one.id, one.id) for one in others)}"
    if not targets or not all(result.holds for result in targets):
        return f"{left}."
    if about == "the mechanism is still there":
        return f"Met: {', '.join(labels.get(one.id, one.id) for one in targets)}. {left}."
    return f"The target is met. {left}. It need not be part of the cause that you named."


def _advice_after(stopped: Stopped) -> list[str]:
    """Return what to do about code that did not run to its end, with the line that it names."""
    advice = ADVICE[stopped.reason]
    if stopped.reason != "crashed":
        return advice
    lines = re.findall(r"\S+, line \d+|\S+\.py(?=: \w+: )", stopped.sentence)
    mend = f"Mend {lines[0] if lines else 'what the error names'}; then check again."
    # Python reads a script whole before it runs it: no input matters, and the error is all there.
    unread = re.search(r"^(Syntax|Indentation|Tab)Error: ", stopped.sentence, re.MULTILINE)
    return [mend] if unread else [mend, *advice]


def _undecided(results: Sequence[CriterionResult], conditions: Conditions) -> Conclusion | None:
    open_ = [result for result in results if result.holds is None]
    if not open_:
        return None
    measured = next((result for result in open_ if result.low is not None), None)
    cause, advice = explain_noise(conditions, near_target=measured is not None)
    if conditions.doubt:
        cause = (
            f"Two runs of the same code differed by {conditions.doubt:.0%} here, so a target must"
            f" be beaten by {conditions.doubt:.0%}. {cause}"
        )
    sentence = (measured or open_[0]).sentence
    if OPEN_BECAUSE not in sentence:
        sentence = f"{sentence} {cause}"
    return Conclusion(Outcome.INCONCLUSIVE, None, sentence, advice)


def explain_noise(conditions: Conditions, *, near_target: bool = True) -> tuple[str, list[str]]:
    """Return why a measurement could not decide, as one sentence, and what to do about it.

    `near_target` says that there was enough for bounds, and only their distance from the target was
    too small.
    """
    again = "Then run `lab check` again."
    if (conditions.other_cores or 0) > BUSY_CORES:
        of = f" of {conditions.cores}" if conditions.cores else ""
        cause = f"Other programs kept {conditions.other_cores:.1f}{of} cores busy meanwhile."
        return cause, [WHEN_QUIET]
    if (conditions.waiting or 0) > PRESSURED_SHARE:
        cause = f"Programs waited for a CPU {conditions.waiting:.0%} of the time."
        return cause, ["Use a machine or container with more CPU time to itself.", WHEN_QUIET]
    if (conditions.noise or 0) > NOISY_SHARE:
        unseen = "though little else was running"
        if conditions.other_cores is None:
            unseen = "for an unknown reason"
        cause = f"Single measurements differed by about {conditions.noise:.0%}, {unseen}."
        remedy = (
            "Plug the machine in and let it cool. A machine that you share with others may never be"
            " steady enough."
        )
        return cause, [remedy, again]
    if near_target:
        return "That is too close to the target to decide.", [
            "Make it a little faster than required.",
            again,
        ]
    return "Time ran out before there were enough measurements.", [
        "Make single calls faster.",
        again,
    ]
