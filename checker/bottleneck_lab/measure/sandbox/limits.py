"""A worker's limits, and an object that watches whether it keeps to them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from bottleneck_lab.catalog import FailReason
from bottleneck_lab.measure.sandbox.children import lower_limit

WATCH_S = 0.5
"""Seconds between two checks of a worker's limits."""
MAX_FILES, MAX_DEPTH = 20_000, 100
"""Most files in a worker's folder, and how deep: scanning it twice a second must stay cheap, and
its paths short enough to open.
"""
MAX_SIGNALS = 1024
"""Signals that may be on their way to a worker. Ordinary ones arrive without a place in the queue,
too.
"""


@dataclass(frozen=True)
class Limits:
    """The most that a worker may use. A worker that exceeds one is at fault and is ended."""

    start_s: float = 120.0
    call_s: float = 60.0
    total_s: float = 600.0
    cpu_s: int = 1200
    memory_bytes: int = 6 << 30
    processes: int = 512
    open_files: int = 4096
    file_bytes: int = 4 << 30
    scratch_bytes: int = 4 << 30


class Exceeded(NamedTuple):
    """The reason of a FAIL for a limit that was exceeded, and which, as words for the verdict."""

    reason: FailReason
    words: str


class Watch:
    """Watches whether a worker keeps to its limits. `tree` lists its processes; `memory_bytes`,
    where a control group knows, what they hold.
    """

    def __init__(
        self,
        limits: Limits,
        scratch: Path,
        tree: Callable[[], list[psutil.Process]],
        memory_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._limits = limits
        self._scratch = scratch
        self._tree = tree
        self._memory_bytes = memory_bytes
        self._began = self._looked = time.monotonic()
        self._paused_s, self._paused_at = 0.0, 0.0

    def pause(self) -> None:
        """Stop counting the worker's time, which is frozen, until `resume`."""
        self._paused_at = self._paused_at or time.monotonic()

    def resume(self) -> None:
        """Count again: the worker runs."""
        if self._paused_at:
            self._paused_s += time.monotonic() - self._paused_at
        self._paused_at = 0.0

    def now_and_then(self) -> Exceeded | None:
        """Return the limit that is exceeded; None if none is, or where the last check was a moment
        ago.
        """
        if time.monotonic() - self._looked >= WATCH_S:
            return self.excess()
        return None

    def excess(self) -> Exceeded | None:
        """Return the limit that is exceeded now, or None."""
        self._looked = time.monotonic()
        if self._looked - self._began - self._paused_s > self._limits.total_s:
            return Exceeded("timed out", f"ran longer than {self._limits.total_s:.0f} s in all")
        tree, threads = self._tree(), 0
        pids = [process.pid for process in tree]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                threads += process.num_threads()
        # A process's threads cost the kernel about as much as processes do, but libraries start one
        # a core.
        if len(tree) > self._limits.processes or threads > 8 * self._limits.processes:
            return Exceeded("crashed", f"started more than {self._limits.processes} processes")
        most = self._limits.memory_bytes
        held = self._memory_bytes() if self._memory_bytes else _memory_bytes(pids, most)
        if held > most:
            return Exceeded("crashed", f"used more than {most / (1 << 30):.3g} GiB of memory")
        # What has no name any more takes room on the disk all the same.
        nameless = nameless_bytes(pids, in_memory=False)
        if litter := too_much_below(self._scratch, self._limits.scratch_bytes, nameless):
            return Exceeded("crashed", f"wrote {litter}")
        return None


def set_limits(limits: Limits) -> None:
    """Set the limits that the kernel enforces, for this process and its descendants."""
    for what, value in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        # Counts reserved memory too; what is really used is watched.
        (resource.RLIMIT_DATA, 2 * limits.memory_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_SIGPENDING, MAX_SIGNALS),
    ):
        lower_limit(what, value)


def _memory_bytes(pids: list[int], most: int) -> int:
    """Return bytes that processes hold in memory; a page that several share counts once. What
    travels between processes in a message is not seen.

    A page may be mapped and its file be open too (memfd), so the larger of both counts. Exact
    figures cost the kernel a walk through all pages: as long as the sums that count shared pages
    for each process are below `most`, those are returned.
    """
    nameless = nameless_bytes(pids, in_memory=True)
    own, shared = _summed(pids, "status", ("RssAnon", "HugetlbPages"), ("RssShmem",))
    if own + max(shared, nameless) > most:
        fields = ("Pss_Anon", "Shared_Hugetlb", "Private_Hugetlb"), ("Pss_Shmem",)
        own, shared = _summed(pids, "smaps_rollup", *fields)
    return own + max(shared, nameless)


def _summed(
    pids: list[int], file: str, own: tuple[str, ...], shared: tuple[str, ...]
) -> tuple[int, int]:
    """Return bytes in these fields of a file of /proc, over the processes; of those that hide the
    file, what `status` says.
    """
    total = [0, 0]
    for pid in pids:
        with contextlib.suppress(OSError):
            try:
                text = Path(f"/proc/{pid}/{file}").read_text(errors="replace")
                wanted = own, shared
            except PermissionError:  # PR_SET_DUMPABLE
                text = Path(f"/proc/{pid}/status").read_text(errors="replace")
                wanted = ("RssAnon",), ("RssShmem",)
            for at, fields in enumerate(wanted):
                total[at] += sum(_field_bytes(text, name) for name in fields)
    return total[0], total[1]


def _field_bytes(text: str, name: str) -> int:
    """Return a figure of a file of /proc that counts in kB; 0 where it is missing, as in a
    zombie's.
    """
    line = next((line for line in text.splitlines() if line.startswith(f"{name}:")), "")
    return int(line.split()[-2]) * 1024 if line.endswith("kB") else 0


def nameless_bytes(pids: list[int], *, in_memory: bool) -> int:
    """Return bytes of the files without a name that processes have open: memfds (`in_memory`), or
    those on a disk, made without a name or removed since.
    """
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    files |= _nameless(link, in_memory=in_memory)
    return sum(files.values())


def _nameless(link: Path, *, in_memory: bool) -> dict[tuple[int, int], int]:
    """Return bytes of what an open descriptor leads to, by device and inode; nothing where it is
    not a file.
    """
    target = str(link.readlink())
    if not target.startswith("/") or target.startswith("/memfd:") is not in_memory:
        return {}
    status = link.stat()
    nameless = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
    if nameless:
        return {(status.st_dev, status.st_ino): status.st_blocks * 512}
    return {}


def too_much_below(root: Path, most_bytes: int, besides: int = 0) -> str | None:
    """Return which limit a folder's contents, plus `besides` bytes elsewhere, exceed, in words;
    None for none. Stops scanning once that is known.
    """
    total, count = besides, 0
    folders = [(str(root), 0)]
    while folders and total <= most_bytes:
        folder, depth = folders.pop()
        if depth > MAX_DEPTH:
            return f"folders nested more than {MAX_DEPTH} deep"
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    count += 1
                    if count > MAX_FILES:
                        return f"more than {MAX_FILES:,} files"
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, depth + 1))
                        continue
                    with contextlib.suppress(FileNotFoundError):  # it has been removed meanwhile
                        status = entry.stat(follow_symlinks=False)
                        # The length, or the blocks where more was preallocated.
                        total += max(status.st_size, status.st_blocks * 512)
        except PermissionError:
            return "folders that cannot be read"
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return "paths too long to open"
            continue  # it has gone meanwhile
    if total > most_bytes:
        return f"more than {most_bytes / (1 << 30):.3g} GiB"
    return None
