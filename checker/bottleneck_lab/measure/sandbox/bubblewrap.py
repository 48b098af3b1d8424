"""Find out if bubblewrap works on this machine: the one probe, which tries everything that a check
needs.
"""

from __future__ import annotations

import subprocess
from functools import cache

from bottleneck_lab.errors import MachineError
from bottleneck_lab.programs import find_program, how_to_get

SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/sys",
)
"""The folders of the system that code in a sandbox may read."""

_NAMESPACES = (
    *(
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ),
    *("--die-with-parent", "--cap-drop", "ALL"),
)
_MOUNTS = ("--proc", "/proc", "--dev", "/dev")
MAY_MOUNT = ("--cap-add", "CAP_SYS_ADMIN")
"""The right that a process in the sandbox needs to make namespaces below its own; over nothing
outside the sandbox.
"""
_PART = ("unshare", "--mount", "--ipc", "--net", "--pid", "--fork", "true")
_PROBE_S = 20


@cache
def bubblewrap() -> str | None:
    """Return the path of a bubblewrap that works here, or None."""
    return None if bubblewrap_problem() else str(find_program("bwrap"))


@cache
def bubblewrap_problem() -> str:
    """Return why bubblewrap cannot hold the code of a check here; empty if it can."""
    # Being installed says little: containers and hardened kernels forbid user namespaces, and then
    # bubblewrap fails at its start.
    path = find_program("bwrap")
    if path is None:
        return "not installed"
    try:
        _try(str(path))
    except subprocess.TimeoutExpired:
        return f"installed, but started nothing within {_PROBE_S} s"
    except subprocess.CalledProcessError as error:
        return (
            "installed, but refused:"
            f" {(error.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    return ""


def require_sandbox() -> None:
    """Raise MachineError if bubblewrap does not work: code that may do harm does not run without
    it.
    """
    if problem := bubblewrap_problem():
        raise MachineError(
            "This code may be harmful, so it runs only in a sandbox, but bubblewrap does not work"
            f" here ({problem}).",
            how_to_allow(),
        )


def how_to_allow() -> str:
    """Return what to do if bubblewrap does not work."""
    if find_program("bwrap") is None:
        return how_to_get("bwrap")
    return (
        "Allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1`, or in Docker a seccomp"
        " profile that permits them and `--security-opt systempaths=unconfined`."
    )


@cache
def namespaces() -> list[str]:
    """Return the start of a command line: bubblewrap with namespaces of its own for users,
    processes, network and the rest, and fresh /proc and /dev.
    """
    path = str(bubblewrap())
    # What runs in the sandbox must not make another one, in which it would be root. Bubblewrap
    # before 0.8 does not know the option.
    none_below = ["--disable-userns"]
    try:
        _try(path, *none_below)
    except subprocess.SubprocessError:
        none_below = []
    return [path, *_NAMESPACES, *none_below, *_MOUNTS]


@cache
def lets_ranks_part() -> bool:
    """Return True if a trusted process in the sandbox can give each process that it starts
    namespaces of its own: an old, setuid bubblewrap gives nobody the right.
    """
    path = bubblewrap()
    if path is None:
        return False
    try:
        _try(path, *MAY_MOUNT, command=_PART)
    except subprocess.SubprocessError:
        return False
    return True


def _try(path: str, *options: str, command: tuple[str, ...] = ("true",)) -> None:
    """Run `true`, or `command`, in a sandbox as a check makes it. Raises CalledProcessError,
    TimeoutExpired.
    """
    mounts = [word for folder in SYSTEM for word in ("--ro-bind-try", folder, folder)]
    sandbox = [
        path,
        *_NAMESPACES,
        *options,
        *_MOUNTS,
        "--tmpfs",
        "/tmp",
        *mounts,
        "--remount-ro",
        "/",
        "--",
    ]
    subprocess.run(
        [*sandbox, *command],
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=_PROBE_S,
    )
