"""The page's sections about a check: criteria, prediction, attempts so far, diagnosis,
circumstances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bottleneck_lab.catalog import criterion_label
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.report import verdict_words, words
from bottleneck_lab.report.page import charts
from bottleneck_lab.report.page.attempts_chart import attempts_chart
from bottleneck_lab.report.page.markup import Markup, Section, table, tag

_STYLES: dict[verdict_words.Mark, str] = {
    "right": "PASS",
    "wrong": "FAIL",
    "undecided": "INCONCLUSIVE",
    "not judged": "soft",
}


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question of the diagnosis with the learner's answer, and what the capture says about it."""

    id: str
    ask: str
    answer: str
    evidence: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The answers of a diagnosis. `about` says which capture they are about, where that is not the
    one of the report.
    """

    answers: Sequence[AnsweredQuestion]
    about: str = ""


def section(
    anchor: str, title: str, *children: str | Iterable[str | None] | None, lead: str = ""
) -> Section:
    """Return a part of the page with its title, `lead` (a sentence or two that introduce it) and
    children.
    """
    intro = None
    if lead:
        intro = tag("p", lead, class_="soft")
    heading = tag("h2", title, id=f"{anchor}-title")
    made = Section(
        tag("section", heading, intro, *children, id=anchor, aria_labelledby=f"{anchor}-title")
    )
    made.anchor = anchor
    return made


def verdict_section(verdict: Verdict) -> Section:
    """Return every criterion of the newest attempt, and what to do next."""
    lead = f"{verdict.outcome}: {verdict_words.headline(verdict)}."
    advice = _list("What to do next", verdict.advice)
    notes = _list("Worth knowing", verdict.notes)
    drawn = []
    for each in verdict.criteria:
        stands = verdict_words.mark_of(each)
        sign, style = verdict_words.SIGNS[stands], _STYLES[stands]
        mark = tag("span", sign, class_=f"mark {style}", role="img", aria_label=stands)
        label = criterion_label(verdict.lab, verdict.device, each.id)
        miss = verdict_words.describe_miss(verdict, each)
        figures: list[str] = [each.kind]
        if not miss.startswith(f"{label}: "):
            figures.insert(0, label)
        if each.value is not None or each.counted is not msgspec.UNSET:
            target = verdict_words.format_target(each)
            value = verdict_words.format_measured(each)
            figures.insert(0, f"{value}, wanted {target}" if target else value)
        figures.append(verdict_words.describe_step_times(verdict, each))
        figures.append(verdict_words.format_interval(each))
        line = tag("p", " · ".join(filter(None, figures)), class_="soft")
        drawn.append(
            tag(
                "div",
                tag("p", mark, f"{miss} {verdict_words.describe_doubt(each)}".strip()),
                charts.criterion_bar(each),
                line,
                class_="criterion",
            )
        )
    return section(
        "verdict",
        "The check",
        drawn,
        advice,
        notes,
        lead=lead,
    )


def _list(title: str, items: Sequence[str]) -> Markup | None:
    if items:
        return tag("div", tag("h3", title), tag("ul", [tag("li", item) for item in items]))
    return None


def prediction_section(verdict: Verdict) -> Section | None:
    """Render the predicted beside the measured gain."""
    if verdict.prediction is None:
        return None
    bars = charts.gain_bars(
        verdict.prediction.predicted,
        verdict.prediction.measured,
        verdict_words.describe_open_gain(verdict),
    )
    return section(
        "prediction",
        "Predicted and measured",
        bars,
        lead=verdict_words.describe_prediction(verdict),
    )


def attempts_section(attempts: Sequence[Verdict]) -> Section | None:
    """Return the attempts: the main figure plotted, every attempt listed."""
    if not attempts:
        return None
    rows, main = [], verdict_words.main_criteria(attempts)
    for number, verdict in enumerate(attempts, start=1):
        targets = [
            each
            for each in verdict.criteria
            if (each.kind == "target" or each.id in main) and each.value is not None
        ]
        figures = ", ".join(
            f"{criterion_label(verdict.lab, verdict.device, each.id)}:"
            f" {verdict_words.format_measured(each)}"
            for each in targets
        )
        outcome = tag("b", str(verdict.outcome), class_=verdict.outcome.value)
        rows.append(
            [
                str(number),
                outcome,
                verdict_words.headline(verdict),
                figures,
                words.format_moment(verdict.started_at),
            ]
        )
    head = ["", "outcome", "why", "figures", "checked"]
    drawn = None
    if len(attempts) > 1:
        drawn = attempts_chart(attempts)
    return section(
        "attempts",
        "Attempts so far",
        drawn,
        table(head, rows, caption="Every attempt", numeric={0}),
    )


def diagnosis_section(diagnosis: Diagnosis | None) -> Section | None:
    """Return the learner's answers beside what the capture shows."""
    if diagnosis is None:
        return None
    rows = [
        [each.ask, each.answer or "not answered", each.evidence or "a check judges it"]
        for each in diagnosis.answers
    ]
    head = ["question", "your answer", "what the capture shows"]
    caption = "Your answers beside the evidence"
    if not any(each.evidence for each in diagnosis.answers):
        rows, head, caption = [row[:-1] for row in rows], head[:-1], "Your answers"
    return section(
        "diagnosis",
        "Your diagnosis",
        table(head, rows, caption=caption),
        lead=diagnosis.about,
    )


def circumstances_section(verdict: Verdict | None, facts: Mapping[str, str]) -> Section | None:
    """Render where the figures come from: the capture's facts, the machine, the isolation, and who
    vouches for it.
    """
    groups = [("Capture", facts)]
    if verdict:
        who = {
            "started": words.format_moment(verdict.started_at),
            "took": f"{verdict.duration_s:.0f} s",
            "device": verdict.device,
        }
        groups += [
            ("Check", who),
            ("Machine", verdict.environment),
            ("Isolation", verdict.isolation),
        ]
    shown = [table(["", ""], group.items(), caption=name) for name, group in groups if group]
    if verdict:
        vouched = tag("p", verdict_words.ATTESTATION_MEANS[verdict.attestation], class_="soft")
    else:
        vouched = None
    if shown:
        return section(
            "machine", "How this was measured", vouched, tag("div", shown, class_="pair")
        )
    return None
