"""A workspace: the folder in which a learner works on one lab."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from bottleneck_lab.catalog import Device, Lab, find_lab
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.workspace.atomic import TEMPORARY, clear, write_bytes
from bottleneck_lab.workspace.lock import locked

STATE = ".lab"
SCHEMA = 1
UNFINISHED = ".running-"
"""Prefix of the unfinished files of `lab check` and `lab profile`, which hold the work lock."""

Loaded = TypeVar("Loaded")

GUIDE = ("README.md", "diagnosis.toml")
"""Handed out in addition to the files that a lab declares."""


class WorkspaceInfo(msgspec.Struct, frozen=True):
    """A workspace as it was started.

    `files` are the SHA-256 sums of the files as they were handed out. `lab` may be an older name of
    the lab: `Workspace.lab` knows the present one.
    """

    lab: str
    lab_hash: str
    lab_version: int
    device: Device
    created: str
    files: dict[str, str]
    schema: int = SCHEMA


def now() -> str:
    """Return this moment in UTC, to the second, in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def handed_out(lab: Lab) -> list[str]:
    """Return the names of the files that a learner gets, in a fixed order."""
    return sorted({*lab.spec.files, *(name for name in GUIDE if (lab.path / name).is_file())})


def source_of(lab: Lab, name: str) -> Path:
    """Return the source of a file that is handed out: the brief in the learner's language."""
    return lab.brief() if name == "README.md" else lab.path / name


def sums_of(files: dict[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 sum of each file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def read_json(path: Path, type_: type[Loaded]) -> Loaded:
    """Return a state file as typed data.

    Raises MachineError that names a file which this version did not write.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except (OSError, msgspec.DecodeError) as error:
        raise MachineError(
            f"{path} cannot be read: {error}.",
            "If a newer bottleneck-lab wrote it, install that version again; otherwise move the"
            " file away and run the command again.",
        ) from error


def to_json(content: object) -> bytes:
    """Return typed data as the text of a state file: JSON, indented for people."""
    return msgspec.json.format(msgspec.json.encode(content))


class Workspace:
    """An opened workspace.

    `root` is the learner's folder; everything of ours is below `root/.lab`.
    """

    def __init__(self, root: Path, info: WorkspaceInfo) -> None:
        self.root = root
        self.info = info

    @property
    def state(self) -> Path:
        """Return the folder of everything that is recorded."""
        return self.root / STATE

    @property
    def lab(self) -> Lab:
        """Return the lab as it is installed now.

        Raises UsageError when this installation does not have it.
        """
        return find_lab(self.info.lab)

    @property
    def captures(self) -> Path:
        """Return the folder of the captures, which may not exist yet."""
        return self.state / "captures"

    @property
    def attempts(self) -> Path:
        """Return the folder of the attempts, which may not exist yet."""
        return self.state / "attempts"

    def changed_lab(self) -> str | None:
        """Return why the installed lab's files are not those of this workspace; None if they are.

        Only files that learners get count. The judge and its limits may change: a check always uses
        the installed ones.
        """
        # By content and by number: an author may forget to raise the version, and may raise it for
        # something that the files do not show.
        lab = self.lab
        sources = {name: source_of(lab, name) for name in handed_out(lab)}
        files = {name: path.read_bytes() for name, path in sources.items() if path.is_file()}
        if sums_of(files) == self.info.files and lab.spec.version == self.info.lab_version:
            return None
        if lab.spec.version != self.info.lab_version:
            versions = f"version {self.info.lab_version} then, {lab.spec.version} now"
        else:
            versions = "its files have changed since"
        return (
            f"This workspace was started from another version of '{lab.slug}' on"
            f" {self.info.created[:10]} ({versions})."
        )

    def require_current(self) -> None:
        """Refuse to measure old files against a new lab. Raises UsageError with the remedy."""
        change = self.changed_lab()
        if change:
            raise UsageError(
                change,
                "`lab reset --update` brings in the new files and leaves your own edits and your"
                " history as they are.",
            )

    @contextmanager
    def writing(self, who: str = "lab") -> Iterator[None]:
        """Hold the state lock, for the moment that a write takes.

        Removes the unfinished files of a writer that was killed.
        """
        # Whoever holds the lock is the only writer, so what is unfinished now is nobody's.
        with locked(self.state / "state.lock", who):
            for folder in (self.state, self.attempts, self.captures, self.state / "kept"):
                clear(folder, TEMPORARY)
            yield

    @contextmanager
    def working(
        self, who: str, *, wait: bool = True, on_wait: Callable[[str], None] | None = None
    ) -> Iterator[None]:
        """Hold the work lock, for as long as a check or a capture takes.

        Removes the unfinished files of one that was killed.
        """
        with locked(self.state / "work.lock", who, wait=wait, on_wait=on_wait):
            for folder in (self.attempts, self.captures):
                clear(folder, UNFINISHED)
            yield

    def write(self, path: Path, data: bytes, *, replace: bool = True) -> None:
        """Write one file of this workspace, atomically. Call it inside `writing`."""
        write_bytes(path, data, scratch=self.state, replace=replace)

    def write_state(self, name: str, content: object) -> None:
        """Write a state file, `.lab/<name>`, as JSON. Call it inside `writing`."""
        self.write(self.state / name, to_json(content))


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """Return the entries of `folder` that are named `NNNN…`, by number.

    A missing folder has none.
    """
    if not folder.is_dir():
        return []
    return sorted(
        (int(path.name[:4]), path) for path in folder.iterdir() if path.name[:4].isdecimal()
    )


def open_workspace(root: Path) -> Workspace:
    """Return the workspace whose folder is `root`.

    Raises MachineError for a state file that cannot be read, UsageError for one of another version.
    """
    # The number first: a file of another version need not have this version's fields.
    file = root / STATE / "workspace.json"
    schema = read_json(file, dict).get("schema")
    if schema != SCHEMA:
        raise UsageError(
            f"The workspace in {root} was written by another version of bottleneck-lab (its format"
            f" is {schema}; this one reads {SCHEMA}).",
            "Install the version that it was started with, or start the lab again in a new folder.",
        )
    return Workspace(root, read_json(file, WorkspaceInfo))


def is_workspace(root: Path) -> bool:
    """Return True if `root` itself holds a started lab."""
    return (root / STATE / "workspace.json").is_file()


def workspace_above(start: Path) -> Workspace | None:
    """Return the workspace that `start` is in, or below; None when there is none."""
    root = next((folder for folder in (start, *start.parents) if is_workspace(folder)), None)
    return open_workspace(root) if root else None


def find_workspace(start: Path) -> Workspace:
    """Return the workspace that `start` is in. Raises UsageError when there is none."""
    workspace = workspace_above(start)
    if workspace is None:
        raise UsageError(
            "There is no lab in this folder.",
            "Go to the folder where you started one. `lab list` shows the labs.",
        )
    return workspace
