"""A cgroup v2 for each worker, if the machine allows it: exact CPU accounting, and a freeze and a
kill that nothing escapes.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from bottleneck_lab.measure.sandbox.freezer import FREEZE_S

_OURS = "bottleneck-lab"
"""The group below its own in which a runner is, with its checks, once it has taken charge."""
_AT_ONCE, _AGAIN_S = 50, 0.0005
"""Looks at whether a group is frozen, one after the other and then seconds apart."""


def own_group() -> Path | None:
    """Return the control group (v2) of this process; None if none is mounted."""
    try:
        # Behind " - " stands the type of the file system, in the fifth field where it is mounted
        # (proc(5), "mountinfo").
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        mount = next(line.split()[4] for line in mounts if " - cgroup2 " in line)
        # Version 2 is hierarchy 0 and names no controllers (cgroups(7), "/proc files").
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        path = next(line[3:] for line in groups if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    return Path(mount) / path.lstrip("/")


def take_charge() -> None:
    """Have memory and processes counted in the groups that workers will get. Changes nothing where
    this process's group is not ours to divide.

    A group of which others are made may hold no process itself, so what is in it moves into one
    below; workers' groups then stand beside that.
    """
    own = own_group()
    if own is None or own.name == _OURS:
        return
    with contextlib.suppress(OSError):
        inside = (own / "cgroup.procs").read_text().split()
        this = psutil.Process()
        family = (this, *this.parents(), *this.children(recursive=True))
        # Somebody else's programs are not moved about.
        if not {int(pid) for pid in inside} <= {process.pid for process in family}:
            return
        (own / _OURS).mkdir(exist_ok=True)
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                (own / _OURS / "cgroup.procs").write_text(pid)
        (own / "cgroup.subtree_control").write_text("+memory +pids")


@contextlib.contextmanager
def in_charge() -> Iterator[None]:
    """Take charge for a moment and put everything back, to see what a runner would be able to do
    here.
    """
    own = own_group()
    take_charge()
    try:
        yield
    finally:
        if own is not None and own_group() == own / _OURS:
            with contextlib.suppress(OSError):
                # In this order: a group that passes controllers on may hold no process.
                (own / "cgroup.subtree_control").write_text("-memory -pids")
                for pid in (own / _OURS / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        (own / "cgroup.procs").write_text(pid)
                (own / _OURS).rmdir()


def limits_problem() -> str:
    """Return why no control group can limit a worker's memory and processes here; empty if one
    can.
    """
    group = Cgroup.create(1 << 30, 64)
    if group is None:
        if own_group() is None:
            return "cgroup v2 is not mounted"
        return "this process may not create control groups"
    missing = [name for name in ("memory.max", "pids.max") if name not in group.limits]
    group.remove()
    if missing:
        return f"the control groups it can create have no {' and no '.join(missing)}"
    return ""


def delegate_group(name: str, uid: int) -> Path | None:
    """Return a fresh, empty group in which `uid` may make groups of its own (cgroups(7),
    "Delegation"); None if it cannot be made.
    """
    parent = _parent_of_groups()
    if parent is None:
        return None
    group = parent / f"bottleneck-lab-{name}"
    remove_tree(group)
    try:
        group.mkdir()
        for path in (
            group,
            *(group / f"cgroup.{file}" for file in ("procs", "subtree_control", "threads")),
        ):
            os.chown(path, uid, uid)
    except OSError:
        return None
    return group


def remove_tree(group: Path) -> None:
    """Kill what a group and those below it hold, and remove them, the innermost first."""
    top = Cgroup(group)
    top.kill()
    for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        Cgroup(path).remove()
    top.remove()


def _parent_of_groups() -> Path | None:
    """Return where a new group goes: below this process's own, or beside it once the runner has
    taken charge.
    """
    own = own_group()
    return own.parent if own is not None and own.name == _OURS else own


class Cgroup:
    """One control group. Memory and process limits are set where their controllers are enabled;
    `limits` says which were.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.limits: list[str] = []

    @classmethod
    def create(cls, memory_bytes: int, processes: int) -> Cgroup | None:
        """Return a fresh group, or None if the machine does not let us make one."""
        parent = _parent_of_groups()
        if parent is None:
            return None
        group = cls(parent / f"bottleneck-lab-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        try:
            group.path.mkdir()
        except OSError:
            return None
        # Without cgroup.kill (a kernel before 5.14) a fork bomb could outrun the killing of pids.
        if not (group.path / "cgroup.kill").exists():
            group.remove()
            return None
        for name, value in (
            ("memory.max", memory_bytes),
            ("memory.swap.max", 0),
            ("pids.max", processes),
        ):
            with contextlib.suppress(OSError):
                (group.path / name).write_text(str(value))
                group.limits.append(name)
        return group

    def add(self, pid: int) -> bool:
        """Move a process in. False if the machine refuses."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def populated(self) -> bool:
        """Return True if any process is in it."""
        return "populated 1" in (self.path / "cgroup.events").read_text()

    def cpu_s(self) -> float:
        """Return CPU seconds used so far by everything that ever ran in the group."""
        fields = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def memory_bytes(self) -> int:
        """Return bytes that its processes hold, shared pages once; the page cache, which can be
        taken back at any time, left out.
        """
        fields = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int(fields["anon"]) + int(fields["shmem"])

    def freeze(self) -> bool:
        """Stop every process of the group and wait until the kernel says so; False if some still
        run after `FREEZE_S`.
        """
        return self._set_frozen(True)

    def thaw(self) -> None:
        """Continue them."""
        self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> bool:
        (self.path / "cgroup.freeze").write_text(str(int(frozen)))
        wanted, end, looks = f"frozen {int(frozen)}", time.monotonic() + FREEZE_S, 0
        while wanted not in (self.path / "cgroup.events").read_text():
            if time.monotonic() > end:
                return False
            looks += 1
            # At first without a pause, since a freeze takes microseconds; then with one, since
            # whoever is to stop needs a core for it.
            time.sleep(0 if looks < _AT_ONCE else _AGAIN_S)
        return True

    def kill(self) -> None:
        """Kill every process of the group, frozen or not."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Remove the group once its processes are gone (waits up to two seconds)."""
        end = time.monotonic() + 2
        while self.path.exists():
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > end:
                    return
                time.sleep(0.01)
