"""Captures: each in its own folder, which appears under its number only when the capture is
complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bottleneck_lab.catalog import Lab
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.atomic import explained, publish, remove
from bottleneck_lab.workspace.folder import UNFINISHED, Workspace, numbered, read_json

if sys.platform != "win32":  # where no captures are made
    import fcntl

CODE = "code"
"""The folder of a capture in which the files are that it is of."""


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


@contextmanager
def new_folder(parent: Path, tool: str) -> Iterator[tuple[Path, Path]]:
    """Yield the next `parent/NNNN-<tool>` and the empty folder in which the capture is made.

    For captures outside a workspace. Both names are this process's alone.
    """
    number = 0
    while True:
        number = 1 + max([number, *(taken for taken, _ in numbered(parent))])
        with locked_folder(parent / f"{UNFINISHED}{number:04}") as unfinished:
            # Another process may have published this number between the look and the lock.
            if unfinished and number not in [taken for taken, _ in numbered(parent)]:
                yield parent / f"{number:04}-{tool}", unfinished
                return


@contextmanager
def locked_folder(folder: Path) -> Iterator[Path | None]:
    """Make `folder`, or empty the one that a killed process left, and remove it at the end.

    Yields None while another process holds it.
    """
    descriptor = _lock_folder(folder)
    if descriptor is None:
        yield None
        return
    try:
        with explained(folder):
            for path in folder.iterdir():
                remove(path)
        yield folder
    finally:
        remove(folder)
        os.close(descriptor)


def _lock_folder(folder: Path) -> int | None:
    """Return a descriptor that holds the folder's lock; None if another process holds it."""
    while True:
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # Its holder may have published or removed the folder meanwhile: then the lock is one of
        # a folder that no longer has this name.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        os.close(descriptor)


def readable(workspace: Workspace) -> list[Path]:
    """Return the captures that hold a timeline, oldest first.

    An ncu capture, of single kernels, holds none.
    """
    return with_timeline(workspace.captures)


def with_timeline(folder: Path) -> list[Path]:
    """Return the captures in `folder` that hold a timeline, oldest first."""
    return [path for _, path in numbered(folder) if not path.name.endswith(("-ncu", "-sanitizer"))]


def latest_capture(workspace: Workspace) -> Path | None:
    """Return the capture that `lab report` is about: the latest with a timeline, else the latest;
    None before the first.
    """
    captures = readable(workspace) or [path for _, path in numbered(workspace.captures)]
    return captures[-1] if captures else None


def capture_of(workspace: Workspace, code: str) -> Path | None:
    """Return the latest capture of the code with this hash; None if it was not captured."""
    return next((path for path in readable(workspace)[::-1] if code_captured(path) == code), None)


def capture_number(capture: Path) -> int:
    """Return the number by which a capture of a workspace is called."""
    return int(capture.name.split("-")[0])


def keep_code(lab: Lab, root: Path, capture: Path) -> None:
    """Keep the editable files of `root` with a capture of them: a report shows the source of its
    lines however they are edited later.
    """
    for name, file in lab.code_files(root).items():
        kept = capture / CODE / name
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(file.read_bytes())


def code_captured(capture: Path) -> str:
    """Return the hash of the code that a lab's capture shows; "" outside labs."""
    file = capture / "capture.json"
    return str(read_json(file, dict[str, Any]).get("code", "")) if file.is_file() else ""


def lacks_parts(capture: Path) -> bool:
    """Return True if a lab's capture lacks something that the task asks for, as its notes say."""
    file = capture / "capture.json"
    return file.is_file() and bool(read_json(file, dict[str, Any]).get("notes"))


def whose_code(lab: Lab, capture: Path) -> str:
    """Say whether a lab's capture shows the shipped code or edited code; empty if it is unknown."""
    code = code_captured(capture)
    if not code:
        return ""
    return "of the shipped code" if code == lab.code_hash(lab.path) else "of edited code"


def captures_called(name: str | None, folder: Path) -> list[Path]:
    """Return the captures in `folder` with this number or name, oldest first; None for all.

    For captures outside a workspace, as `lab profile -- …` makes them.
    """
    return [
        path
        for number, path in numbered(folder)
        if (path / "capture.json").is_file() and (name is None or name in _names(number, path))
    ]


def _names(number: int, path: Path) -> tuple[str, ...]:
    """Return what a capture may be called by: its folder's name, or its number."""
    return path.name, str(number), f"{number:04}"


def find_capture(workspace: Workspace, which: str | None = None) -> Path:
    """Return the capture called `which` (its number or its folder's name), or the latest.

    Raises UsageError when there is no such capture.
    """
    captures, latest = numbered(workspace.captures), latest_capture(workspace)
    if latest is None:
        remedy = "`lab profile` makes one."
        if workspace.lab.spec.evidence == "run":
            remedy = "This lab's evidence is what `lab run` prints."
        raise UsageError("There is no capture in this workspace yet.", remedy)
    if which is None:
        return latest
    for number, path in captures:
        if which in _names(number, path):
            return path
    raise UsageError(
        f"There is no capture '{which}' in this workspace.",
        f"Choose one of {', '.join(path.name for _, path in captures)}.",
    )
