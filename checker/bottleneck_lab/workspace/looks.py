"""The record of what the learner has looked at, so that no next step repeats it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from bottleneck_lab.errors import MachineError
from bottleneck_lab.workspace.commitments import hides_remedies_at, is_blind
from bottleneck_lab.workspace.folder import Workspace, read_json


class Looks(msgspec.Struct, frozen=True):
    """The reports and runs looked at in a workspace.

    `runs`: by the hash of the code that `lab run` ran, True if it ran to its end. `reports`: by a
    capture's name, how much its latest report showed.
    """

    runs: dict[str, bool] = {}
    reports: dict[str, str] = {}


def load_looks(workspace: Workspace) -> Looks:
    """Return what was looked at so far. Raises MachineError for a file that this version did not
    write.
    """
    file = workspace.state / "looks.json"
    return read_json(file, Looks) if file.exists() else Looks()


def note_report(workspace: Workspace, capture: str) -> None:
    """Record that the report of a capture was looked at, with as much as it shows now."""
    shown = _shown(workspace)
    _update(workspace, lambda looks: replace(looks, reports={**looks.reports, capture: shown}))


def note_run(workspace: Workspace, code: str, *, ended: bool) -> None:
    """Record that the code with this hash was run; `ended` without an error."""
    _update(workspace, lambda looks: replace(looks, runs={**looks.runs, code: ended}))


def has_run(workspace: Workspace) -> bool | None:
    """Return True if the code as it is now ran to its end, False if it ended with an error, None if
    it was not run.
    """
    return load_looks(workspace).runs.get(workspace.lab.code_hash(workspace.root))


def is_report_read(workspace: Workspace, capture: str) -> bool:
    """Return True if the report of a capture was looked at when it showed as much as now."""
    return load_looks(workspace).reports.get(capture) == _shown(workspace)


def _shown(workspace: Workspace) -> str:
    """Return how much a report of the lab's captures shows now."""
    if is_blind(workspace):
        return "evidence"
    return "causes" if hides_remedies_at(workspace.root) else "remedies"


def _update(workspace: Workspace, change: Callable[[Looks], Looks]) -> None:
    # A folder that may only be read, as an instructor's copy is, can be looked at all the same.
    with suppress(MachineError), workspace.writing("lab"):
        workspace.write_state("looks.json", change(load_looks(workspace)))
