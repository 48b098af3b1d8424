"""A verdict in the terminal: plain text first, colour only as a second sign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from bottleneck_lab.catalog import criterion_label, current_name
from bottleneck_lab.grading.criteria import OPEN_BECAUSE, UNMEASURED
from bottleneck_lab.grading.diagnosis import RESTED_ON_WRONG_CAUSE
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict
from bottleneck_lab.report import verdict_words, words
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.wording import counted

_OUTCOME_STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.ERROR: "magenta",
}


def render_verdict(
    verdict: Verdict, console: Console, *, html: Path | None = None, started: str = ""
) -> None:
    """Print the outcome, what failed, what is open and what holds, each once, after `lab check`.

    `html` is the page with the timeline, if one was written; `started` is when it began, as the
    reader's cohort writes it.
    """
    sheet = Sheet(console)
    style = _OUTCOME_STYLES[verdict.outcome]
    sign = {
        Outcome.PASS: sheet.signs.right,
        Outcome.FAIL: sheet.signs.wrong,
        Outcome.INCONCLUSIVE: sheet.signs.undecided,
        Outcome.ERROR: "!",
    }[verdict.outcome]
    reason = sheet.safe(f"  {verdict_words.headline(verdict)}")
    title = Text.assemble((f" {sign} {verdict.outcome} ", f"bold {style}"), (reason, "bold"))
    sheet.rule(style)
    sheet.sides(title, sheet.safe(f"{current_name(verdict.lab)} on {verdict.device} "))
    sheet.rule(style)
    # What the summary says beyond the criteria, which follow it.
    summary = verdict.summary
    for criterion in verdict.criteria:
        summary = summary.replace(criterion.sentence, "")
    if summary.strip() and verdict.outcome is not Outcome.PASS:
        sheet.line(summary.strip(), indent=1)
        if verdict.criteria:
            sheet.blank()
    reached = [each for each in verdict.criteria if not verdict_words.unmeasured_because(each)]
    _print_criteria(sheet, verdict, reached)
    _print_unmeasured(sheet, verdict)
    # Predicted and measured gain, and what the first diagnosis is worth.
    sentences = [
        verdict_words.describe_prediction(verdict),
    ]
    standing = verdict_words.describe_standing(verdict)
    if standing != verdict_words.NOT_JUDGED:  # what was not judged this time is named above
        sentences.append(standing)
    if any(sentences):
        sheet.heading("Your diagnosis")
    for sentence in filter(None, sentences):
        sheet.line(sentence[:1].upper() + sentence[1:].rstrip(".") + ".", indent=1)
    _print_list(sheet, "What to do next", verdict.advice)
    _print_list(sheet, "Worth knowing", verdict.notes[:_NOTES])
    if len(verdict.notes) > _NOTES:
        left_out = counted(len(verdict.notes) - _NOTES, "more note")
        sheet.line(f"`lab report --html` has {left_out}.", indent=1, style="dim")
    # When it was checked and who vouches for it; machine and isolation are on the page and in
    # --json.
    sheet.blank()
    if verdict.device == "virtual":
        sheet.line(words.EMULATED, indent=1, style="dim")
    started = started or words.format_moment(verdict.started_at)
    began = f"Began {started}, took {verdict.duration_s:.0f} s."
    sheet.line(
        f"{began} {verdict_words.ATTESTATION_MEANS[verdict.attestation]}", indent=1, style="dim"
    )
    if html:
        sheet.heading("Report")
        sheet.path(str(html), indent=1)


def render_last_verdict(verdict: Verdict, console: Console) -> None:
    """Print the outcome of the last check, with what failed or stayed open and what to do next: it
    was printed whole when it was made.
    """
    sheet = Sheet(console)
    sheet.heading(f"The last check, {words.format_moment(verdict.started_at)}")
    style = _OUTCOME_STYLES[verdict.outcome]
    outcome = Text.assemble((str(verdict.outcome), f"bold {style}"))
    sheet.line(outcome.append(sheet.safe(f"  {verdict_words.headline(verdict)}")), indent=1)
    reached = [each for each in verdict.criteria if not verdict_words.unmeasured_because(each)]
    # A check's own count is nowhere else; other figures are in the capture and its page.
    shown = [each for each in reached if each.holds is not True or _is_counted(each)]
    _print_criteria(sheet, verdict, shown)
    held = [
        criterion_label(verdict.lab, verdict.device, each.id)
        for each in reached
        if each.holds is True and not _is_counted(each)
    ]
    if held:
        lead, lead_style = f"{sheet.signs.right} ", "bold green"
        sheet.line(", ".join(held), indent=1, lead=lead, lead_style=lead_style)
    _print_unmeasured(sheet, verdict)
    _print_list(sheet, "What to do next", verdict.advice)
    sheet.blank()
    sheet.line("`lab report --html` has the whole verdict.", indent=1, style="dim")


_NOTES = 2
"""Notes in the terminal: the first say most, and the rest is the same after every check."""

_ORDER = {False: 0, None: 1, True: 2}


def _print_criteria(sheet: Sheet, verdict: Verdict, criteria: Sequence[CriterionResult]) -> None:
    """Print what fails, then what is open, each with the reason unless it has been given, then what
    holds.
    """
    given = set[str]()
    for criterion in sorted(criteria, key=lambda each: _ORDER[each.holds]):
        _print_criterion(sheet, verdict, criterion)
        if criterion.holds is None:
            reason = criterion.sentence.partition(OPEN_BECAUSE)[2].rstrip(".")
            why = f"because {reason or 'the target lies within what was measured'}"
            why = "for the same reason" if reason in given else why
            sheet.line(f"Undecided, {why}.", style="dim", indent=3)
            given.add(reason)


def _print_criterion(sheet: Sheet, verdict: Verdict, criterion: CriterionResult) -> None:
    """Print what holds in one line; what fails or is open with its sentence and its bar."""
    marks = {
        True: (sheet.signs.right, "green"),
        False: (sheet.signs.wrong, "red"),
        None: (sheet.signs.undecided, "yellow"),
    }
    sign, style = marks[criterion.holds]
    if criterion.holds:
        label = criterion_label(verdict.lab, verdict.device, criterion.id)
        times = verdict_words.describe_step_times(verdict, criterion)
        figure = "; ".join(filter(None, (_figure(criterion), times)))
        if criterion.corrected is True:
            figure = "right now, and wrong in your first diagnosis"
            if criterion.sentence.endswith(RESTED_ON_WRONG_CAUSE):
                figure = "right now, and not judged at first, because the cause was wrong"
        sheet.line(
            f"{label}{f': {figure}' if figure else ''}",
            indent=1,
            lead=f"{sign} ",
            lead_style=f"bold {style}",
        )
        return
    text, because, _ = verdict_words.describe_miss(verdict, criterion).partition(OPEN_BECAUSE)
    if because and criterion.kind == "diagnosis":  # a fault that is not certain is none
        text = criterion_label(verdict.lab, verdict.device, criterion.id)
    sentence = f"{text}." if because else text
    sheet.line(sentence, indent=1, lead=f"{sign} ", lead_style=f"bold {style}")
    gauge, measured = verdict_words.gauge(criterion), verdict_words.format_measured(criterion)
    figure = "" if measured in sentence else measured
    if gauge and gauge.low < gauge.high:
        width = max(12, min(36, sheet.width - 40))
        bar = sheet.bar(
            low=gauge.low, high=gauge.high, end=gauge.end, width=width, target=gauge.target
        )
        sheet.line(Text.assemble((bar, style), sheet.safe(f"  {figure}".rstrip())), indent=3)
    elif gauge and figure:  # a bar of one value would show no more
        sheet.line(f"Measured: {figure}.", indent=3)
    if times := verdict_words.describe_step_times(verdict, criterion):
        sheet.line(f"{times}.", indent=3, style="dim")


def _print_unmeasured(sheet: Sheet, verdict: Verdict) -> None:
    """Print the names of what was not measured, in one line a reason."""
    labels: dict[str, list[str]] = {}
    for each in verdict.criteria:
        if why := verdict_words.unmeasured_because(each):
            label = criterion_label(verdict.lab, verdict.device, each.id)
            state = "Not judged" if each.kind == "diagnosis" else "Not measured"
            # An earlier check may have judged the answers: the standing below says so.
            this_time = " this time" * (state == "Not judged" and UNMEASURED in each.sentence)
            labels.setdefault(f"{state}{this_time}, {why}", []).append(label)
    for reason, names in labels.items():
        sheet.line(
            f"{reason}: {', '.join(names)}.", indent=1, lead=f"{sheet.signs.unjudged} ", style="dim"
        )


def _figure(criterion: CriterionResult) -> str:
    measured, target = (
        verdict_words.format_measured(criterion),
        verdict_words.format_target(criterion),
    )
    if measured and target:
        return f"{measured}, wanted {target}"
    # Of a number without a target, only a count says something by itself.
    return measured if _is_counted(criterion) else ""


def _is_counted(criterion: CriterionResult) -> bool:
    return criterion.counted is not msgspec.UNSET


def _print_list(sheet: Sheet, title: str, items: list[str]) -> None:
    if items:
        sheet.heading(title)
    for item in items:
        sheet.line(item, indent=1, lead=f"{sheet.signs.bullet} ")
