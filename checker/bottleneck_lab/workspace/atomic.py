"""Files and folders written completely or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bottleneck_lab.errors import LabError, MachineError

TEMPORARY = ".writing-"
"""Prefix of every unfinished file or folder made while the state lock is held."""

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def explain(error: OSError, path: Path) -> LabError:
    """Return a failed write as an error for the user, with its remedy."""
    where = error.filename or path
    if error.errno in _NO_SPACE:
        return MachineError(
            f"No space left to write {where}.",
            "Free some space and run the command again. Everything recorded so far is safe.",
        )
    if error.errno in _REFUSED:
        return MachineError(
            f"{where} cannot be written: {error.strerror}.",
            "Use a folder you can write to, or fix its permissions.",
        )
    return MachineError(
        f"{where} cannot be written: {error.strerror or error}.",
        "Check the folder and its disk, then run the command again.",
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn any OSError inside into a MachineError about writing `path`."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: a rename is only safe from a power cut once its folder is
    synced.
    """
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a new file, and wait until it has reached the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(
    path: Path, data: bytes, *, scratch: Path | None = None, replace: bool = True, mode: int = 0o666
) -> None:
    """Put `data` at `path`, whole and durable, or leave the file that was there.

    The temporary file stands in `scratch` (default: beside `path`; it must be on the same file
    system). With `replace` False an existing `path` is never touched. `mode` is narrowed by the
    umask, as for any new file. Raises MachineError when it
    cannot be written.
    """
    temporary = (scratch or path.parent) / f"{TEMPORARY}{path.name}-{os.getpid()}"
    with explained(path):
        try:
            temporary.unlink(missing_ok=True)
            _write_new(temporary, data, mode)
            if replace:
                temporary.replace(path)
            else:
                try:
                    os.link(temporary, path)  # unlike a rename, this fails if the name is taken
                except OSError as error:
                    # exFAT and some shared folders have no hard links. There only the lock keeps
                    # writers apart.
                    if error.errno not in _NO_LINKS or path.exists():
                        raise
                    temporary.rename(path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def publish(folder: Path, final: Path) -> None:
    """Give a finished `folder` its `final` name, which must not exist yet.

    Its files reach the disk first: after a power cut the name never stands for empty files.
    """
    with explained(final):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        folder.rename(final)
        sync_folder(final.parent)


def remove(path: Path) -> None:
    """Remove a file or a folder, whichever it is; do nothing if it does not exist."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def clear(folder: Path, prefix: str = TEMPORARY) -> None:
    """Remove the unfinished files and folders that a killed process left in `folder`.

    Only for the holder of the lock under which `prefix` is used.
    """
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(prefix):
                with suppress(OSError):
                    remove(path)
