"""From measurements to the results of criteria: pure functions, with a sentence for each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from bottleneck_lab.analysis.statistics import Interval
from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.sequential import PAIRS, Decision, Plan, SequentialTest, State
from bottleneck_lab.grading.verdict import CriterionResult

BUSY_CORES = 0.25
"""Cores used by other programs above which a check blames them: contention was seen to invert
results.
"""

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
            spec.id, spec.kind, False, f"Not met: {text}. {as_sentence(problem)}", samples=checked
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


OPEN_BECAUSE = ": undecided, because "
"""Stands between a criterion and the reason in the sentence of a miss that does not count."""


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
    return left_open(result, why or f"other programs kept {other_cores:.1f} cores busy")


def left_open(result: CriterionResult, why: str) -> CriterionResult:
    """Return the result, undecided because of `why`, a clause, unless it holds."""
    if result.holds:
        return result
    # The figures stand beside the sentence, as a range: quoted in it, they would read as a miss.
    text = re.split(": (?:no|undecided), ", result.sentence.rstrip("."), maxsplit=1)[0]
    return msgspec.structs.replace(result, holds=None, sentence=f"{text}{OPEN_BECAUSE}{why}.")


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
    missing. A miss begins with `no`: its criterion's text says how it should be.
    """
    value = format_figure(interval.median, spec.unit, spec.target)
    answer = {True: "", False: "no, ", None: "undecided, "}[holds]
    if math.isnan(interval.median):
        return f"{answer}{count} measured"
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
    return f"{answer}{shown}{in_brackets}"


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


def as_sentence(text: str) -> str:
    """Return the text with a full stop, unless it ends a sentence already."""
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
