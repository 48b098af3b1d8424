"""Everything drawn in a terminal."""

from __future__ import annotations

from bottleneck_lab.report.console_comparison import render_comparison
from bottleneck_lab.report.console_compiled import render_compiled
from bottleneck_lab.report.console_counters import render_counters
from bottleneck_lab.report.console_memory import render_memory
from bottleneck_lab.report.console_selection import render_selection
from bottleneck_lab.report.console_summary import render_summary
from bottleneck_lab.report.console_verdict import render_verdict

__all__ = [
    "render_comparison",
    "render_compiled",
    "render_counters",
    "render_memory",
    "render_selection",
    "render_summary",
    "render_verdict",
]
