"""Find a real Triton Inference Server, start it on a model repository, watch it and end it.

It is the bare program from a wheel, in its own environment, which `lab data tritonserver` sets up.
It listens only on 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.inference_server.triton import capture as triton_capture
from bottleneck_lab.workspace.dataset import is_made
from bottleneck_lab.workspace.home import dataset_root

NAME = "tritonserver"
MODELS = "models"
"""The folder of a workspace that is the model repository."""
CHOICES = ("python", "triton")
_MODEL = Path(__file__).with_name("model.py")
READY_S = 60.0
EXIT_S = 1
"""Longest wait for requests in flight when it is ended; open connections count as such."""
LAST_LINES = 12
_CHOICE = re.compile(r"""^SERVER\s*=\s*["'](\w*)["']""", re.MULTILINE)
_MAX_BATCH = re.compile(r"^(max_batch_size:\s*)(\d+)", re.MULTILINE)
_PREFIX = "tritonserver-"
_SHARED_MEMORY = Path("/dev/shm")
_STAMP = re.compile(r"^E\d{4} [\d:.]+ \d+ \S+\] ")


class TritonError(Exception):
    """The server did not start, or ended: the last lines of its log."""

    reason = "crashed"


def environment_for(entry: Path) -> Path | None:
    """Return the environment of the Triton server that a workspace asks for (`SERVER = "triton"` in
    its serve.py); None if its own code serves.

    Raises LearnerFault for another word, MachineError if the environment is not installed.
    """
    match = _CHOICE.search(entry.read_text(encoding="utf-8", errors="replace"))
    choice = match[1] if match else CHOICES[0]
    if choice not in CHOICES:
        raise LearnerFault(
            "crashed", f'SERVER in {entry.name} must be "python" or "triton", not "{choice}".'
        )
    if choice == "python":
        return None
    if not is_made(NAME):
        raise MachineError(
            f'{entry.name} asks for Triton (SERVER = "triton"), which is not installed here.',
            "`lab data tritonserver` installs it, or says why this machine cannot run it. SERVER ="
            ' "python" needs no Triton: same task, same targets.',
        )
    return dataset_root(NAME)


def max_batch_of(repository: Path) -> int | None:
    """Return the largest batch into which clients' requests are collected; None if the
    configuration names none.
    """
    config = repository / "classify" / "config.pbtxt"
    match = _MAX_BATCH.search(config.read_text(encoding="utf-8", errors="replace"))
    return int(match[2]) if match else None


def repository_for(repository: Path, max_batch: int | None, copy: Path) -> Path:
    """Copy a repository, with the lab's model instead of its own and, unless None, another maximum
    batch size in every model. Returns the copy.
    """
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(repository, copy)
    shutil.copyfile(_MODEL, copy / "resnet50" / "1" / "model.py")
    for config in copy.glob("*/config.pbtxt") if max_batch else ():
        text = config.read_text(encoding="utf-8", errors="replace")
        config.write_text(_MAX_BATCH.sub(rf"\g<1>{max_batch}", text), encoding="utf-8")
    return copy


class Tritonserver:
    """The server's process. `home`: its environment; `fds`: the device's socket and arena, for the
    model `resnet50`; `port`: 0 for any.

    `captured`: its models can be captured until it is restarted with another maximum batch size.
    """

    def __init__(
        self,
        home: Path,
        repository: Path,
        fds: Mapping[str, int],
        *,
        port: int = 0,
        captured: bool = False,
    ) -> None:
        self._home = home
        self._fds = dict(fds)
        self._scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._log = self._scratch / "log"
        self._shared = self._scratch.name
        self._traces = self._scratch / "traces"
        # The Python inside Triton knows ASCII paths only, and a home may have another.
        self._backends = self._scratch / "backends"
        self._backends.symlink_to(home / "backends")
        self._captured = captured
        self._repository = repository
        first, self.metrics_port = free_ports(2)
        self.port = port or first
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, max_batch: int | None = None) -> None:
        """Start or restart it, with another maximum batch size if given, and wait until all models
        are loaded. Raises TritonError if it does not get there.
        """
        self.end()
        repository = repository_for(self._repository, max_batch, self._scratch / "models")
        shutil.rmtree(self._traces, ignore_errors=True)  # of processes that are gone
        if self._captured and max_batch is None:
            self._traces.mkdir()
            triton_capture.put_under_profiler(repository)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(repository),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                pass_fds=list(self._fds.values()),
            )
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            # A model that cannot be loaded ends the server, with the reason in its log.
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TritonError(self.last_words())
            time.sleep(0.05)

    def ended(self) -> bool:
        """Return True if its process is gone."""
        return self._process is None or self._process.poll() is not None

    def last_words(self) -> str:
        """Return why it is gone, from its log: the lines that name an error, else the last ones."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        errors = [
            _STAMP.sub("", line)
            for line in lines
            # A missing GPU is logged as an error, but it is none.
            if _STAMP.match(line) and not re.search("CUDA|Cuda|NVML", line)
        ]
        reasons = (errors or lines)[-LAST_LINES:] or ["it printed nothing"]
        return "\n".join(["tritonserver failed:", *reasons])

    def end(self) -> None:
        """End it with the processes of its models and their shared memory."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # Models outlive it briefly and would take the device's answers.
        for process in psutil.process_iter(["cmdline"]):
            if any(self._shared in word for word in process.info["cmdline"] or ()):
                process.kill()
        clear(self._scratch.parent, self._shared)

    def statistics(self) -> str:
        """Return Triton's statistics of its models since it was started, as text; empty if it does
        not answer.
        """
        statistics = self._read_statistics()
        return show_statistics(statistics) if statistics else ""

    def capture(self, seconds: float, trace: Path | None) -> None:
        """Capture all its models for `seconds`, and how long requests waited, to `trace`; without
        one, show them to nsys. Raises TritonError if a model does not answer.
        """
        before = self._read_statistics()
        try:
            traces = triton_capture.order(self._traces, seconds)
        except TimeoutError as error:
            raise TritonError(f"{error}\n{self.last_words()}") from error
        if trace is not None:
            triton_capture.merge(traces, [queue_note(before, self._read_statistics())], trace)

    def close(self) -> None:
        """End it and remove its files."""
        self.end()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _read_statistics(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/v2/models/stats", timeout=5
            ) as reply:
                return dict(json.load(reply))
        except (urllib.error.URLError, OSError, ValueError):
            return {}

    def _command(self, repository: Path) -> list[str]:
        program = next(
            self._home.glob("env/lib/python3*/site-packages/pytriton/tritonserver/bin/tritonserver")
        )
        here = "127.0.0.1"
        options = {
            "model-repository": repository,
            "backend-directory": self._backends,
            "http-address": here,
            "http-port": self.port,
            "metrics-address": here,
            "metrics-port": self.metrics_port,
            "allow-grpc": "false",
            "log-info": "false",
            "exit-timeout-secs": EXIT_S,
            "backend-config": f"python,shm-region-prefix-name={self._shared}",
        }
        return [
            str(program),
            "--disable-auto-complete-config",
            *(f"--{name}={value}" for name, value in options.items()),
        ]

    def _environment(self) -> dict[str, str]:
        manifest = json.loads((self._home / "manifest.json").read_text(encoding="utf-8"))
        libraries = next(self._home.glob("env/lib/python3*/site-packages/nvidia_pytriton.libs"))
        return {
            **os.environ,
            "PATH": f"{self._home}/env/bin:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "LD_LIBRARY_PATH": f"{libraries}:{Path(manifest['library']).parent}",
            "LAB_PYTHON": os.pathsep.join(filter(None, sys.path)),
            "LAB_TRACES": str(self._traces),
            **{name: str(fd) for name, fd in self._fds.items()},
        }

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/v2/health/ready", timeout=1
            ) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def clear(folder: Path, name: str = f"{_PREFIX}*") -> None:
    """Remove the shared memory of servers whose scratch folders, of that name, are in `folder`: a
    killed server leaves it behind.
    """
    for scratch in folder.glob(name):
        for region in _SHARED_MEMORY.glob(f"{scratch.name}*"):
            region.unlink(missing_ok=True)


def device_fds(socket_fd: int, arena_fd: int) -> dict[str, int]:
    """Return the descriptors of a device, by the names under which a model looks for them."""
    return {"LAB_SOCKET": socket_fd, "LAB_ARENA": arena_fd}


def show_statistics(statistics: dict[str, Any]) -> str:
    """Return text for a terminal: for each model its batches, the requests in each, and how long a
    request waited and ran.
    """
    lines = [
        "Triton's statistics for its models (/v2/models/stats):",
        "",
        "model     batches  requests each  queue ms  run ms",
    ]
    for model in statistics["model_stats"]:
        times, batches = model["inference_stats"], model["execution_count"]
        each = model["inference_count"] / batches if batches else 0.0
        queue_ms, run_ms = (_mean_ms(times[name]) for name in ("queue", "compute_infer"))
        lines.append(
            f"{model['name']:<9} {batches:>7}  {each:>13.1f}  {queue_ms:>8.1f}  {run_ms:>6.1f}"
        )
    return "\n".join(lines) + "\n"


def queue_note(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return how long a request waited in each model's queue between two readings of the
    statistics, as a sentence.
    """
    earlier = {
        model["name"]: model["inference_stats"]["queue"] for model in before.get("model_stats", [])
    }
    waits = []
    for model in after.get("model_stats", []):
        queue, since = model["inference_stats"]["queue"], earlier.get(model["name"], {})
        waited = {key: queue[key] - since.get(key, 0) for key in ("ns", "count")}
        if waited["count"]:
            waits.append(f"{_mean_ms(waited):.1f} ms in the queue of {model['name']}")
    if not waits:
        return "Triton's statistics: no request waited in a queue."
    return f"Triton's statistics: on average a request waited {', '.join(waits)}."


def _mean_ms(time_: dict[str, int]) -> float:
    return time_["ns"] / time_["count"] / 1e6 if time_["count"] else 0.0


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1."""
    # All are held until the last is drawn, or the same one could come twice.
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
