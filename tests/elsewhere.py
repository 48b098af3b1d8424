"""An interpreter that lacks what Windows, macOS or a bare installation lacks, for the real `lab`.

`bare` is a core installation: none of the extras can be imported. The other two hide Linux' modules
and functions, and name the platform. Third-party packages are loaded first: they are tested on
those systems by their own projects, and would look for the real ones.
"""

from __future__ import annotations

import importlib.abc
import os
import signal
import sys
import sysconfig
from importlib import import_module
from typing import Any

import platformdirs

EXTRAS = {
    "torch",
    "torchvision",
    "nvidia",
    "nvtx",
    "PIL",
    "pynvml",
    "ncu_report",
    "triton",
    "fastapi",
    "uvicorn",
    *("sqlalchemy", "alembic", "argon2", "segno", "multipart"),
}
DISTRIBUTIONS = {
    "torch",
    "torchvision",
    "pillow",
    "nvtx",
    "nvidia-dali-cuda130",
    "nvidia-ml-py",
    "ncu-report",
}
NOT_ON_WINDOWS = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp"}
ONLY_LINUX = (
    "memfd_create",
    "sched_getaffinity",
    "sched_setaffinity",
    "pidfd_open",
    "setns",
    "unshare",
    "eventfd",
    "splice",
)
ONLY_POSIX = (
    *(
        "fork",
        "forkpty",
        "geteuid",
        "getuid",
        "getgid",
        "getloadavg",
        "killpg",
        "setsid",
        "getpgid",
        "sysconf",
        "statvfs",
        "mkfifo",
    ),
    *(
        "pread",
        "pwrite",
        "openpty",
        "O_DIRECTORY",
        "O_NOFOLLOW",
        "O_CLOEXEC",
        "O_NONBLOCK",
        "WNOHANG",
        "waitid",
        "nice",
        "uname",
    ),
)
SIGNALS = (
    "SIGHUP",
    "SIGKILL",
    "SIGSTOP",
    "SIGCONT",
    "SIGUSR1",
    "SIGUSR2",
    "pthread_sigmask",
    "SIG_BLOCK",
    "SIG_SETMASK",
)


class _Without(importlib.abc.MetaPathFinder):
    """A finder of modules and distributions that does not know some of them, as where they are not
    installed.
    """

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, fullname, path=None, target=None):
        return (
            None
            if fullname.split(".")[0] in _absent
            else self._finder.find_spec(fullname, path, target)
        )

    def find_distributions(self, *arguments, **named):
        found = getattr(self._finder, "find_distributions", lambda *_, **__: ())(
            *arguments, **named
        )
        return [one for one in found if one.name not in DISTRIBUTIONS]


_absent: set[str] = set()


def _hide(names: set[str]) -> None:
    _absent.update(names)
    for name in [name for name in sys.modules if name.split(".")[0] in names]:
        del sys.modules[name]
    sys.meta_path[:] = [_Without(finder) for finder in sys.meta_path]


LOADED_FIRST = (
    *(
        "asyncio",
        "ctypes",
        "http.server",
        "multiprocessing",
        "sqlite3",
        "subprocess",
        "tempfile",
        "webbrowser",
    ),
    *(
        "cryptography.hazmat.primitives.asymmetric.ed25519",
        "cryptography.hazmat.primitives.serialization",
    ),
    *(
        "isal.igzip",
        "msgspec",
        "numpy",
        "psutil",
        "rich.console",
        "rich.progress",
        "rich.table",
        "typer.main",
    ),
)


def _load_third_party() -> None:
    """What the core commands load, the standard library's modules that choose their form by the
    platform included.
    """
    for name in LOADED_FIRST:
        import_module(name)
    sysconfig.get_config_vars()
    platformdirs.user_data_path()


def become(place: str) -> None:
    """Make this interpreter look like one of `place`."""
    if place == "bare":
        _hide(EXTRAS)
        return
    _load_third_party()
    sys.platform = "win32" if place == "windows" else "darwin"
    gone = (*ONLY_LINUX, *(ONLY_POSIX if place == "windows" else ()))
    for name in gone:
        if hasattr(os, name):
            delattr(os, name)
    if place == "windows":
        for name in SIGNALS:
            delattr(signal, name)
        _hide(NOT_ON_WINDOWS | EXTRAS)
