"""A rank on its own: no other rank sees anything that it can write to, so the fabric is the only
way from one to the next.

Mounts, processes, network and IPC are the rank's own. Constants from linux/sched.h, linux/mount.h
and linux/capability.h.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_MOUNTS, _NEW_IPC, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x08000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4
_BIND, _WITH_MOUNTS_BELOW = 0x1000, 0x4000
_CAPABILITY_VERSION_3 = 0x20080522
_SIZE = b"size=64m"
"""Of each of a rank's own file systems: they lie in memory that no process is charged for."""

_libc = ctypes.CDLL(None, use_errno=True)


def leave_others() -> None:
    """Enter namespaces of this process's own: its forks from here on share none with other ranks,
    and its first child is process 1 of a new one.

    Raises OSError if that is not allowed, which `bubblewrap.lets_ranks_part` finds out beforehand.
    """
    _call("unshare", _NEW_MOUNTS | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK)


def take_own_files(scratch: Path, readable: list[Path]) -> None:
    """Mount empty file systems of this rank's own over all that was writable, with a copy of the
    scratch folder's files; then give up the rights to change that. Raises OSError.

    Folders of `readable`, which the sandbox shows read-only, stay where they are, even below /tmp:
    Python goes on importing from them.
    """
    emptied = [Path("/tmp"), Path("/dev/shm"), scratch]
    kept = {
        folder: os.open(folder, os.O_PATH)
        for folder in readable
        if folder.is_dir() and any(folder.is_relative_to(other) for other in emptied)
    }
    files = {path: path.read_bytes() for path in scratch.rglob("*") if path.is_file()}
    for folder in emptied:
        folder.mkdir(parents=True, exist_ok=True)
        _mount_empty(folder, _NO_SETUID | _NO_DEVICES, _SIZE)
    # Mounted again by what was opened before their parents were emptied: still read-only, and
    # hidden folders in them still hidden.
    for folder, opened in sorted(kept.items()):
        folder.mkdir(parents=True, exist_ok=True)
        source, flags = f"/proc/self/fd/{opened}".encode(), _BIND | _WITH_MOUNTS_BELOW
        _call("mount", source, bytes(folder), None, flags, None)
        os.close(opened)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.chdir(scratch)
    # /proc would show processes of all ranks, with their memory and open files.
    _mount_empty(Path("/proc"), _NO_SETUID | _NO_DEVICES | _READ_ONLY, b"size=4k")
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(header), ctypes.byref(none))


def _mount_empty(folder: Path, flags: int, options: bytes) -> None:
    _call("mount", b"tmpfs", bytes(folder), b"tmpfs", flags, options)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
