"""Rules for a capture of the shipped workload: it must show what lab.toml says about it."""

from __future__ import annotations

from collections.abc import Iterator

from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.catalog import Lab
from bottleneck_lab.declared import unknown
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.measure.lab_rules.declarations import asked_by_kind, at

COSTLY = 1.2
"""A finding whose removal gains more than this is worth a lab, and a line in lab.toml."""


def captured(lab: Lab, summary: Summary) -> list[str]:
    """Return where a capture of the starter contradicts lab.toml, one sentence each."""
    sentences = list(_taught(lab, summary))
    ids = [finding.id for finding in summary.findings]
    for number, hint in enumerate(lab.spec.hints):
        if hint.finding is not None and hint.finding not in ids:
            sentences.append(
                f"{at(lab, 'hints', number)}: the capture has no finding `{hint.finding}` for its"
                f" evidence; it shows {', '.join(ids) or 'none'}."
            )
    figures = figures_of(summary)
    for number, question in enumerate(lab.spec.questions):
        for figure in filter(None, (question.from_capture, question.shows)):
            if figure not in figures:
                problem = f"{at(lab, 'questions', number)}: the capture has no figure `{figure}`"
                sentences.append(unknown(problem, figure, list(figures)))
    return sentences


def _taught(lab: Lab, summary: Summary) -> Iterator[str]:
    """Yield that the costliest finding is not the one that lab.toml names."""
    costliest = summary.findings[0] if summary.findings else None
    shown = "none at all"
    if costliest:
        shown = f"`{costliest.id}` ({costliest.bound_ratio:.2f}x)"
    if lab.spec.taught and (costliest is None or costliest.id != lab.spec.taught):
        yield (
            f"{at(lab, 'taught')}: the costliest finding of the capture is {shown}, not"
            f" `{lab.spec.taught}`."
        )
    # A lab whose kind asks the questions itself teaches no finding of a capture.
    missing = costliest is not None and costliest.bound_ratio > COSTLY
    if not lab.spec.taught and missing and not asked_by_kind(lab):
        yield (
            f"{at(lab)}: the costliest finding of the capture is {shown}, and `taught` names none."
        )
