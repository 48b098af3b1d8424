"""Attempts: every verdict with the files that were checked, numbered without gaps and never
overwritten.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Lab
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.workspace.atomic import TEMPORARY, explained, publish, remove
from bottleneck_lab.workspace.folder import UNFINISHED, Workspace, numbered, read_json, to_json

MAX_FILE_BYTES = 8 * 1024 * 1024
"""No submitted source file is this large; a data file in its place would fill the history."""


class Attempt(msgspec.Struct, frozen=True):
    """One recorded check: its number, its verdict, and the folder that holds what was submitted."""

    number: int
    verdict: Verdict
    submission: Path


def _read_submitted(path: Path) -> bytes:
    """Return the bytes of one regular file. Raises UsageError for anything else in its place."""
    # A pipe or a device would block or never end. A link is not followed: whoever checks somebody
    # else's workspace would hand out a copy of a file that only they may read.
    remedy = f"Put a regular file there; `lab reset` restores the original {path.name}."
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}.", remedy) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path.name} is not a file.", remedy)
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path.name} is larger than {MAX_FILE_BYTES // 2**20} MiB.", remedy)
    return data


@contextmanager
def submission(workspace: Workspace, lab: Lab) -> Iterator[Path]:
    """Copy the files that are submitted, as they are now, into a folder, and yield it.

    An edit made while a check runs then cannot change what is checked. Call it inside
    `workspace.working()`. The folder goes away at the end unless `record` has taken it.
    """
    folder = workspace.attempts / f"{UNFINISHED}submission"
    names = list(lab.spec.editable)
    if (workspace.root / "diagnosis.toml").exists():
        names.append("diagnosis.toml")
    with explained(folder):
        remove(folder)
        folder.mkdir(parents=True)
    try:
        for name in names:
            data = _read_submitted(workspace.root / name)
            with explained(folder):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        yield folder
    finally:
        remove(folder)


def record(workspace: Workspace, verdict: Verdict, submitted: Path) -> Attempt:
    """Record `verdict` and move the `submitted` folder beside it, under the next number.

    Raises MachineError when it cannot be written; nothing recorded before is touched.
    """
    with workspace.writing("lab check"):
        verdicts = [
            number for number, path in numbered(workspace.attempts) if path.suffix == ".json"
        ]
        number = 1 + max(verdicts, default=0)
        # The folder gets its name first, the verdict last: an attempt exists once its verdict does.
        folder = workspace.attempts / f"{number:04}"
        if folder.exists():  # from a check that was killed before its verdict was written
            leftover = folder.with_name(f"{TEMPORARY}{number:04}")
            folder.rename(leftover)
            remove(leftover)
        publish(submitted, folder)
        workspace.write(folder.with_suffix(".json"), to_json(verdict), replace=False)
    return Attempt(number, verdict, folder)


def latest_pass(attempts: list[Attempt]) -> Attempt | None:
    """Return the latest attempt that passed with the learner's own work, or with the reference's
    where no other did; None if none passed.
    """
    latest = None
    for attempt in attempts:
        diagnosis = attempt.verdict.diagnosis
        is_own = diagnosis is None or not diagnosis.copied
        if attempt.verdict.outcome == "PASS" and (is_own or latest is None):
            latest = attempt
    return latest


def load_attempts(workspace: Workspace) -> list[Attempt]:
    """Return every attempt, oldest first. Raises MachineError for a verdict that cannot be read."""
    return [
        Attempt(number, read_json(path, Verdict), path.with_suffix(""))
        for number, path in numbered(workspace.attempts)
        if path.suffix == ".json"
    ]
