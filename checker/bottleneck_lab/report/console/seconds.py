"""Where the seconds of a check went, on the terminal."""

from __future__ import annotations

from rich.console import Console

from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.clock import PHASES
from bottleneck_lab.report.console.terminal import Sheet

WIDTH = 20


def render_seconds(verdict: Verdict, console: Console) -> None:
    """Print a line for each phase of a check: its seconds, a bar of their share, its meaning."""
    sheet = Sheet(console)
    sheet.heading(f"Where the {verdict.duration_s:.1f} s went")
    total = sum(verdict.seconds.values()) or 1.0
    for phase, meaning in PHASES.items():
        seconds = verdict.seconds.get(phase, 0.0)
        bar = "█" * round(WIDTH * seconds / total)
        sheet.line(f"{seconds:6.1f} s  {bar:<{WIDTH}}  {meaning}", indent=1)
