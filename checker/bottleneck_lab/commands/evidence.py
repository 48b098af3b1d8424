"""What the learner's latest capture shows: read once, for diagnosis, hints and reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck_lab.analysis.summary import Summary
    from bottleneck_lab.workspace.folder import Workspace


def read_capture(folder: Path) -> Summary:
    """The summary of one capture. Raises CaptureError when it cannot be read."""
    from bottleneck_lab.analysis.summary import summarise
    from bottleneck_lab.trace import load

    return summarise(load(folder))


def latest(workspace: Workspace) -> Summary | None:
    """The summary of the latest capture; None when there is none."""
    from bottleneck_lab.workspace.folder import numbered

    captures = numbered(workspace.captures)
    return read_capture(captures[-1][1]) if captures else None


def figures(workspace: Workspace) -> dict[str, float] | None:
    """What the latest capture shows, as named numbers; None without a capture."""
    summary = latest(workspace)
    return dict(summary.figures) if summary else None


def evidence(workspace: Workspace, finding: str) -> str | None:
    """The sentence in which the latest capture shows `finding`; None when it does not, or there is none."""
    summary = latest(workspace)
    return next((found.evidence for found in summary.findings if found.id == finding), None) if summary else None
