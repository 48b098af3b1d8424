"""From measurements to criteria, and from criteria to the outcome: pure functions, with a sentence
for each.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from bottleneck_lab.analysis.statistics import Interval
from bottleneck_lab.catalog import CriterionKind, CriterionSpec, FailReason
from bottleneck_lab.errors import BusyMachineError, LabError
from bottleneck_lab.grading.sequential import PAIRS, Decision, Plan, SequentialTest, State
from bottleneck_lab.grading.verdict import CriterionResult, Outcome

BUSY_CORES = 0.25
"""Cores used by other programs above which a check blames them: contention was seen to invert
results.
"""

PRESSURED_SHARE = 0.05
"""Share of time in which some program waited for a CPU (Linux pressure stall information) that is
worth naming.
"""

NOISY_SHARE = 0.1
"""Difference between single measurements, as a share, that is worth naming: ten times that of a
quiet machine.
"""

WHEN_QUIET = (
    "`lab check --when-quiet 10` waits up to ten minutes for a quiet machine, and checks then."
)

NOT_YOURS = "Not your work's fault: "
"""How the summary of an ERROR begins, to a learner."""

_HOLDS = {State.PASS: True, State.FAIL: False, State.CONTINUE: None, State.INCONCLUSIVE: None}


def sequential_test(spec: CriterionSpec, plan: Plan = PAIRS) -> SequentialTest:
    """Return the sequential test that decides `spec`. Raises LabError when the lab's author gave it
    no target.
    """
    return SequentialTest(
        target=_target(spec), direction=spec.direction, plan=plan, margin=spec.margin
    )


def grade_decision(
    spec: CriterionSpec, decision: Decision, things: str = "pairs", overall: float | None = None
) -> CriterionResult:
    """Return the result of a criterion that was sampled. `things` is what a sample is, in the
    plural: pairs, blocks.

    `overall`: the figure over all samples, each weighted by its time, where there is one. An
    undecided criterion quotes it, since the median of a few scattered samples may be any of them.
    """
    result = _result(spec, _HOLDS[decision.state], decision.interval, decision.samples, things)
    if overall is None or result.holds is not None:
        return result
    sentence = (
        f"{describe_criterion(spec)}: undecided,"
        f" {_over_all(spec, decision, things, overall)}{_reminder(spec)}."
    )
    return msgspec.structs.replace(result, value=overall, sentence=sentence)


def _over_all(spec: CriterionSpec, decision: Decision, things: str, overall: float) -> str:
    """Return words such as `62% over all 8 blocks, whose median lies between 19% and 100%`."""
    figure = (
        f"{format_figure(overall, spec.unit, spec.target)} over all"
        f" {_count(decision.samples, things)}"
    )
    if not math.isfinite(decision.interval.high):
        return f"{figure}, too few to give an interval"
    low, high = (
        format_figure(bound, spec.unit, spec.target)
        for bound in (decision.interval.low, decision.interval.high)
    )
    return f"{figure}, whose median lies between {low} and {high}"


def grade_value(
    spec: CriterionSpec, value: float, samples: int = 0, things: str = "samples"
) -> CriterionResult:
    """Return the result of a criterion whose value is exact or counted: nothing is sampled, so
    nothing bounds it.

    A value that is not a number cannot decide. Raises LabError when the lab's author gave the
    criterion no target.
    """
    bar, exact = sequential_test(spec).bar, Interval(-math.inf, value, math.inf)
    if math.isnan(value):
        return _result(spec, None, exact, samples, things)
    holds = value >= bar if spec.direction == "at_least" else value <= bar
    return _result(spec, holds, exact, samples, things)


def grade_check(
    spec: CriterionSpec, problem: str | None, checked: int, things: str = "answers"
) -> CriterionResult:
    """Return the result of a criterion that is right or wrong. `problem` says what is wrong; None:
    all `checked` were right.

    With nothing wrong and nothing checked there is no answer: `holds` is None.
    """
    text = describe_criterion(spec)
    if problem is not None:
        return CriterionResult(
            spec.id, spec.kind, False, f"{text}: no. {_sentence(problem)}", samples=checked
        )
    if checked == 0:
        return CriterionResult(
            spec.id, spec.kind, None, f"{text}: not checked, because there was nothing to check."
        )
    return CriterionResult(
        spec.id,
        spec.kind,
        True,
        f"{text}: yes ({_count(checked, things)} checked).",
        samples=checked,
    )


def lies_on_one_side(result: CriterionResult) -> bool:
    """Return True if all of the interval meets the target, or none of it does: the target lies
    outside it.
    """
    if result.low is None or result.high is None or result.target is None:
        return False
    return result.low >= result.target or result.high < result.target


def not_held_against(
    result: CriterionResult, other_cores: float, why: str = "", *, rate: bool = False
) -> CriterionResult:
    """Return the result, left open where it is a miss that other programs may have caused by using
    `other_cores` cores meanwhile. `why` says more of the cause, if it is known.

    `rate`: the figure is work done over time. It counts where it would be a miss even if the work
    had stood still whenever another program ran.
    """
    if result.holds is not False or other_cores <= BUSY_CORES:
        return result
    # In the worst case the work stood still for the share of the time, at most `other_cores`, in
    # which others ran; had it not, the rate would have been higher by 1 / (1 - share).
    reachable = (result.target or 0.0) * (1 - other_cores)
    if rate and result.high is not None and result.high < reachable:
        return result
    why = (
        why
        or f"other programs kept {other_cores:.1f} cores busy meanwhile, which may explain it all"
    )
    sentence = f"{result.sentence.rstrip('.')}. Not held against you: {why}."
    return msgspec.structs.replace(result, holds=None, sentence=sentence)


UNMEASURED = ": not measured, "
"""Stands between a criterion and the reason in the sentence of one that was not reached."""


def not_measured(spec: CriterionSpec, why: str) -> CriterionResult:
    """Return the result of a criterion that was not reached: `why` says in a few words what came
    before.
    """
    sentence = f"{describe_criterion(spec)}{UNMEASURED}{why}."
    return CriterionResult(
        spec.id,
        spec.kind,
        None,
        sentence,
        target=spec.target,
        direction=spec.direction,
        unit=spec.unit,
    )


def worst_case(results: Mapping[str, CriterionResult]) -> CriterionResult:
    """Return one result for a criterion that every case must meet on its own, so that no easy case
    can carry a hard one.

    The worst case speaks for all: one that fails before one that is undecided, then the one
    furthest on the wrong side.
    """
    # An average over cases would let one that is easy to speed up pay for one that is not.
    case, worst = min(results.items(), key=lambda item: _goodness(item[1]))
    if len(results) == 1:
        return worst
    label = f"{worst.sentence.rstrip('.')}, in the worst of {len(results)} cases ({case})."
    return msgspec.structs.replace(
        worst, sentence=label, samples=sum(result.samples for result in results.values())
    )


def _goodness(result: CriterionResult) -> tuple[int, float]:
    rank = {False: 0, None: 1, True: 2}[result.holds]
    if result.value is None:
        return rank, -math.inf
    return rank, result.value if result.direction == "at_least" else -result.value


def _target(spec: CriterionSpec) -> float:
    if spec.target is None:
        raise LabError(
            f"Criterion '{spec.id}' has no target.",
            "The lab's author must give it one in lab.toml.",
        )
    return spec.target


def _result(
    spec: CriterionSpec, holds: bool | None, interval: Interval, samples: int, things: str
) -> CriterionResult:
    """Return the verdict's form of an interval: JSON has no infinity, so a missing figure or bound
    is None.
    """
    low, value, high = (figure if math.isfinite(figure) else None for figure in interval)
    sentence = (
        f"{describe_criterion(spec)}:"
        f" {_measured(spec, holds, interval, _count(samples, things))}{_reminder(spec)}."
    )
    return CriterionResult(
        spec.id,
        spec.kind,
        holds,
        sentence,
        value,
        low,
        high,
        _target(spec),
        spec.direction,
        spec.unit,
        samples,
    )


def _measured(spec: CriterionSpec, holds: bool | None, interval: Interval, count: str) -> str:
    """Return words such as `41% (39–43%, 12 blocks)`, without a bound or a figure that is
    missing.
    """
    value = format_figure(interval.median, spec.unit, spec.target)
    undecided = "undecided, " if holds is None else ""
    if math.isnan(interval.median):
        return f"{undecided}{count} measured"
    bounds = ""
    if math.isfinite(interval.high):
        bounds = format_range(interval.low, interval.high, spec.unit, spec.target)
    details = []
    if bounds not in ("", value) and holds is not None:
        details.append(bounds)
    if not count.startswith("0 "):
        details.append(count)
    # A middle that decides nothing is no figure to quote.
    shown = bounds if bounds and holds is None else value
    in_brackets = f" ({', '.join(details)})" if details else ""
    return f"{undecided}{shown}{in_brackets}"


def _reminder(spec: CriterionSpec) -> str:
    """Return the target, where the criterion's own text does not state it."""
    if "{target}" in spec.text:
        return ""
    words = "at least" if spec.direction == "at_least" else "at most"
    margin = ""
    if spec.margin != 1:
        margin = f", and counts as met from {format_limit(sequential_test(spec).bar, spec.unit)}"
    return f"; the target is {words} {format_limit(_target(spec), spec.unit)}{margin}"


def describe_criterion(spec: CriterionSpec) -> str:
    """Return the criterion's own text, with its target, without a full stop."""
    target = "" if spec.target is None else format_limit(spec.target, spec.unit)
    return spec.text.replace("{target}", target).rstrip(". ")


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _count(n: int, things: str) -> str:
    """Return words such as `12 blocks`, `1 block`, `1 batch`."""
    return f"{n} {_singular(things) if n == 1 else things}"


def _singular(things: str) -> str:
    ending = "es" if things.endswith(("ches", "shes", "sses", "xes")) else "s"
    return things.removesuffix(ending)


def format_figure(value: float, unit: str, against: float | None = None) -> str:
    """Return a figure with its unit: a `share` (0–1) as a percentage, `x` as a ratio, others to
    three significant digits.

    Digits are added until it reads on its own side of the limit `against`, as `format_limit` prints
    that: nobody shall fail with 80% where 80% is required.
    """
    return _with_unit(_number(value, unit, against), unit)


def format_limit(value: float, unit: str) -> str:
    """Return a limit with its unit, to six significant digits: a rounded one would misstate what
    the figures beside it have to meet.
    """
    if not math.isfinite(value):
        return str(value)
    return _with_unit(f"{float(f'{_scaled(value, unit):.6g}'):,.15g}", unit)


def _with_unit(number: str, unit: str) -> str:
    if number in ("inf", "-inf", "nan"):
        return number
    # "1 batch" but "1 ms": a unit of two letters is no plural.
    if number == "1" and unit.isalpha() and unit.endswith("s") and len(unit) > 2:
        unit = _singular(unit)
    suffix = {"share": "%", "x": "x", "%": "%", "": ""}.get(unit, f" {unit}")
    return f"{number}{suffix}"


def format_range(low: float, high: float, unit: str, against: float | None = None) -> str:
    """Return two figures with one unit, such as `39–43%`; one figure where both read the same."""
    first, last = _number(low, unit, against), format_figure(high, unit, against)
    if first == _number(high, unit, against):
        return last
    return f"{first}–{last}"


def format_beside(value: float, limit: float) -> tuple[str, str]:
    """Return a figure and its limit to two significant digits, or to as many as tell them apart."""
    for digits in range(2, 17):
        texts = f"{value:.{digits}g}", f"{limit:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def _number(value: float, unit: str, against: float | None) -> str:
    if not math.isfinite(value):
        return str(value)
    # More digits until the figure reads on its own side of the target that it misses by a hair.
    for digits in range(8):
        text = _digits(value, unit, digits)
        if against is None or value == against:
            break
        shown, limit = float(text.replace(",", "")), _scaled(against, unit)
        if shown != limit and (shown > limit) == (value > against):
            break
    return text


def _scaled(value: float, unit: str) -> float:
    # 100 * 0.07 is more than 7: without the last digits, a limit equals how it reads.
    return float(f"{100 * value:.12g}") if unit == "share" else value


def _digits(value: float, unit: str, more: int) -> str:
    scaled = _scaled(value, unit)
    size = math.floor(math.log10(abs(scaled))) if scaled else 0
    places = more if unit == "share" and abs(scaled) >= 10 else max(0, 2 - size) + more
    text = f"{scaled:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


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
    machine: LabError | None = None,
    stopped: Stopped | None = None,
    conditions: Conditions | None = None,
) -> Conclusion:
    """Return the outcome of a check from all results, each criterion of `specs` having
    exactly one result for a PASS.

    `machine` is a fault of the machine or of the checker: it says nothing about the learner's work,
    so it goes first. Then what surely fails, the gravest reason first; then what is undecided; and
    only then PASS.
    """
    if isinstance(machine, BusyMachineError):
        return Conclusion(Outcome.INCONCLUSIVE, None, machine.message, [machine.remedy, WHEN_QUIET])
    machine = machine or _incomplete(results, specs, may_stop_early=stopped is not None)
    if machine is not None:
        message = machine.message
        # A sentence goes on after a colon; names in capitals stay.
        if not message[:2].isupper():
            message = message[:1].lower() + message[1:]
        return Conclusion(Outcome.ERROR, None, f"{NOT_YOURS}{message}", [machine.remedy])
    no_pass = _failure(results, stopped) or _undecided(results, conditions or Conditions())
    if no_pass:
        return no_pass
    main = next((result for result in results if result.kind == "target"), results[0])
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

_ADVICE: dict[FailReason, list[str]] = {
    "wrong output": [
        "What is wrong comes before anything else that a check judges. If it was right before, undo"
        " your changes one at a time."
    ],
    "correct but slow": [
        "Capture it again with `lab profile`; `lab report` shows what takes the time now.",
        "`lab hint` shows the next hint, if one is left and not locked.",
    ],
    "the mechanism is still there": [
        "What this lab is about is not all gone. Capture it again with `lab profile`, and look for"
        " what is left."
    ],
    "wrong diagnosis": [
        "Read your capture again with `lab report`, then correct the answer with `lab diagnose`."
    ],
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


def _failure(results: Sequence[CriterionResult], stopped: Stopped | None) -> Conclusion | None:
    # A wrong output that came before a crash explains it, and is what to mend first; what tampered
    # with the check is worse than either.
    wrong = [result for result in results if result.holds is False]
    failed = sorted(wrong, key=lambda result: list(REASONS).index(result.kind))
    if stopped is not None and (
        stopped.reason == "tampered" or not failed or failed[0].kind != "correctness"
    ):
        return Conclusion(
            Outcome.FAIL, stopped.reason, _sentence(stopped.sentence), _advice_after(stopped)
        )
    if not failed:
        return None
    reason = REASONS[failed[0].kind]
    return Conclusion(Outcome.FAIL, reason, failed[0].sentence, _ADVICE[reason])


def _advice_after(stopped: Stopped) -> list[str]:
    """Return what to do about code that did not run to its end, with the line that it names."""
    advice = _ADVICE[stopped.reason]
    if stopped.reason != "crashed":
        return advice
    lines = re.findall(r"\S+, line \d+", stopped.sentence)
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
    return Conclusion(
        Outcome.INCONCLUSIVE, None, f"{(measured or open_[0]).sentence} {cause}", advice
    )


def explain_noise(conditions: Conditions, *, near_target: bool = True) -> tuple[str, list[str]]:
    """Return why a measurement could not decide, as one sentence, and what to do about it.

    `near_target` says that there was enough for bounds, and only their distance from the target was
    too small.
    """
    again = "Then run `lab check` again."
    if (conditions.other_cores or 0) > BUSY_CORES:
        of = f" of {conditions.cores}" if conditions.cores else ""
        cause = f"Other programs kept {conditions.other_cores:.1f}{of} cores busy meanwhile."
        return cause, ["Close other programs (`top` shows them).", WHEN_QUIET]
    if (conditions.waiting or 0) > PRESSURED_SHARE:
        cause = f"Programs waited for a CPU {conditions.waiting:.0%} of the time."
        return cause, [
            "Close other programs, or use a machine or container with more CPU time to itself.",
            WHEN_QUIET,
        ]
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
