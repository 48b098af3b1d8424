"""How verdicts are worded, the same in every rendering: criteria, diagnoses, gains, the machine."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from bottleneck_lab.analysis.comparing.comparability import VERSIONS, format_version
from bottleneck_lab.catalog import criterion_label, recorded_lab
from bottleneck_lab.catalog.spec import CriterionSpec
from bottleneck_lab.grading.calibration import EXACT, RIGHT, describe_factor
from bottleneck_lab.grading.conclusion import REASONS
from bottleneck_lab.grading.criteria import (
    OPEN_BECAUSE,
    UNMEASURED,
    as_sentence,
    describe_criterion,
    format_figure,
    format_limit,
    format_range,
)
from bottleneck_lab.grading.diagnosis import describe_check_ceiling
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Standing, Verdict
from bottleneck_lab.report.check_ceiling import check_ceiling
from bottleneck_lab.report.words import format_duration
from bottleneck_lab.trace.names import CALIBRATED, MODELLED_HOST
from bottleneck_lab.wording import counted

OUTCOME_MEANS = {
    Outcome.PASS: "all criteria are met",
    Outcome.FAIL: "a criterion is not met",
    Outcome.INCONCLUSIVE: "the measurement could not decide",
    Outcome.ERROR: "the machine or the checker failed, not your work",
}

ATTESTATION_MEANS = {
    "self-attested": "Self-attested: measured on the learner's own machine, unsigned.",
    "verified": "Verified: measured and signed by a cohort's runner.",
}


def format_measured(criterion: CriterionResult) -> str:
    """Return the value, with as many digits as it takes to tell it from the target; the count
    behind it where there is one; what bounds it while it is open; empty if the criterion has none.
    """
    if criterion.counted is not msgspec.UNSET:
        return criterion.counted
    if criterion.value is None:
        return ""
    if criterion.holds is None and criterion.low is not None and criterion.high is not None:
        return format_range(criterion.low, criterion.high, criterion.unit, criterion.target)
    return format_figure(criterion.value, criterion.unit, criterion.target)


def describe_miss(verdict: Verdict, criterion: CriterionResult) -> str:
    """Return the sentence of a criterion that is missed or open. Where it names a fault or a figure
    after the criterion's whole text, the short label and the target stand for that text; what the
    text adds after a colon, such as exceptions, comes last.
    """
    lab = recorded_lab(verdict.lab)
    device = lab.spec.devices.get(verdict.device) if lab else None
    for spec in device.criteria if device else []:
        if spec.id != criterion.id:
            continue
        text, target = describe_criterion(spec), format_target(spec)
        fault, figure = f"Not met: {text}. ", f"{text}: no, "
        if criterion.sentence.startswith(fault):
            wanted = f"wanted {target}; " if target else ""
            return f"{spec.label or spec.id}: {wanted}{criterion.sentence.removeprefix(fault)}"
        if spec.label and target and criterion.sentence.startswith(figure):
            measured = criterion.sentence.removeprefix(figure).rstrip(".")
            more = text.partition(": ")[2]
            added = f" {as_sentence(more[:1].upper() + more[1:])}" if more else ""
            return f"{spec.label}: {measured}; wanted {target}.{added}"
    return criterion.sentence


def format_target(criterion: CriterionResult | CriterionSpec) -> str:
    """Return the target with its direction, such as `at least 80%`; empty if the criterion has
    none.
    """
    if criterion.target is None:
        return ""
    if criterion.unit == "share" and criterion.direction == "at_least" and criterion.target == 1:
        return "100%"  # no share is larger
    if criterion.direction == "at_most" and criterion.target == 0:
        return "none"
    words = "at most"
    if criterion.direction == "at_least":
        words = "at least"
    return f"{words} {format_limit(criterion.target, criterion.unit)}"


def unmeasured_because(criterion: CriterionResult) -> str:
    """Return why a criterion was not reached, or an answer not judged, as a clause such as `because
    the check ended`; empty for one that was.
    """
    if criterion.holds or (criterion.holds is False and criterion.kind != "diagnosis"):
        return ""
    if choice := re.search(_RESTS_ON, criterion.sentence):
        return f"because your `{choice[1]}` is wrong"
    reason = re.search(_UNMEASURED, criterion.sentence)
    return reason[1] if reason else ""


_UNMEASURED = re.compile(rf"(?:{UNMEASURED}|: not checked, |(?:: n|^N)ot judged, )(.+?)\.?$")

_RESTS_ON = re.compile(r"It rests on (?:your )?`(\w+)`: correct that first\.$")
"""The words of a lab whose check judges the answers itself, and of earlier versions."""

Mark = Literal["right", "wrong", "undecided", "not judged"]
"""How a criterion or an answer stands: each has one sign, the same in every rendering."""

SIGNS: dict[Mark, str] = {"right": "✓", "wrong": "✗", "undecided": "?", "not judged": "–"}


def mark_of(result: CriterionResult) -> Mark:
    """Return how a result stands. `undecided` was measured and could not be told; `not judged` was
    not reached, or follows from a choice that is wrong.
    """
    if unmeasured_because(result):
        return "not judged"
    if result.holds is None:
        return "undecided"
    return "right" if result.holds else "wrong"


def describe_step_times(verdict: Verdict, criterion: CriterionResult) -> str:
    """Return the times that the speed of a step is the ratio of: the shipped script's, then this
    one's; empty for other criteria, and where they were not measured.
    """
    before = verdict.measurement.get("shipped", {}).get("step_us")
    after = verdict.measurement.get("step_us")
    if criterion.id != "step-speedup" or not before or not after:
        return ""
    times = " → ".join(format_duration(us * 1000) for us in (before, after))
    return f"{times} a step, on the check's own data"


def describe_doubt(criterion: CriterionResult) -> str:
    """State why a measured criterion is open, where its own sentence does not: its target lies
    between its bounds. Empty otherwise.
    """
    low, high, target = criterion.low, criterion.high, criterion.target
    if criterion.holds is not None or low is None or high is None or target is None:
        return ""
    if OPEN_BECAUSE in criterion.sentence:
        return ""
    return "The target lies in that range." if low < target <= high else ""


def format_interval(criterion: CriterionResult) -> str:
    """Return the interval and the number of samples behind it; empty if nothing was sampled. An
    open end is stated as such.
    """
    low, high = (_finite(bound) for bound in (criterion.low, criterion.high))
    parts = []
    if low is not None and high is not None:
        parts.append(
            f"between {format_figure(low, criterion.unit, criterion.target)} and"
            f" {format_figure(high, criterion.unit, criterion.target)}"
        )
    elif low is not None:
        parts.append(f"at least {format_figure(low, criterion.unit, criterion.target)}")
    elif high is not None:
        parts.append(f"at most {format_figure(high, criterion.unit, criterion.target)}")
    if criterion.samples:
        parts.append(counted(criterion.samples, "sample"))
    return ", ".join(parts)


@dataclass(frozen=True)
class Gauge:
    """Figures of a criterion's bar, which runs from 0 to `end`."""

    value: float
    low: float
    high: float
    target: float
    end: float


def gauge(criterion: CriterionResult) -> Gauge | None:
    """Return the bar's figures; None without a number and a target. An open end of the interval is
    drawn at the value.

    The bar ends at 1 for shares up to 1, otherwise a fifth beyond the largest figure on it.
    """
    value, target = _finite(criterion.value), _finite(criterion.target)
    if value is None or target is None:
        return None
    low, high = (
        value if _finite(bound) is None else float(bound or 0)
        for bound in (criterion.low, criterion.high)
    )
    largest = max(value, high, target)
    end = 1.0 if criterion.unit == "share" and largest <= 1 else largest * 1.2
    return Gauge(value, low, high, target, end if end > 0 else 1.0)


def _finite(figure: float | None) -> float | None:
    if figure is not None and math.isfinite(figure):
        return figure
    return None


ESTIMATE_LEAVES_OUT = (
    "The peak that a report promises is that of steps which leave nothing behind: what your fix"
    " still keeps until the next report, such as losses, comes on top."
)
LESS_IS_KEPT = (
    "Your peak is lower than what you worked out from a report: a step of your fix makes less, or"
    " less is kept when memory is highest."
)
_UNFINISHED = (REASONS["target"], REASONS["mechanism"])
"""Why work failed that may be right and not yet all of the fix."""
GO_ON = "If you meant to change more, go on: each check is compared anew."


def describe_prediction(verdict: Verdict) -> str:
    """Compare predicted and measured gain; empty without a prediction.

    Before the check passes it states the progress, afterwards how far apart the two are.
    """
    if verdict.prediction is None:
        return ""
    predicted, measured = verdict.prediction.predicted, verdict.prediction.measured
    quantity = verdict.prediction.quantity
    passed = verdict.outcome is Outcome.PASS
    if quantity == "memory":
        prediction = f"You predicted that the peak of memory falls by a factor of {predicted:.2f}"
    elif quantity == "reference":
        prediction = f"You predicted that the shipped code must become {predicted:.2f}x as fast"
    else:
        prediction = f"You predicted {predicted:.2f}x"
    if verdict.prediction.corrected:
        prediction += f" first (corrected: {verdict.prediction.corrected:.2f}x)"
    if measured is None:
        # Work that passed was measured; the factor that it needed is known from other checks only.
        gain = f"the gain was {describe_open_gain(verdict)}"
        if reason := _undecided_because(verdict):
            gain += f"{',' * (not gain.endswith('undecided'))} because {reason}"
        return f"{prediction}." if passed else f"{prediction}; {gain}."
    near = describe_factor(predicted / measured if measured > 0 else math.inf)
    if verdict.prediction.corrected and measured > 0:
        corrected = describe_factor(verdict.prediction.corrected / measured)
        near += f"; the corrected one is {corrected}"
    if quantity == "reference":
        return f"{prediction}; a check of it measured {measured:.2f}x: {near}."
    if quantity == "memory":
        change = f"{prediction}; {_describe_peaks(verdict.measurement)} {measured:.2f}"
        so_far = " so far" * (verdict.reason in _UNFINISHED)
        compared = f"{change}: {near}.{_compare_estimate(predicted, measured)}"
        return compared if passed else f"{change}{so_far}."
    if passed:
        compared = f"{prediction} and measured {measured:.2f}x: {near}."
    else:
        compared = f"{prediction}; this attempt ran {measured:.2f}x as fast."
    return " ".join([compared, *_remark(verdict)])


def _compare_estimate(predicted: float, measured: float) -> str:
    """Return what the report's estimate leaves out, where more was predicted than measured, and
    what it may count in vain, where less was.
    """
    if predicted > EXACT * measured:
        return f" {ESTIMATE_LEAVES_OUT}"
    return f" {LESS_IS_KEPT}" if measured > EXACT * predicted else ""


def _remark(verdict: Verdict) -> list[str]:
    """Return why no larger gain could be measured, where a check has such a limit and the
    prediction was above it; else, after a pass that gained less than was predicted, that one may go
    on.
    """
    lab, prediction = recorded_lab(verdict.lab), verdict.prediction
    most = lab and check_ceiling(lab, verdict.device)
    if prediction is None:
        return []
    largest = max(prediction.predicted, prediction.corrected)
    if most and largest > _ROUNDED_UP * most:
        return [describe_check_ceiling(most)]
    passed = verdict.outcome is Outcome.PASS
    return [GO_ON] if passed and prediction.predicted > RIGHT * (prediction.measured or 0) else []


_ROUNDED_UP = 1.01
"""A predicted gain may be above the largest that a check can measure by this much before a sentence
explains the difference.
"""


def describe_open_gain(verdict: Verdict) -> str:
    """Return what is known of a gain that has no figure: the bounds of the criterion that is about
    the speed over the shipped code's, where it stayed open.
    """
    lab = recorded_lab(verdict.lab)
    device = lab.spec.devices.get(verdict.device) if lab else None
    gains = [each.id for each in device.criteria if each.shipped == 1] if device else []
    for each in verdict.criteria:
        low, high = each.low, each.high
        if each.id in gains and each.holds is None and low is not None and high is not None:
            return f"between {low:.2f}x and {high:.2f}x, undecided"
    return "not measured"


def _undecided_because(verdict: Verdict) -> str:
    """Return why a check could not decide: the end of its summary, as a clause."""
    summary = verdict.summary
    for each in verdict.criteria:
        summary = summary.replace(each.sentence, "")
    last = re.split(r"(?<=\.) ", summary.strip())[-1].rstrip(".")
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return ""
    return last[:1].lower() + last[1:]


def _describe_peaks(measurement: Mapping[str, Any]) -> str:
    """Return how the peak went from the shipped code's to this one's, up to the factor itself."""
    before = measurement.get("shipped", {}).get("peak_mib")
    after = measurement.get("figures", {}).get("peak-mib")
    if before is None or after is None:
        return "this attempt lowers it by a factor of"
    return f"it went from {before:.3g} MiB to {after:.3g} MiB, a factor of"


NOT_JUDGED = "diagnosis not judged yet"


def describe_standing(verdict: Verdict) -> str:
    """State what the learner's diagnosis is worth, in a few words: how the first one did, and if
    corrected answers are right now. Empty if nothing is known about it.
    """
    standing, wrong = verdict.diagnosis, wrong_answers(verdict)
    if standing is None:
        return ""
    if standing.copied:
        return "the code is the reference solution's, which does not count as yours"
    how = {
        "hints": "all hints taken",
        "revealed": "causes revealed",
        "solution": "solution seen",
    }.get(standing.told)
    if how:
        return f"the diagnosis does not count as yours ({how})"
    answered = _describe_answering(verdict, standing, wrong)
    if standing.named is None:
        judged = f"{counted(wrong, 'answer')} wrong" if wrong else NOT_JUDGED
        return f"{judged}{answered}"
    hints = ""
    if standing.hints:
        hints = f" with {counted(standing.hints, 'hint')}"
    if not asks_for_cause(verdict):
        some_wrong = not standing.named or standing.measured is False
        return f"{'not ' if some_wrong else ''}all answers right on the first try{hints}{answered}"
    named = "cause named" if standing.named else "cause not named"
    evidence = ""
    then = " at first" if standing.corrections else ""
    if standing.missed:
        missed = [each for each in standing.missed if standing.named or not _follows(verdict, each)]
        evidence = f", {' and '.join(missed)} wrong{then}" if missed else ""
    elif standing.named and standing.measured is False:
        evidence = f", another answer was wrong{then}"
    return f"{named} on the first try{hints}{evidence}{answered}"


def _follows(verdict: Verdict, id_: str) -> bool:
    """Return True if an answer is not judged where the cause is wrong."""
    lab = recorded_lab(verdict.lab)
    return any(each.id == id_ and each.follows for each in lab.spec.questions) if lab else False


def _describe_answering(verdict: Verdict, standing: Standing, wrong: int) -> str:
    """State how the answers stand in this check, where they were corrected and it judged them;
    after a comma.
    """
    if not standing.corrections or standing.named is None:
        return ""
    if wrong:
        return f", {counted(wrong, 'answer')} wrong now"
    if standing.named and standing.measured is not False:
        return ""  # they were right from the first
    marks = [mark_of(each) for each in verdict.criteria if each.kind == "diagnosis"]
    return ", corrected since" if "right" in marks else ""


def asks_for_cause(verdict: Verdict) -> bool:
    """Return True if the lab asks for the cause, or is not here any more."""
    lab = recorded_lab(verdict.lab)
    return lab is None or lab.spec.asks_for_cause


def wrong_answers(verdict: Verdict) -> int:
    """Return the number of answers that a check found wrong."""
    return sum(each.kind == "diagnosis" and mark_of(each) == "wrong" for each in verdict.criteria)


def main_criterion(attempts: Sequence[Verdict]) -> str | None:
    """Return the id of the criterion that a lab is about: of `main_criteria` the one that most
    checks found missed. None if no figure was measured.
    """
    fitting, missed = main_criteria(attempts), Counter[str]()
    for verdict in attempts:
        missed.update(each.id for each in verdict.criteria if each.holds is False)
    return max(fitting, key=lambda id_: missed[id_], default=None)


def main_criteria(attempts: Sequence[Verdict]) -> list[str]:
    """Return the ids of the criteria of the kind that a lab's shipped code fails, of those whose
    figure was measured; where none was, of the targets.
    """
    lab = recorded_lab(attempts[-1].lab) if attempts else None
    about = lab.spec.starter_fails if lab else "correct but slow"
    measured = [
        each
        for verdict in attempts
        for each in verdict.criteria
        if each.value is not None and each.kind != "diagnosis"
    ]
    fitting = [each for each in measured if REASONS[each.kind] == about]
    fitting = fitting or [each for each in measured if each.kind == "target"]
    return list(dict.fromkeys(each.id for each in fitting))


def headline(verdict: Verdict) -> str:
    """Return the outcome's second half: why it failed, or what the outcome means. Where right and
    fast work misses a limit, its own cause may well be gone: that limit is named. So is the first
    that is missed where right results are what the lab is about: the others may be right.
    """
    missed = [
        criterion_label(verdict.lab, verdict.device, each.id)
        for each in verdict.criteria
        if REASONS[each.kind] == verdict.reason and each.holds is False
    ]
    if missed and verdict.reason == REASONS["mechanism"]:
        return f"{'limits are' if missed[1:] else 'a limit is'} missed: {'; '.join(missed)}"
    lab = recorded_lab(verdict.lab)
    about_results = lab is not None and lab.spec.starter_fails == REASONS["correctness"]
    if missed and about_results and verdict.reason == REASONS["correctness"]:
        others = f" and {len(missed) - 1} more" if missed[1:] else ""
        wrong = wrong_answers(verdict)
        answers = f"; {counted(wrong, 'answer')} wrong" if wrong else ""
        return f"missed: {missed[0]}{others}{answers}"
    unreached = any(
        each.kind == "correctness" and unmeasured_because(each) for each in verdict.criteria
    )
    if unreached and verdict.reason == REASONS["target"]:
        return "too slow to be judged"
    return verdict.reason or OUTCOME_MEANS[verdict.outcome]


def describe_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Return what a capture's own facts tell a reader, by name; without those that only matter to
    programs, such as when its clock began.
    """
    described = {}
    for fact, name in _RECORDED.items():
        if fact in facts:
            described[name] = "no" if facts[fact] in ("0", "False", "false") else "yes"
    for fact, name in _VERSIONS.items():
        if fact in facts:
            described[name] = format_version(facts[fact])
    if facts.get(CALIBRATED, "").isdecimal():
        batch = format_duration(int(facts[CALIBRATED]))
        described["emulated device"] = f"set to {batch} for a full batch, by this machine's speed"
    return described


_RECORDED = {
    "record_shapes": "shapes recorded",
    "with_stack": "Python frames recorded",
    "profile_memory": "memory recorded",
    MODELLED_HOST: "host's times modelled",
}

_VERSIONS = {
    **VERSIONS,
    "EXPORT_PRODUCT_VERSION": "Nsight Systems",
}


def join_facts(facts: dict[str, str]) -> list[str]:
    """Return `name: value` for every fact, in the order given."""
    return [f"{name}: {value}" for name, value in facts.items()]
