"""A verdict in the terminal: plain text first, colour only as a second sign."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Prediction, Verdict
from bottleneck_lab.report import words
from bottleneck_lab.report.terminal import Sheet

_OUTCOME_STYLES = {Outcome.PASS: "green", Outcome.FAIL: "red", Outcome.INCONCLUSIVE: "yellow", Outcome.ERROR: "magenta"}


def render_verdict(verdict: Verdict, console: Console, *, html: Path | None = None) -> None:
    """What a learner sees after `lab check`. `html` is where the page with the timeline stands, if one was written."""
    sheet = Sheet(console)
    _print_outcome(sheet, verdict)
    for criterion in verdict.criteria:
        sheet.blank()
        _print_criterion(sheet, criterion)
    if verdict.prediction:
        sheet.heading("Predicted and measured")
        sheet.line(words.describe_prediction(verdict), indent=1)
        _print_gains(sheet, verdict.prediction)
    _print_list(sheet, "What to do next", verdict.advice)
    _print_list(sheet, "Worth knowing", verdict.notes)
    sheet.heading("How this was measured")
    _print_circumstances(sheet, verdict)
    if html:
        sheet.heading("Report")
        sheet.path(str(html), indent=1)


def _print_outcome(sheet: Sheet, verdict: Verdict) -> None:
    style = _OUTCOME_STYLES[verdict.outcome]
    sign = {Outcome.PASS: sheet.signs.right, Outcome.FAIL: sheet.signs.wrong}.get(verdict.outcome, "!")
    reason = sheet.safe(f"  {words.headline(verdict)}")
    title = Text.assemble((f" {sign} {verdict.outcome} ", f"bold {style}"), (reason, "bold"))
    sheet.rule(style)
    sheet.sides(title, sheet.safe(f"{verdict.lab} on {verdict.device} "))
    sheet.rule(style)
    sheet.line(verdict.summary, indent=1)


def _print_criterion(sheet: Sheet, criterion: CriterionResult) -> None:
    """The sentence, the bar where there is a target, and how sure the figure is."""
    sign, style = _mark(sheet, criterion.holds)
    sheet.line(criterion.sentence, indent=1, lead=f"{sign} ", lead_style=f"bold {style}")
    gauge = words.gauge(criterion)
    if gauge:
        figures = sheet.safe(f"  {words.format_measured(criterion)}, wanted {words.format_target(criterion)}")
        sheet.line(Text.assemble((_gauge_bar(sheet, gauge), style), figures), indent=3)
    details = [criterion.id, criterion.kind, words.format_interval(criterion)]
    sheet.line(sheet.signs.between.join(filter(None, details)), style="dim", indent=3)


def _mark(sheet: Sheet, holds: bool | None) -> tuple[str, str]:
    if holds is None:
        return "?", "yellow"
    return (sheet.signs.right, "green") if holds else (sheet.signs.wrong, "red")


def _gauge_bar(sheet: Sheet, gauge: words.Gauge) -> str:
    width = max(12, min(36, sheet.width - 40))
    return sheet.bar(low=gauge.low, high=gauge.high, end=gauge.end, width=width, target=gauge.target)


def _print_gains(sheet: Sheet, prediction: Prediction) -> None:
    end = max(prediction.predicted, prediction.measured or 0.0, 1.0)
    for name, gain in (("predicted", prediction.predicted), ("measured", prediction.measured)):
        if gain is not None:
            bar = sheet.bar(low=gain, high=gain, end=end, width=max(12, min(36, sheet.width - 40)))
            sheet.line(f"{bar}  {gain:.2f}x {name}", indent=3)


def _print_list(sheet: Sheet, title: str, items: list[str]) -> None:
    if items:
        sheet.heading(title)
    for item in items:
        sheet.line(item, indent=1, lead=f"{sheet.signs.bullet} ")


def _print_circumstances(sheet: Sheet, verdict: Verdict) -> None:
    """Device, isolation, machine and who vouches for it: what a reader needs before believing the figures."""
    if verdict.device == "virtual":
        sheet.line(words.EMULATED, indent=1)
    for name, facts in (("Isolation", verdict.isolation), ("Machine", verdict.environment)):
        if facts:
            sheet.line(sheet.signs.between.join(words.join_facts(facts)), indent=1, lead=f"{name:10}")
    sheet.line(
        f"{words.format_moment(verdict.started_at)}, {verdict.duration_s:.0f} s", indent=1, lead=f"{'Checked':10}"
    )
    sheet.line(words.ATTESTATION_MEANS[verdict.attestation], indent=1)
