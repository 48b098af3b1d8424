"""The hints that a learner has taken."""

from __future__ import annotations

import msgspec

from bottleneck_lab.workspace.folder import Workspace, now, read_json


class HintTaken(msgspec.Struct, frozen=True):
    """A hint by its place in the lab's list, from 0, and when it was first shown."""

    index: int
    at: str


def load_hints(workspace: Workspace) -> list[HintTaken]:
    """Return the hints taken so far, in the order they were taken."""
    file = workspace.state / "hints.json"
    return read_json(file, list[HintTaken]) if file.exists() else []


def take_hint(workspace: Workspace, opened: int | None = None) -> int | None:
    """Record that the next hint has been taken, and return its index.

    None when the lab has no further one, or no more than `opened` may be taken.
    """
    with workspace.writing("lab hint"):
        taken = load_hints(workspace)
        index = 1 + max((hint.index for hint in taken), default=-1)
        available = len(workspace.lab.spec.hints)
        if opened is not None:
            available = min(available, opened)
        if index >= available:
            return None
        workspace.write_state("hints.json", [*taken, HintTaken(index, now())])
    return index
