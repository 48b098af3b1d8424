"""ncu's counters in the terminal: the learner's kernel next to the library's, and what to attack
first.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bottleneck_lab.analysis.counters.kernel_counters import (
    Pair,
    furthest_behind,
)
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.report.console.terminal import Sheet

_STYLES = {"good": "green", "fair": "yellow", "poor": "red", "": ""}
_LABEL, _COLUMN = 27, 14


def render_counters(
    pairs: Sequence[Pair], notes: Sequence[str], console: Console, *, blind: bool = False
) -> None:
    """Print a capture of single kernels. `notes` must be read with any figure. `blind`: no advice
    on what to attack.
    """
    sheet = Sheet(console)
    sheet.rule()
    sheet.line("What the GPU's counters say, kernel by kernel", style="bold", indent=1)
    sheet.rule()
    for note in notes:
        sheet.line(note, indent=1, style="yellow")
    worst = furthest_behind(list(pairs))
    sheet.heading("1  How long each launch took")
    for nth, pair in enumerate(pairs, start=1):
        against = ""
        if pair.library is not None and pair.ratio is not None:
            against = (
                f", {pair.ratio:.2f}x the speed of {sheet.fit_name(pair.library.name, 36)}"
                f" ({words.format_duration(pair.library.duration_ns)})"
            )
        sheet.line(
            f"{words.format_duration(pair.own.duration_ns)}"
            f" {sheet.fit_name(pair.own.name, 36)}{against}",
            indent=1,
            lead=f"{nth} ",
        )
    _print_figures(sheet, worst)
    if worst.own.stalls:
        sheet.heading("3  What its warps wait for")
    for name, share in worst.own.stalls.items():
        if share >= 0.005:
            bar = sheet.bar(low=share, high=share, end=1.0, width=max(8, sheet.width - 40))
            sheet.path(f"{name:{_LABEL}} {bar} {words.format_share_column(share):>6}", indent=2)
    if blind:
        sheet.blank()
        sheet.line(capture_words.BLIND, indent=1)
    else:
        sheet.heading("What to attack, most urgent first")
        if not worst.targets:
            sheet.line("Nothing stands out: no cause accounts for much of the waiting.", indent=1)
        for number, target in enumerate(worst.targets, start=1):
            sheet.line(target.title, indent=1, lead=f"{number} ", style="bold")
            sheet.line(target.evidence, indent=3)
            if target.advice:
                sheet.line(target.advice, indent=3, lead=sheet.safe("→ "))


def _print_figures(sheet: Sheet, pair: Pair) -> None:
    which = "the longest launch"
    if pair.library:
        which = "the launch that is furthest behind"
    sheet.heading(f"2  Its counters ({which})")
    heads = ["yours", *(["library's"] if pair.library else []), "good is"]
    sheet.path(f"{'':{_LABEL}}" + "".join(f"{head:>{_COLUMN}}" for head in heads), indent=2)
    for figure in pair.own.figures:
        cells = [figure, *([pair.library.figure(figure.id)] if pair.library else [])]
        row = Text("  " + sheet.safe(f"{figure.label:{_LABEL}}"))
        for cell in cells:
            if cell is None:
                row.append(f"{'not recorded':>{_COLUMN}}")
                continue
            poor = " poor" if cell.grade == "poor" else ""  # colour is only a second sign
            figure_text = f"{cell.value:.3g}{cell.unit}{poor}"
            row.append(f"{figure_text:>{_COLUMN}}", style=_STYLES[cell.grade])
        sheet.write(row + Text(sheet.safe(f"{figure.wanted:>{_COLUMN}}"), style="dim"))
