"""A rank on its own: nothing it can write to is seen by another rank, so the fabric is the only way from one to the next.

Mounts, processes, network and IPC are the rank's own. Constants from linux/sched.h, linux/mount.h and linux/capability.h.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_MOUNTS, _NEW_IPC, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x08000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_SIZE = b"size=64m"
"""Of each of a rank's own file systems: they lie in memory that no process is charged for."""

_libc = ctypes.CDLL(None, use_errno=True)


def leave_others() -> None:
    """Whatever this process forks from here on shares no namespace with the other ranks; its first child is process 1 of a new one.

    Raises OSError where that is not allowed, which `bubblewrap.lets_ranks_part` finds out beforehand.
    """
    _call("unshare", _NEW_MOUNTS | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK)


def take_own_files(scratch: Path) -> None:
    """Empty file systems of this rank's own for all that was writable, with a copy of the scratch folder's files; then no rights to change that.

    /proc is left empty: it would show processes of all ranks, with their memory and open files.
    """
    files = {path: path.read_bytes() for path in scratch.rglob("*") if path.is_file()}
    for folder in ("/tmp", "/dev/shm", str(scratch)):
        Path(folder).mkdir(parents=True, exist_ok=True)
        _mount(folder, _NO_SETUID | _NO_DEVICES, _SIZE)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.chdir(scratch)
    _mount("/proc", _NO_SETUID | _NO_DEVICES | _READ_ONLY, b"size=4k")
    _drop_capabilities()


def _mount(folder: str, flags: int, options: bytes) -> None:
    _call("mount", b"tmpfs", folder.encode(), b"tmpfs", flags, options)


def _drop_capabilities() -> None:
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(header), ctypes.byref(none))


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
