"""A worker: a contained program, frozen while another is measured, and killed together with
everything it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bottleneck_lab.measure.sandbox import supervisor
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.cgroup import Cgroup
from bottleneck_lab.measure.sandbox.freezer import Freezer, Signals, thread_states
from bottleneck_lab.measure.sandbox.gpus import chosen_gpus, words
from bottleneck_lab.measure.sandbox.janitor import Janitor, adopt_orphans
from bottleneck_lab.measure.sandbox.limits import Limits, Watch, set_limits
from bottleneck_lab.measure.sandbox.seccomp import refuse_calls
from bottleneck_lab.measure.sandbox.visible import (
    Paths,
    sandboxed,
    worker_environment,
    write_accounts,
)
from bottleneck_lab.measure.sandbox.waiting import Waiting

LOG_TAIL_BYTES = 64 << 10
_HOLDERS = 3
"""Processes that are not the worker's but hold it: the supervisor, the sandbox in it, and the
sandbox's first process.
"""
END_S = 10.0
"""Longest wait for a supervisor to have ended everything: freeing gigabytes takes a second, and a
killed process may stay in a system call for a while.
"""


def _confinement(
    limits: Limits, cgroup: Cgroup | None, cores: set[int] | None, *, network: bool
) -> Callable[[], None]:
    """Return what a supervisor does between fork and exec: it adopts orphans, and drops what its
    worker must not have.
    """
    # A filter takes away the rights that an old, setuid bubblewrap needs to set up the sandbox; the
    # sandbox is worth more.
    path = bubblewrap()
    setuid = path is not None and bool(Path(path).stat().st_mode & stat.S_ISUID)

    def prepare() -> None:
        os.setsid()
        adopt_orphans()
        if cgroup is not None:
            cgroup.add(0)
        if cores:
            os.sched_setaffinity(0, cores)
        set_limits(limits)
        if not setuid:
            refuse_calls(network=network)

    return prepare


def _isolation(cgroup: Cgroup | None, limits: Limits, *, gpu: bool) -> dict[str, str]:
    """Describe what holds a worker, for a verdict."""
    by_kernel = cgroup is not None and {"memory.max", "pids.max"} <= set(cgroup.limits)
    isolation = {
        "sandbox": "none: install bubblewrap for isolation",
        "cgroup": "none: the worker's process group is stopped by signals",
        "limits": (
            f"{limits.memory_bytes >> 30} GiB and {limits.processes} processes"
            f" ({'by the kernel' if by_kernel else 'monitored'}), {limits.total_s:.0f} s"
        ),
    }
    if cgroup:
        isolation["cgroup"] = f"cgroup v2 ({', '.join(cgroup.limits) or 'freeze and kill'})"
    if bubblewrap():
        isolation["sandbox"] = "bubblewrap: no network, read-only system, private /tmp"
        if gpu:
            isolation["devices"] = words(chosen_gpus())
    return isolation


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command line of a module in an isolated interpreter."""
    return [sys.executable, "-I", "-u", "-m", name, *arguments]


class Worker:
    """A running worker and everything it started. With `network`, its processes may meet over TCP:
    ranks that a launcher starts do.

    With `bound`, OpenMP gives each of its threads a core: a call of milliseconds is over before the
    kernel's scheduler has moved two apart.

    `isolation` says what holds it: bubblewrap, cgroup, limits; and what does not.
    """

    def __init__(
        self,
        command: list[str],
        paths: Paths,
        limits: Limits,
        *,
        pass_fds: list[int],
        cores: set[int] | None,
        threads: int,
        gpu: bool,
        janitor: Janitor,
        network: bool = False,
        bound: bool = False,
    ) -> None:
        self.limits = limits
        self.paths = paths
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._cgroup = Cgroup.create(limits.memory_bytes, limits.processes)
        if self._cgroup is not None:
            janitor.follow_group(self._cgroup.path)
        self._janitor = janitor
        accounts = write_accounts(janitor.folder / "accounts")
        command = sandboxed(command, paths, limits.memory_bytes, gpu=gpu, accounts=accounts)
        environment = worker_environment(paths, threads, bound=bound, gpu=gpu)
        confine = _confinement(limits, self._cgroup, cores, network=network)
        self.process = self._launch(command, environment, confine, pass_fds)
        # Some machines let a group be made, but no process be moved into it.
        if self._cgroup is not None and not self._cgroup.populated():
            self._cgroup.remove()
            self._cgroup = None
        self._handle = psutil.Process(self.process.pid)
        self._freezer: Freezer = self._cgroup or Signals(self._handle)
        memory_bytes = None
        if self._cgroup is not None and "memory.max" in self._cgroup.limits:
            memory_bytes = self._cgroup.memory_bytes
        self.watch = Watch(limits, paths.scratch, self.tree, memory_bytes)
        self.isolation = _isolation(self._cgroup, limits, gpu=gpu)

    def _launch(
        self,
        command: list[str],
        environment: dict[str, str],
        confine: Callable[[], None],
        pass_fds: list[int],
    ) -> subprocess.Popen[bytes]:
        """Return the command below a supervisor, on a lifeline of the janitor's."""
        supervised, self._lifeline = self._janitor.lifeline()
        above = [sys.executable, "-I", "-S", supervisor.__file__, str(supervised)]
        # Opened again: how the worker sets its end (O_DIRECT, its place) does not become how we
        # read.
        output = os.open(f"/proc/self/fd/{self._log.fileno()}", os.O_WRONLY | os.O_APPEND)
        process = subprocess.Popen(
            [*above, str(self._cgroup.path) if self._cgroup else "", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=self.paths.scratch,
            pass_fds=[*pass_fds, supervised],
            preexec_fn=confine,  # noqa: PLW1509 - the verifier has one thread
        )
        self._janitor.leave_time(process.pid)
        os.close(output)
        os.close(supervised)
        return process

    def tree(self) -> list[psutil.Process]:
        """Return the worker's descendants that have not been waited for, whoever their parent is
        now; not the supervisor, which is ours.
        """
        try:
            return list(self._handle.children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def freeze(self) -> bool:
        """Stop the worker, so that nothing it left running can slow or help another measurement;
        False if it does not stop.
        """
        self.watch.pause()
        return self._freezer.freeze()

    def thaw(self) -> None:
        """Let a frozen worker run again."""
        self.watch.resume()
        self._freezer.thaw()

    def states(self) -> set[str]:
        """Return the states of its threads, as the letters that ps(1) shows."""
        return thread_states(self.tree())

    def cpu_s(self) -> float:
        """Return CPU seconds used by the worker so far; without a cgroup, only of what is alive or
        has been waited for, even if only by what holds it.
        """
        if self._cgroup is not None:
            return self._cgroup.cpu_s()
        total, ours = 0.0, {self._handle.pid}
        for process in [self._handle, *self.tree()]:
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                times = process.cpu_times()
                total += times.children_user + times.children_system
                if bubblewrap() and process.ppid() in ours and len(ours) < _HOLDERS:
                    ours.add(process.pid)
                if process.pid not in ours:
                    # A process's own clock, as clock_getcpuclockid(3) numbers it, counts ns; /proc
                    # has hundredths of a second.
                    total += time.clock_gettime(~process.pid << 3 | 2)
        return total

    def waiting(self) -> Waiting:
        """Measure from now on how long its threads wait for a core."""
        return Waiting(self.tree)

    def log_tail(self) -> str:
        """Return the end of what the worker printed, safe to show on a terminal."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        return printable(self._log.read().decode(errors="replace"))

    def ending(self) -> str:
        """Return how the process ended, as words."""
        code = self.process.poll()
        if code is None:
            return "is still running"
        # A signal N is 128 + N as a shell reports it, and -N as Python does, here in eight bits.
        if code > 192:
            code -= 256
        elif code > 128:
            code = 128 - code
        if code >= 0:
            return f"exited with status {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        reason = {
            "SIGXCPU": " (CPU time limit)",
            "SIGXFSZ": " (file size limit)",
            "SIGKILL": " (killed, perhaps for memory)",
        }.get(name, "")
        return f"was ended by {name}{reason}"

    def end(self) -> None:
        """Kill everything that the worker started, and wait until it is gone."""
        self._freezer.kill()
        self._janitor.cut(self._lifeline)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._janitor.forget(self.process.pid)
        if self._cgroup is not None:
            self._cgroup.remove()
        self._log.close()


def printable(text: str) -> str:
    """Return the text without control characters other than newline and tab, so that a learner's
    output cannot drive the terminal.
    """
    return "".join(char for char in text if char in "\n\t" or char.isprintable())
