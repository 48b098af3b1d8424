"""Starting a worker so that it can do no harm, freezing it while another is measured, and ending it with everything it started."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

from bottleneck_lab.catalog import FailReason
from bottleneck_lab.measure.sandbox import pid1, supervisor
from bottleneck_lab.measure.sandbox.bubblewrap import SYSTEM, bubblewrap, namespaces
from bottleneck_lab.measure.sandbox.cgroup import Cgroup
from bottleneck_lab.measure.sandbox.children import lower_limit
from bottleneck_lab.measure.sandbox.janitor import Janitor, adopt_orphans
from bottleneck_lab.measure.sandbox.namespace import Namespace, Silent
from bottleneck_lab.measure.sandbox.seccomp import refuse_calls
from bottleneck_lab.programs import find_program

LOG_TAIL_BYTES = 64 << 10
MAX_FILES, MAX_DEPTH = 20_000, 100
"""What a worker may keep in its folder: looking through it twice a second has to stay cheap, and its paths short enough to be opened."""
MAX_SIGNALS = 1024
"""Signals that may be on their way to a worker. Ordinary ones arrive without a place in the queue, too."""
FREEZE_S = 5.0
"""CPU seconds that a worker may take to stand still: a call of the kernel goes on until it returns, even with its process stopped, and costs the others."""
_AT_REST = set("TtZXD")
"""Stopped, at the end, or asleep in the kernel where a signal is not noticed."""
_HOLDERS = 3
"""Processes that are not the worker's but hold it: the supervisor, the sandbox in it, and the sandbox's first process."""
END_S = 10.0
"""Longest wait for a supervisor to have ended everything: freeing gigabytes takes a second, and a killed call of the kernel may go on for a while."""
FROZEN_CPU_S, FROZEN_CPU_SHARE, FROZEN_FORGIVEN = 0.005, 0.02, 2
"""CPU seconds that a stopped worker may seem to use, the share of the time, and how often more."""
_GPU_CHOICE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Which of the machine's GPUs is meant."""


@dataclass(frozen=True)
class Limits:
    """What a worker may use. Exceeding one is the worker's fault and ends it."""

    start_s: float = 120.0
    call_s: float = 60.0
    total_s: float = 600.0
    cpu_s: int = 1200
    memory_bytes: int = 6 << 30
    processes: int = 512
    open_files: int = 4096
    file_bytes: int = 2 << 30
    scratch_bytes: int = 4 << 30


class Excess(NamedTuple):
    """The reason of a FAIL for a limit that was exceeded, and which, as words for the verdict."""

    reason: FailReason
    words: str


@dataclass
class Paths:
    """What a worker sees besides the system and Python: a scratch folder of its own, and folders it may only read. `hidden` ones are empty to it."""

    scratch: Path
    readable: list[Path] = field(default_factory=list)
    hidden: list[Path] = field(default_factory=list)


@cache
def python_folders() -> list[str]:
    """What an isolated Python needs: itself, and every folder it imports from, also those that a .pth file names."""
    told = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(*sys.path, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    imported_from = Path(__file__).resolve().parents[3]  # site-packages, or the `checker` of a checkout
    executable = Path(sys.executable).resolve().parent.parent
    return sorted({sys.prefix, sys.base_prefix, str(executable), str(imported_from), *told.stdout.splitlines()})


def _sandbox(paths: Paths, memory_bytes: int, gpu: bool) -> list[str]:
    command = namespaces()[:]  # first /proc and /dev: what follows may lie below them
    for folder in ("/dev/shm", "/tmp"):  # in memory that no process is charged for
        command += ["--size", str(memory_bytes // 4), "--tmpfs", folder]
    weights = torch_home()
    readable = [*paths.readable, weights, *([*_driver_libraries(), _cuda_toolkit()] if gpu else [])]
    for folder in [*SYSTEM, *python_folders(), *map(str, filter(None, readable))]:
        command += ["--ro-bind-try", folder, folder]
    # An installed package holds the labs with their solutions: nothing that runs here needs them.
    for hidden in filter(Path.is_dir, [*paths.hidden, Path(__file__).resolve().parents[2] / "content"]):
        command += ["--tmpfs", str(hidden), "--remount-ro", str(hidden)]  # else it is memory that nobody is charged for
    command += ["--bind", str(paths.scratch), str(paths.scratch)]
    if gpu:
        for device in Path("/dev").glob("nvidia*"):
            command += ["--dev-bind-try", str(device), str(device)]
    # The root itself lies in memory that nobody is charged for: nothing is to be written beside what is mounted.
    return [*command, "--remount-ro", "/", "--chdir", str(paths.scratch), "--"]


def sandboxed(
    command: list[str], paths: Paths, memory_bytes: int, *, gpu: bool, namespace: Namespace | None = None
) -> list[str]:
    """A command line with bubblewrap around it, where there is one; with `namespace`, under a first process that takes orders."""
    if bubblewrap() is None:
        return command
    first = [sys.executable, "-I", "-S", pid1.__file__, str(namespace.fileno())] if namespace else []
    *sandbox, end = _sandbox(paths, memory_bytes, gpu)
    return [*sandbox, *(["--as-pid-1"] if first else []), end, *first, *command]


def shown(path: Path, readable: list[Path]) -> bool:
    """Whether a worker can see a path of this machine: any without a sandbox, else what lies in a folder that is shown to it."""
    folders = [
        *SYSTEM,
        *python_folders(),
        *map(str, readable),
        *([str(weights)] if (weights := torch_home()) else []),
    ]
    return bubblewrap() is None or any(path.resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def torch_home() -> Path | None:
    """Where torch keeps downloaded weights, if there are any: reference and learner both may read them, or neither."""
    folder = Path(os.environ.get("TORCH_HOME", Path.home() / ".cache" / "torch"))
    return folder if (folder / "hub" / "checkpoints").is_dir() else None


def _driver_libraries() -> list[Path]:
    """The folders of LD_LIBRARY_PATH: a container's driver may be found by it alone."""
    folders = map(Path, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return [folder.resolve() for folder in folders if folder.is_absolute()]


def _cuda_toolkit() -> Path | None:
    """The folder of the CUDA compiler that this machine has, if it has one."""
    compiler = find_program("nvcc")
    return compiler.resolve().parents[1] if compiler else None


def _gpu_environment() -> dict[str, str]:
    """What a worker on a GPU has of the verifier's environment: the same GPU, driver and compiler."""
    found = {name: os.environ[name] for name in _GPU_CHOICE if name in os.environ}
    if libraries := _driver_libraries():
        found["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    if toolkit := _cuda_toolkit():
        found["CUDA_HOME"] = str(toolkit)
    return found


def worker_environment(paths: Paths, threads: int, *, bound: bool = False, gpu: bool = False) -> dict[str, str]:
    """Everything that a worker sees of the environment: nothing of the verifier's own, save for which GPU is meant and what belongs to it."""
    # A thread that waits for work by spinning would go on into the next call, which may be of another case.
    binding = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "OMP_WAIT_POLICY": "passive"} if bound else {}
    # In the sandbox /tmp is the worker's own, and short: a DataLoader puts sockets there, whose names may have 107 bytes.
    temporary = Path("/tmp") if bubblewrap() else paths.scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(paths.scratch),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **binding,
        "LAB_CACHE": str(paths.scratch / "cache"),
        **({"TORCH_HOME": str(weights)} if (weights := torch_home()) else {}),
        **(_gpu_environment() if gpu else {}),
    }


def _confinement(limits: Limits, cgroup: Cgroup | None, cores: set[int] | None, *, network: bool) -> Callable[[], None]:
    """What a supervisor does between fork and exec: it takes charge of orphans, and gives up what its worker is not to have."""
    # A filter takes away the rights that an old, setuid bubblewrap needs to set up the sandbox; the sandbox is worth more.
    path = bubblewrap()
    setuid = path is not None and bool(Path(path).stat().st_mode & stat.S_ISUID)

    def prepare() -> None:
        os.setsid()
        adopt_orphans(True)
        if cgroup is not None:
            cgroup.add(0)
        if cores:
            os.sched_setaffinity(0, cores)
        _set_limits(limits)
        if not setuid:
            refuse_calls(network=network)

    return prepare


def _isolation(cgroup: Cgroup | None, namespace: Namespace | None, limits: Limits) -> dict[str, str]:
    """What holds a worker, as a verdict says it."""
    without = "stopped by the sandbox's first process" if namespace else "followed one by one"
    return {
        "sandbox": "bubblewrap: no network, read-only system, private /tmp"
        if bubblewrap()
        else "none: install bubblewrap for isolation",
        "cgroup": f"cgroup v2 ({', '.join(cgroup.limits) or 'freeze and kill'})"
        if cgroup
        else f"none: processes are {without}",
        "limits": f"{limits.memory_bytes >> 30} GiB, {limits.processes} processes, {limits.total_s:.0f} s",
    }


def python_module(name: str, *arguments: str) -> list[str]:
    """The command line of a module in an isolated interpreter."""
    return [sys.executable, "-I", "-u", "-m", name, *arguments]


class Worker:
    """A running worker and everything it started. With `network`, its processes may meet over TCP: ranks that a launcher starts do.

    With `bound`, OpenMP gives each of its threads a core: a call of milliseconds is over before the kernel's scheduler has moved two apart.

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
        self._namespace = Namespace() if bubblewrap() else None
        self._frozen: list[psutil.Process] = []
        self._frozen_at: float | None = None
        self._frozen_cpu_s = 0.0
        self._still_s = 0.0
        self._woken = 0
        self._janitor = janitor
        command = sandboxed(command, paths, limits.memory_bytes, gpu=gpu, namespace=self._namespace)
        environment = worker_environment(paths, threads, bound=bound, gpu=gpu)
        confine = _confinement(limits, self._cgroup, cores, network=network)
        self.process = self._launch(command, environment, confine, pass_fds)
        if self._namespace is not None:
            self._namespace.started()
        if self._cgroup is not None and not self._cgroup.populated():  # one may be made, but not used
            self._cgroup.remove()
            self._cgroup = None
        self.started = time.monotonic()
        self._handle = psutil.Process(self.process.pid)
        self.isolation = _isolation(self._cgroup, self._namespace, limits)

    def _launch(
        self, command: list[str], environment: dict[str, str], confine: Callable[[], None], pass_fds: list[int]
    ) -> subprocess.Popen[bytes]:
        """The command below a supervisor, on a lifeline of the janitor's."""
        supervised, self._lifeline = self._janitor.lifeline()
        above = [sys.executable, "-I", "-S", supervisor.__file__, str(supervised)]
        # Opened anew: how the worker sets its end (O_DIRECT, its place) does not become how we read.
        output = os.open(f"/proc/self/fd/{self._log.fileno()}", os.O_WRONLY | os.O_APPEND)
        process = subprocess.Popen(
            [*above, str(self._cgroup.path) if self._cgroup else "", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=self.paths.scratch,
            pass_fds=[*pass_fds, supervised, *([self._namespace.fileno()] if self._namespace else [])],
            preexec_fn=confine,  # noqa: PLW1509 - the verifier has one thread
        )
        self._janitor.leave_time(process.pid)
        os.close(output)
        os.close(supervised)
        return process

    def tree(self) -> list[psutil.Process]:
        """Everything that came of the worker and is not waited for yet, whosever child it is now. The supervisor is ours and not among it."""
        try:
            return list(self._handle.children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def freeze(self) -> bool:
        """Stops every process of the worker, so that nothing it left running can slow or help another measurement; False where some go on."""
        still = self._stop()
        self._frozen_at = time.monotonic()
        if self._cgroup is None and self._namespace is None:
            self._frozen_cpu_s = self._on_cpu_s()
        return still

    def _stop(self) -> bool:
        if self._cgroup is not None:
            return self._cgroup.freeze(True, FREEZE_S)
        if self._namespace is None:
            return self._stop_one_by_one()
        try:
            return self._namespace.stop(FREEZE_S)
        except Silent:
            return self._stopped_from_outside()

    def _stop_one_by_one(self) -> bool:
        """The same by what is seen of it: who is always another process is not caught, and for the others one is not waited for ever."""
        seen: set[int] = set()
        patience = pid1.Patience(FREEZE_S, self._on_cpu_s)
        while (new := [process for process in self.tree() if process.pid not in seen]) and not patience.ended():
            for process in new:
                seen.add(process.pid)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
                    self._frozen.append(process)
        while not (still := self.states() <= _AT_REST) and not patience.ended():
            time.sleep(0.001)
        return still and not new

    def _stopped_from_outside(self) -> bool:
        """Whether somebody has stopped the sandbox with its first process, which nobody in it can."""
        with contextlib.suppress(psutil.NoSuchProcess):
            inside = [process for sandbox in self._handle.children() for process in sandbox.children(recursive=True)]
            return {process.status() for process in inside} <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        return False

    def states(self) -> set[str]:
        """What its threads are in, as letters of ps(1)."""
        return {status.rpartition(")")[2].split()[0] for status in self._of_threads("stat")}

    def ran_while_frozen(self) -> bool:
        """Whether a stopped worker used CPU all the same, again and again. A signal can be undone (by a sibling), a frozen group cannot.

        Once or twice may be a child that was born while its family was being stopped, or a call of the kernel that has come to its end.
        """
        if self._frozen_at is None or self._cgroup is not None:
            return False
        ran_s, changed = self._namespace.broken() if self._namespace else (self._on_cpu_s() - self._frozen_cpu_s, False)
        if changed or ran_s > FROZEN_CPU_S + FROZEN_CPU_SHARE * (time.monotonic() - self._frozen_at):
            self._woken += 1
        return self._woken > FROZEN_FORGIVEN

    def thaw(self) -> None:
        """Lets a frozen worker go on."""
        if self._frozen_at is not None:
            self._still_s += time.monotonic() - self._frozen_at
            self._frozen_at = None
        if self._cgroup is not None:
            self._cgroup.freeze(False, FREEZE_S)
            return
        if self._namespace is not None:
            self._namespace.go()
        for process in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._frozen.clear()

    def cpu_s(self) -> float:
        """CPU seconds used by the worker so far; without a cgroup, of what is alive or was waited for, if only by those who hold it."""
        if self._cgroup is not None:
            return self._cgroup.cpu_s()
        total, ours = 0.0, {self._handle.pid}
        for process in [self._handle, *self.tree()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.children_user + times.children_system
                if self._namespace is not None and process.ppid() in ours and len(ours) < _HOLDERS:
                    ours.add(process.pid)
                total += times.user + times.system if process.pid not in ours else 0.0
        return total

    def waited_s(self) -> float:
        """Seconds that its living threads have been ready to run and had no core, added up; 0 where the kernel does not tell."""
        return sum(int(status.split()[1]) for status in self._of_threads("schedstat")) / 1e9

    def _on_cpu_s(self) -> float:
        """Seconds that its living threads have run, added up, to the nanosecond, where `cpu_s` counts in hundredths a process."""
        return sum(int(status.split()[0]) for status in self._of_threads("schedstat")) / 1e9

    def _of_threads(self, file: str) -> Iterator[str]:
        """What the kernel says in a file of /proc of each living thread."""
        for process in self.tree():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                for thread in Path(f"/proc/{process.pid}/task").iterdir():
                    with contextlib.suppress(OSError):  # so has this
                        yield (thread / file).read_text(errors="replace")

    def excess(self) -> Excess | None:
        """The limit that the worker exceeds now, or None. The time in which it was frozen is not its own."""
        if time.monotonic() - self.started - self._still_s > self.limits.total_s:
            return Excess("timed out", f"ran longer than {self.limits.total_s:.0f} s in all")
        words = self._holds_too_much()
        return Excess("crashed", words) if words else None

    def _holds_too_much(self) -> str | None:
        tree, threads = self.tree(), 0
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                threads += process.num_threads()
        if _memory_bytes([process.pid for process in tree]) > self.limits.memory_bytes:
            return f"used more than {self.limits.memory_bytes / (1 << 30):.3g} GiB of memory"
        if len(tree) > self.limits.processes or threads > 8 * self.limits.processes:
            return f"started more than {self.limits.processes} processes"
        nameless = _nameless_bytes([process.pid for process in tree], in_memory=False)
        if litter := too_much_below(self.paths.scratch, self.limits.scratch_bytes, nameless):
            return f"wrote {litter}"
        return None

    def log_tail(self) -> str:
        """The end of what the worker printed, safe to show on a terminal."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        return printable(self._log.read().decode(errors="replace"))

    def ending(self) -> str:
        """How the process ended, as words."""
        code = self.process.poll()
        if code is None:
            return "is still running"
        code = code - 256 if code > 192 else (128 - code if 128 < code <= 192 else code)
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
        """Has everything killed that the worker started, and waits until all of it is gone."""
        if self._cgroup is not None:
            self._cgroup.kill()
        if self._namespace is not None:
            self._namespace.close()
        self._janitor.cut(self._lifeline)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._janitor.forget(self.process.pid)
        if self.process.returncode < 0:
            _end_orphans(self._janitor.followed())
        if self._cgroup is not None:
            self._cgroup.remove()
        self._log.close()


def _end_orphans(ours: set[int]) -> None:
    """Kills what has fallen to the verifier because its supervisor was itself killed.

    Children that the verifier did not start are known by the filter of calls, which nobody takes off once it is on (told by Linux 5.9 and later).
    """
    end, own = time.monotonic() + END_S, _filters("self")
    while time.monotonic() < end:
        orphans = [pid for pid in supervisor.children() if pid not in ours and _filters(str(pid)) > own]
        if not orphans:
            return
        for pid in orphans:
            supervisor.kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _filters(pid: str) -> int:
    """How many filters of calls a process bears."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("Seccomp_filters:"):
                return int(line.split()[1])
    return 0


def _set_limits(limits: Limits) -> None:
    for what, value in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_DATA, 2 * limits.memory_bytes),  # counts reserved memory too; what is really used is watched
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_SIGPENDING, MAX_SIGNALS),
    ):
        lower_limit(what, value)


def _memory_bytes(pids: list[int]) -> int:
    """Bytes that processes hold in memory: their own pages, and what they share, mapped or in files without a name (memfd) that they keep open.

    A page may be mapped and its file be open too, so the larger of both counts. What travels between processes in a message is not seen.
    """
    own = mapped = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(errors="replace")
            own += _status_bytes(status, "RssAnon") + _status_bytes(status, "HugetlbPages")
            mapped += _status_bytes(status, "RssShmem")
    return own + max(mapped, _nameless_bytes(pids, in_memory=True))


def _status_bytes(status: str, field_: str) -> int:
    """A figure of /proc/PID/status, which counts in kB; 0 for a zombie, which has none."""
    line = next((line for line in status.splitlines() if line.startswith(f"{field_}:")), "0")
    return int(line.split()[-2]) * 1024 if line.endswith("kB") else 0


def _nameless_bytes(pids: list[int], *, in_memory: bool) -> int:
    """Bytes of the files without a name that processes have open: memfds (`in_memory`), or those on a disk, made without a name or removed since."""
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    files |= _nameless(link, in_memory=in_memory)
    return sum(files.values())


def _nameless(link: Path, *, in_memory: bool) -> dict[tuple[int, int], int]:
    """Bytes of what an open descriptor leads to, by device and inode; nothing where that is no such file."""
    target = str(link.readlink())
    if not target.startswith("/") or target.startswith("/memfd:") is not in_memory:
        return {}
    status = link.stat()
    nameless = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
    return {(status.st_dev, status.st_ino): status.st_blocks * 512} if nameless else {}


def too_much_below(root: Path, most_bytes: int, besides: int = 0) -> str | None:
    """What of a folder's contents, and `besides` bytes elsewhere, is too much, as words, or None. Looks no further than it takes to know."""
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
                    else:
                        total += _taken_bytes(entry)
        except PermissionError:
            return "folders that nobody may look into"
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return "paths longer than any can be opened by"
            continue  # it has gone meanwhile
    return f"more than {most_bytes / (1 << 30):.3g} GiB" if total > most_bytes else None


def _taken_bytes(entry: os.DirEntry[str]) -> int:
    """What a file takes: its length, or its blocks where it was promised more. Nothing when it has gone meanwhile."""
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    return max(status.st_size, status.st_blocks * 512)


def printable(text: str) -> str:
    """Text without control characters other than newline and tab: a learner's output cannot drive the terminal."""
    return "".join(char for char in text if char in "\n\t" or char.isprintable())
