"""The case at the end of a lab: what is asked of it, and whether the answers are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.catalog import QuestionSpec, SiblingSpec
from bottleneck_lab.grading.cases import gain_by_share, reported_beside
from bottleneck_lab.grading.causes import CAUSES, MEMORY_GROWTH
from bottleneck_lab.grading.diagnosis import grade_diagnosis
from bottleneck_lab.grading.figures import CaptureFigures, figures_of
from bottleneck_lab.grading.verdict import CriterionResult

FINDING_OF = {
    "straggler": "straggler",
    "compute-bound": "tensor-cores-unused",
    "allocation-bound": "allocator-churn",
    MEMORY_GROWTH: "memory-growth",
}
"""The finding that shows a cause, if it has a different name from the cause."""

_NAMED_BY = {
    "communication-bound": "exposed_communication_ns",
    "copy-bound": "exposed_copy_ns",
}
"""The part of the wall time that has a cause's own name in a report without causes."""

LEAST_GAIN = 1.1

_BY_SHARE = (
    "Find the share of the time that the cause takes, then use Amdahl's law: 1 / (1 - share)."
)
_BY_OPERATOR = (
    f"{_BY_SHARE} Of a program that is busy, the cause takes the time of its largest operator."
)

QUESTIONS = [
    QuestionSpec(
        "cause",
        "choice",
        "What is this program's bottleneck?",
        choices=list(CAUSES),
        rules={
            "straggler": (
                "If it were that, one rank's own work would take longer than the others', step"
                " after step."
            ),
            MEMORY_GROWTH: (
                "If it were that, more memory would be allocated at the end of each step than at"
                " the end of the one before."
            ),
        },
    ),
    QuestionSpec(
        "gain",
        "ratio",
        "How many times as fast would it be with that removed entirely? If the cause is"
        f" {MEMORY_GROWTH}: by what factor would peak memory drop?",
        measure=(
            f"{_BY_SHARE} Of a device that is busy, only the time that is needless counts. For"
            f" {MEMORY_GROWTH}, divide the peak by what it would be without what earlier steps left"
            " allocated."
        ),
        from_capture="gain",
        tolerance=0.25,
    ),
]


EXACT = 0.02
"""A gain that is off by less than this (0–1) is simply right: no second figure stands beside it."""


def questions_about(spec: SiblingSpec, siblings: Sequence[SiblingSpec]) -> list[QuestionSpec]:
    """Return what is asked of a case, one of a lab's `siblings`.

    A lab that removes a program's largest operator asks so of each of its programs: asked of one,
    it would name the cause. A case of the library has the gain that was measured.
    """
    by_operator = any(each.gain_from == "top_operator_share" for each in siblings)
    if spec.case or not by_operator:
        return QUESTIONS
    cause, gain = QUESTIONS
    return [cause, msgspec.structs.replace(gain, measure=_BY_OPERATOR)]


def grade_sibling(
    spec: SiblingSpec,
    answers: Mapping[str, Any],
    summary: Summary,
    questions: list[QuestionSpec] = QUESTIONS,
) -> list[CriterionResult]:
    """Return one result for each of the `questions`: the cause against the truth, the gain against
    that or what Amdahl's law gives for the share in the capture, whichever is nearer, within a
    quarter.
    """
    truth, by_share = true_gain(spec, summary), gain_by_share(spec.cause, figures_of(summary))
    predicted = float(answers["gain"])
    nearest = min(filter(None, (truth, by_share)), key=lambda gain: abs(predicted / gain - 1))
    seen = CaptureFigures({"gain": nearest}, summary.wall_ns, lambda _stretch: {})
    (cause, gain), _ = grade_diagnosis(questions, answers, {"cause": spec.cause}, seen)
    if not cause.holds:
        sentence = "gain: Not judged: it rests on the wrong cause."
        gain = msgspec.structs.replace(gain, holds=None, sentence=sentence)
    elif gain.holds:
        origin = "read off the capture"
        if nearest == by_share:
            origin = "by Amdahl's law from its share of the capture"
        elif spec.gain:
            origin = "measured without the cause"
        reported = summary.findings[0].expected_gain_ratio if summary.findings else 0.0
        given = f"gain: {gain.value:.2f}x"
        sentence = f"{given}, within a quarter of the {nearest:.2f}x {origin}."
        if abs(predicted / nearest - 1) < EXACT:
            sentence = f"{given} is right, {origin}."
        elif reported and spec.cause != MEMORY_GROWTH:
            sentence += reported_beside(spec.cause, reported, truth, nearest)
        gain = msgspec.structs.replace(gain, sentence=sentence)
    return [cause, gain]


def true_gain(spec: SiblingSpec, summary: Summary) -> float:
    """Return the most that removing the cause can bring: what a case of the library measured,
    Amdahl's law for a share, or the ratio that the capture shows.
    """
    if spec.gain:
        return spec.gain
    share = removed_share(spec, summary)
    if share is not None:
        return ceiling(share)
    return max(figures_of(summary).get(spec.gain_from, 0.0), 1.0)


def removed_share(spec: SiblingSpec, summary: Summary) -> float | None:
    """Return the share (0–1) of the capture that goes with the cause; None if the gain of a case is
    not told by a share.
    """
    if spec.gain or not spec.gain_from.endswith("_share"):
        return None
    return min(figures_of(summary).get(spec.gain_from, 0.0), 1.0)


def misdescribed(spec: SiblingSpec, summary: Summary) -> str:
    """Return what a case's capture shows otherwise than the lab says, as a sentence; "" where
    nothing.
    """
    # The costliest finding: a case has one cause, and it must be the top one.
    first = summary.findings[0] if summary.findings else None
    shown = first and {
        first.cause,
        *(cause for cause, id_ in FINDING_OF.items() if id_ == first.id),
    }
    if spec.cause not in (shown or {"compute-bound"}):
        shown_words = "nothing at all, as where a device is busy all the time"
        if first:
            shown_words = f"`{first.id}`, which is {first.cause}"
        return f"the costliest finding of its capture is {shown_words}, not {spec.cause}."
    if true_gain(spec, summary) <= LEAST_GAIN:
        return (
            f"its capture shows no gain worth predicting from `{spec.gain_from}`"
            f" ({true_gain(spec, summary):.2f}x)."
        )
    parts = {
        name: sum(getattr(use, name) for use in summary.devices)
        for name in ("compute_ns", "idle_ns", *_NAMED_BY.values())
    }
    if max(parts, key=lambda name: parts[name]) == _NAMED_BY.get(spec.cause):
        return (
            f"most of its time is that of {spec.cause.removesuffix('-bound')} alone, so the first"
            " bar of its report names the cause."
        )
    return ""
