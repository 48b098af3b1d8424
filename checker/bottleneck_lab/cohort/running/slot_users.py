"""A user for each slot: a runner that is root runs the checks of two slots as two users, who can
read neither each other's files nor the cohort's.

The whole job runs as its slot's user, verifier and workers. It is copied into a folder that only
this user and root can enter, and its result is fetched from there as data. The runner keeps what
was submitted, the key and the database to itself.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from bottleneck_lab.cohort.running.job import MAX_RESULT_BYTES, RESULT
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap_problem
from bottleneck_lab.measure.sandbox.cgroup import delegate_group, remove_tree
from bottleneck_lab.measure.sandbox.visible import torch_home
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.lock import try_lock

USERS_ROOT = Path("/var/lib/bottleneck-lab-slots")
FIRST_UID = 61000
"""The first that is taken where none is named: no account that a distribution or systemd hands out
has it (systemd.io/UIDS-GIDS).
"""
MOST_UIDS = 1000
"""Of one range: more slots than any machine has."""
HOW_TO_OPEN = (
    "That user must be able to read this installation and its data sets: keep both outside /root"
    " (BOTTLENECK_LAB_HOME sets where data sets are)."
)
HOW_TO_SHARE = "Or let all slots share this user with `--uids ''`; every verdict will say so."
_PROBE_S = 60
_AS_USER = """
uid=$1 group=$2
shift 2
[ -z "$group" ] || echo 0 > "$group/cgroup.procs"
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups -- /bin/sh -c 'exec "$@"' sh "$@"
"""
"""setpriv itself keeps root's capabilities until it starts a program, so the shell that it starts
looks for the command.
"""


def parse_uids(text: str) -> list[int]:
    """Return the numbers of `61000-61003` or `61000,61007`.

    Raises UsageError for anything else, for root, and for a user named twice.
    """
    uids: list[int] = []
    for part in filter(None, map(str.strip, text.split(","))):
        matched = re.fullmatch(r"([1-9]\d*)(?:-(\d+))?", part)
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
        if not 0 < first <= last < first + MOST_UIDS:
            raise UsageError(
                f"'{part}' names no unprivileged users.", "Write their uids: --uids 61000-61003."
            )
        uids += range(first, last + 1)
    if len(set(uids)) < len(uids):
        raise UsageError(f"--uids {text} names a user twice.", "Every slot needs its own user.")
    return uids


def free_uids(count: int) -> list[int]:
    """Return `count` uids without an account. Raises MachineError if one of them has an account."""
    uids = list(range(FIRST_UID, FIRST_UID + count))
    for uid in uids:
        try:
            # An account's own files would be open to the code under test.
            account = pwd.getpwuid(uid).pw_name
        except KeyError:
            continue
        raise MachineError(
            f"The account '{account}' has uid {uid}.", "Name other uids with --uids."
        )
    return uids


def require_slot_users(
    uids: list[int], *, sandbox_required: bool = True, python: str = sys.executable
) -> None:
    """Try out that checks can run as these users.

    Raises MachineError without the right to change to them, or if they cannot reach what a check
    needs.
    """
    probe = [python, "-m", __name__, *(["sandbox"] if sandbox_required else [])]
    for uid in uids:
        done = subprocess.run(
            as_user(uid, probe),
            env=_environment(uid, Path("/nonexistent")),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PROBE_S,
        )
        if done.returncode:
            output = done.stdout.strip() or done.stderr.strip() or "no reason given"
            raise MachineError(
                f"Checks cannot run as uid {uid}: {output.splitlines()[-1]}.",
                f"{HOW_TO_OPEN} The installation's Python is {Path(python).resolve()}."
                f" {HOW_TO_SHARE}",
            )


def as_user(uid: int, command: list[str], group: Path | None = None) -> list[str]:
    """Return a command line that root runs as `uid`, and the gid of that number, in `group`."""
    return ["/bin/sh", "-c", _AS_USER, "sh", str(uid), str(group or ""), *command]


def _environment(uid: int, folder: Path) -> dict[str, str]:
    """Return the runner's own environment, with the user's home and temporary files in `folder`.

    Data sets and weights stay the runner's.
    """
    name = f"slot-{uid}"
    return {
        **os.environ,
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "USER": name,
        "LOGNAME": name,
        "BOTTLENECK_LAB_HOME": str(home()),
        **({"TORCH_HOME": str(weights)} if (weights := torch_home()) else {}),
    }


class SlotUser:
    """The user of one slot, with its folder `root/UID`.

    Raises MachineError while another runner has that user.
    """

    def __init__(self, uid: int, root: Path) -> None:
        self.uid = uid
        self._folder = root / str(uid)
        self._group: Path | None = None
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o711)  # users reach their own folders, and list nobody's
        lock = try_lock(root / f"{uid}.lock")
        if lock is None:
            raise MachineError(f"Another runner uses uid {uid}.", "Name others with --uids.")
        self._lock = lock

    def take_in(self, job: Path) -> Path:
        """Copy a job's folder for this user, who sees nothing of an earlier one; return its path.

        Raises OSError.
        """
        self.clear()
        self._folder.mkdir(mode=0o700)
        copy = shutil.copytree(job, self._folder / job.name)
        (self._folder / "tmp").mkdir(mode=0o700)
        for path in (self._folder, *self._folder.rglob("*")):
            os.chown(path, self.uid, self.uid)
        self._group = delegate_group(f"slot-{self.uid}", self.uid)
        return copy

    def command(self, command: list[str]) -> list[str]:
        """Return the command line that runs as this user, in its control group if there is one."""
        return as_user(self.uid, command, self._group)

    def environment(self) -> dict[str, str]:
        """Return the environment of a job of this user."""
        return _environment(self.uid, self._folder)

    def fetch(self, job: Path) -> None:
        """Bring the result from the copy of `job` to `job` itself.

        Only the bytes of a plain file of this user: a link could lead to a secret that root can
        read, and a pipe would never end.
        """
        try:
            descriptor = os.open(
                self._folder / job.name / RESULT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            )
        except OSError:
            return
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_uid == self.uid:
                (job / RESULT).write_bytes(file.read(MAX_RESULT_BYTES + 1))

    def clear(self) -> None:
        """End what still runs in the user's control group, and remove its files."""
        if self._group is not None:
            remove_tree(self._group)
            self._group = None
        # `rm` rather than rmtree, which recurses: hostile code can nest folders without end.
        subprocess.run(
            ["rm", "-rf", "--", str(self._folder)], check=False, stderr=subprocess.DEVNULL
        )

    def close(self) -> None:
        """Leave the user to others."""
        os.close(self._lock)


def _problem(sandbox_required: bool) -> str:
    """Return what this user lacks for a check; an empty string if nothing."""
    if sandbox_required and (problem := bubblewrap_problem()):
        return f"bubblewrap is {problem}"
    folder = home() / "datasets"
    try:
        unreadable = folder.exists() and not os.access(folder, os.R_OK | os.X_OK)
    except PermissionError:
        unreadable = True
    return f"it cannot read {folder}" if unreadable else ""


if __name__ == "__main__":
    sys.exit(_problem("sandbox" in sys.argv) or 0)
