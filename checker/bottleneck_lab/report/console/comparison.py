"""Two captures side by side in the terminal: what got better, what got worse, what is only
noise.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from bottleneck_lab.analysis.comparing.comparison import Comparison
from bottleneck_lab.report import words
from bottleneck_lab.report.comparison_words import (
    ALWAYS,
    GROUPS,
    describe_ahead,
    describe_charge,
    describe_differences,
    describe_headline,
    describe_limits,
    describe_memory,
    describe_often,
    describe_others,
    describe_samples,
    describe_unreliable,
    format_between,
    format_change_time,
    format_ratio,
    judge_change,
    kernel_labels,
    label_change,
    list_findings,
    shown_changes,
    title_group,
)
from bottleneck_lab.report.console.terminal import Sheet

_STYLES = {
    "better": "green",
    "worse": "red",
    "same": "",
    "cannot tell": "yellow",
    "new": "",
    "differs": "",
    "charge": "",
    "gone": "",
    "hidden": "",
    "moved": "",
}

_SHORT = {"cannot tell": "?"}
"""How a word is printed beside each part: `?` is what cases and checks print as well."""


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print the step first, then every part of it that changed by more than the noise."""
    sheet = Sheet(console)
    headline, outcome = describe_headline(comparison)
    style = _STYLES[outcome]
    sheet.rule(style)
    for line in describe_differences(comparison):
        sheet.line(line, indent=1, style="yellow")
    for line in headline:
        sheet.line(line, style=f"bold {style}".strip(), indent=1)
    sheet.rule(style)
    if comparison.emulated and not comparison.repeats:  # else it says so of all times
        sheet.line(words.EMULATED, indent=1, style="yellow")
    for line in describe_unreliable(comparison):
        sheet.line(line, indent=1, lead="! ", style="bold red")
    if comparison.measures:
        return  # none of its parts is better or worse; the page and the JSON have them all
    for line in describe_samples(comparison):
        sheet.line(line, indent=1, style="dim")
    memory = describe_memory(comparison)
    if memory:
        sheet.heading("Memory")
    for before, after, what in memory:
        sheet.path(sheet.safe(f"{before:>11} → {after:<11} {what}"), indent=1)
    _print_groups(sheet, comparison)
    for title, findings in list_findings(comparison):
        sheet.heading(title)
        for name in findings:
            sheet.line(f"{name}.", indent=1)


def _print_groups(sheet: Sheet, comparison: Comparison) -> None:
    """Print the changes of every group that has any worth a line. Of versions that cannot be told
    apart, the parts of which nothing can be told either are left to the page.
    """
    kernels = kernel_labels(comparison)
    always = GROUPS if comparison.outcome in ("better", "worse") else ALWAYS
    if comparison.unit == "kernel":
        always = (*always, "kernel")
    groups = [group for group in GROUPS if group in always or not _is_open(comparison, group)]
    if comparison.of_memory:
        groups = ["step"]
    note = ""
    for group in groups:
        title = title_group(comparison, group)
        changes = shown_changes(comparison, group)
        often = describe_often(comparison, group)
        if changes or often:
            sheet.heading(title + (f": {often}" if often else ""))
        _print_changes(sheet, comparison, group, kernels)
        if ahead := describe_ahead(changes):
            sheet.line(ahead, indent=1, style="dim")
        if not note and (note := describe_charge(changes)):
            sheet.line(note, indent=1, style="dim")
    if comparison.of_memory:
        sheet.line("Where its time went is on the page of `--html`.", indent=1, style="dim")
    if limits := describe_limits(comparison, groups):
        sheet.blank()
        sheet.line(limits, indent=1, style="dim")


def _is_open(comparison: Comparison, group: str) -> bool:
    """Return True if nothing is told of any change of a group."""
    return {judge_change(each) for each in shown_changes(comparison, group)} <= {
        "cannot tell",
        "same",
    }


def _print_changes(
    sheet: Sheet, comparison: Comparison, group: str, kernels: Mapping[str, str]
) -> None:
    """Print the changes of one group, a line each, and what the others come to."""
    others = describe_others(comparison, group)
    for change in shown_changes(comparison, group):
        # `better 1.92x (1.85–2.01x) 175 ms → 91 ms name`; a name that is longer than the rest of
        # the line, such as that of an edited line, stands below, whole.
        before, after = format_change_time(change.before), format_change_time(change.after)
        interval = format_between(change)
        between = f"({interval})" if interval else ""
        figures = sheet.safe(f"{format_ratio(change):>7} {between:13} {before:>8} → {after:<8} ")
        room = sheet.width - len(figures) - 9
        word = judge_change(change)
        outcome = (f" {_SHORT.get(word, word):8}", _STYLES[word])
        label = " ".join(
            sheet.safe(
                label_change(change, kernels, cpu_only=comparison.cpu_only, unit=comparison.unit)
            ).split()
        )
        if len(label) <= room:
            sheet.write(Text.assemble(outcome, figures, label))
        else:
            sheet.write(Text.assemble(outcome, figures.rstrip()))
            sheet.line(label, indent=9)
    if others:
        before, after = others
        sheet.path(sheet.safe(f"{before:>39} → {after:<8} all others"))
