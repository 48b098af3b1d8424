"""A scaling curve in the terminal: a bar for each number of ranks, with its bound marked, and the
assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bottleneck_lab.analysis.ranks.scaling import Sweep, assumptions
from bottleneck_lab.report import words
from bottleneck_lab.report.console.terminal import Sheet

_TITLES = {
    "ring": "All-reduce as one ring through all ranks",
    "tree": "All-reduce as a ring in each node and a tree of nodes",
}


def render_scaling(curves: Sequence[Sweep], console: Console, *, blind: bool = False) -> None:
    """Print the scaling curves after `lab run` of a distributed lab.

    With `blind` only how fast the script is as it runs: neither what communication costs nor what
    another algorithm would gain.
    """
    sheet = Sheet(console)
    if blind:
        curves = curves[:1]
    sheet.line("How it scales: modelled, on virtual GPUs", style="bold")
    for curve in curves:
        _print_curve(sheet, curve, blind=blind)
        if not blind:
            _print_bounds(sheet, curve)
    if blind:
        sheet.blank()
        sheet.line(
            "This is the evidence. What communication costs, and a page with the curve, appear once"
            " you commit your diagnosis with `lab diagnose`.",
            indent=1,
        )
    sheet.heading("What these figures are based on")
    for line in assumptions(curves):
        sheet.line(line, indent=1, lead=f"{sheet.signs.bullet} ")


def _print_curve(sheet: Sheet, curve: Sweep, *, blind: bool) -> None:
    """Print a line for each number of ranks, its share of the ideal as a bar."""
    sheet.heading(_TITLES[curve.algorithm])
    sheet.line(
        f"{'ranks':>6} {'step ms':>9} {curve.called + '/s':>10}   {'of ideal':>8}  bar: share of"
        " the ideal",
        style="dim",
    )
    for point in curve.points:
        bar = sheet.bar(
            low=point.efficiency,
            high=point.efficiency,
            end=1.0,
            width=max(10, min(36, sheet.width - 44)),
            target=None if blind else point.hidden_efficiency,
        )
        mark = " "
        if point.source == "reducer":
            mark = "*"
        share = words.format_share_column(point.efficiency)
        sheet.write(
            Text(
                f"{point.ranks:6}{mark}{point.step_ms:9.2f} {point.samples_per_s:10,.0f}"
                f"   {share:>8}  {bar}"
            )
        )
    if any(point.source == "reducer" for point in curve.points):
        sheet.line(
            "* from the real reducer in real processes; the others are replayed",
            style="dim",
            indent=1,
        )


def _print_bounds(sheet: Sheet, curve: Sweep) -> None:
    """Print what hiding communication can gain, at the largest size that really ran and at the end
    of the curve.
    """
    sheet.line(
        f"{sheet.signs.target} throughput if all communication were hidden behind computation",
        style="dim",
        indent=1,
    )
    real = [point for point in curve.points if point.source == "reducer"]
    for point in dict.fromkeys([*real[-1:], curve.points[-1]]):
        hidden = point.step_ms * point.hidden_efficiency / point.alone_ms
        lost = (
            f"On {point.ranks} ranks, {point.lost_ms:.1f} of {point.step_ms:.1f} ms per step"
            f" is lost to communication. Without it: {point.amdahl:.2f}x as fast (Amdahl)"
        )
        if point.hidden_efficiency < 1:
            lost += (
                f". Hiding it gains at most {hidden:.2f}x: the link takes longer than the"
                " computation"
            )
        sheet.line(f"{lost}.", indent=1)
    if broadcast := curve.points[-1].broadcast_note:
        sheet.line(broadcast, indent=1)
