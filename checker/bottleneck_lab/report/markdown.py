"""A verdict as Markdown, for pull requests, chat and course pages."""

from __future__ import annotations

import re

from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.report import verdict_words, words

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$@])")
_MARKS: dict[verdict_words.Mark, str] = {
    **verdict_words.SIGNS,
    "right": "✅",
    "wrong": "❌",
    "undecided": "❔",
}


def render_verdict(verdict: Verdict) -> str:
    """Return the verdict as GitHub-flavoured Markdown. No text of a lab or a learner becomes
    markup.
    """
    lines = []
    if verdict.device == "virtual":
        lines = [words.EMULATED]
    lines += verdict_words.join_facts(verdict.isolation) + verdict_words.join_facts(
        verdict.environment
    )
    parts = [
        f"## {verdict.outcome}: {_plain(verdict_words.headline(verdict))}",
        (
            f"**{_plain(verdict.lab)}** on {words.DEVICE_NAMES[verdict.device]}."
            f" {_plain(verdict.summary)}"
        ),
        _criteria_table(verdict),
        verdict_words.describe_prediction(verdict),
        _list("What to do next", verdict.advice),
        _list("Worth knowing", verdict.notes),
        _list(
            "How this was measured",
            (
                [
                    *lines,
                    f"{words.format_moment(verdict.started_at)}, {verdict.duration_s:.0f} s",
                    verdict_words.ATTESTATION_MEANS[verdict.attestation],
                ]
            ),
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _criteria_table(verdict: Verdict) -> str:
    if not verdict.criteria:
        return ""
    rows = ["| | criterion | measured | wanted | interval |", "| --- | --- | --- | --- | --- |"]
    for criterion in verdict.criteria:
        cells = [
            f"{criterion.sentence} {verdict_words.describe_doubt(criterion)}".strip(),
            verdict_words.format_measured(criterion),
            verdict_words.format_target(criterion),
            verdict_words.format_interval(criterion),
        ]
        mark = _MARKS[verdict_words.mark_of(criterion)]
        rows.append(f"| {mark} | {' | '.join(map(_plain, cells))} |")
    return "\n".join(rows)


def _list(title: str, items: list[str]) -> str:
    if items:
        return f"### {title}\n\n" + "\n".join(f"- {_plain(item)}" for item in items)
    return ""


def _plain(text: str) -> str:
    """Return `text` on one line, with everything that Markdown or HTML would read as markup
    escaped.
    """
    return (
        _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\>", "&gt;")
    )
