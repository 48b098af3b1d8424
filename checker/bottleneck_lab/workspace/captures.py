"""Captures: each in a folder of its own, which appears under its number only when the capture is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.atomic import explained, publish, remove
from bottleneck_lab.workspace.folder import UNFINISHED, Workspace, numbered


def make_capture(workspace: Workspace, tool: str, fill: Callable[[Path], object]) -> Path:
    """Let `fill` write a capture into an empty folder, then publish that as `captures/NNNN-<tool>`.

    Call it inside `workspace.working()`. When `fill` raises, nothing is left behind.
    """
    unfinished = workspace.captures / f"{UNFINISHED}{tool}"
    with explained(workspace.captures):
        remove(unfinished)
        unfinished.mkdir(parents=True)
    try:
        fill(unfinished)
        with workspace.writing("lab profile"):
            number = 1 + max((taken for taken, _ in numbered(workspace.captures)), default=0)
            final = workspace.captures / f"{number:04}-{tool}"
            publish(unfinished, final)
    finally:
        remove(unfinished)
    return final


def find_capture(workspace: Workspace, which: str | None = None) -> Path:
    """The capture called `which` (its number or its folder's name), or the latest.

    Raises UsageError when there is none such.
    """
    captures = numbered(workspace.captures)
    if not captures:
        raise UsageError("There is no capture in this workspace yet.", "`lab profile` makes one.")
    if which is None:
        return captures[-1][1]
    for number, path in captures:
        if which in (path.name, str(number), f"{number:04}"):
            return path
    raise UsageError(
        f"There is no capture '{which}' in this workspace.",
        f"There are: {', '.join(path.name for _, path in captures)}.",
    )
