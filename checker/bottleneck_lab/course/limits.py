"""Limits of a check that a capture of the work misses, so that nobody has to check to hear it."""

from __future__ import annotations

import math

from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.grading.criteria import format_figure, format_limit
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace

CLEARLY = 1.1
"""A capture and a check train on other data: what is over a limit by less may yet pass."""
MIB, KIB = 1 << 20, 1 << 10
WAITS, KEPT = "waits-per-interval", "kept-tensors"


def missed_limits(workspace: Workspace, summary: Summary) -> list[str]:
    """Return the limits of the lab's check that its workload clearly misses in a capture, in words;
    none while the limits are not told, which would give the cause away.
    """
    spec = workspace.lab.spec.devices.get(workspace.info.device)
    if spec is None or is_blind(workspace) or not summary.steps:
        return []
    interval = spec.settings.get("interval", 1)
    figures = _figures(summary, interval)
    missed = []
    for each in spec.criteria:
        figure, limit = figures.get(each.id, math.nan), each.target
        if limit is not None and figure > CLEARLY * limit:
            shown, where = format_figure(figure, each.unit, limit), ""
            if each.id == WAITS:
                # The table that it points to counts by the step.
                a_step = f", {figure / interval:.3g} a step" * (interval > 1)
                shown = f"{format_figure(round(figure), each.unit, limit)}{a_step}"
                where = "; `lab report --ask waits` names the lines"
            wanted = f"at most {format_limit(limit, each.unit)}{where}"
            missed.append(f"{each.label}: {shown} ({wanted})")
    if missed and any(each.id == KEPT for each in spec.criteria):
        missed.append("only a check counts the tensors that are left two reports later")
    return missed


def _figures(summary: Summary, interval: int) -> dict[str, float]:
    """Return what a capture tells of criteria of trainings, by their ids; `interval`: steps between
    two reports.
    """
    held = [use for use in summary.memory if use.device >= 0]
    return {
        WAITS: interval * sum(row.calls_per_step for row in summary.syncs),
        "launches-per-step": max((use.kernels_per_step for use in summary.launches), default=0.0),
        "peak-mib": max((use.peak_bytes for use in held), default=0) / MIB,
        "growth-kib-per-step": max(
            (use.growth_bytes_per_step for use in held if not use.hides_growth), default=0
        )
        / KIB,
    }
