"""What the last check measured, kept for `lab solution` alone: verdicts hold back figures that answer open questions."""

from __future__ import annotations

from typing import Any

import msgspec

from bottleneck_lab.workspace.folder import Workspace, read_json

_FILE = "last_figures.json"


def keep_figures(workspace: Workspace, measurement: dict[str, Any]) -> None:
    """Replaces those of the check before; of one that measured nothing, they stay."""
    if measurement:
        with workspace.writing("lab check"):
            workspace.write(workspace.state / _FILE, msgspec.json.encode(measurement))


def last_figures(workspace: Workspace) -> dict[str, Any]:
    """`Verdict.measurement` of the last check that measured something; empty before the first."""
    kept = workspace.state / _FILE
    return read_json(kept, dict[str, Any]) if kept.exists() else {}
