"""The verifier's end of a job on this machine's own GPUs: torchrun and NCCL, timed by the
verifier's clock.

With gloo in NCCL's place it runs on the CPU, which tests how it works and says nothing of its
speed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import socket
import stat
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.measure.channel.session import failed_to_start
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.gpu import cuda_devices
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable
from bottleneck_lab.measure.kinds.data_parallel.protocol import DONE, SECRET_BYTES, CudaJob
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.sandbox.limits import Limits
from bottleneck_lab.measure.sandbox.process import Worker, python_module
from bottleneck_lab.measure.sandbox.visible import Paths
from bottleneck_lab.measure.settings import Settings

LIMITS = Limits(total_s=900.0, memory_bytes=64 << 30, processes=512)
START_S, STEP_S = 300.0, 60.0
"""Longest time until all ranks have trained the warm-up, and for each step after it."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_POLL_S = 0.5


class CudaRun(msgspec.Struct, frozen=True):
    """The outcome of a job: seconds a step by the verifier's clock (mean after the warm-up), and by
    how much rank 0's parameters moved. `ranks_agree`: those of all ranks moved alike.
    """

    world: int
    step_s: float
    parameters: np.ndarray[Any, Any]
    ranks_agree: bool


def gpu_count() -> int:
    """Return the number of CUDA devices of this machine."""
    return len(cuda_devices())


def launch(
    context: Context[Settings],
    folder: Path,
    costs: CostTable,
    world: int,
    seed: int,
    *,
    warmup: int,
    steps: int,
    scratch: Path,
    backend: str = "nccl",
    trace: str = "",
) -> CudaRun:
    """Run the script in `folder` under torchrun on `world` ranks for `steps` steps, of which those
    after `warmup` are timed by this process's clock. Raises LearnerFault.
    """
    # The batches after the warm-up follow from `seed`, which the ranks get when the clock starts.
    # It stops at a digest of all that training has changed, which nobody can know who has not
    # trained: no step that a rank only reports counts.
    scratch.mkdir(parents=True)
    job = CudaJob(
        world=world,
        backend=backend,
        folder=str(folder),
        entry=context.lab.spec.entry,
        channel=str(scratch / "channel"),
        moved=str(scratch / "moved"),
        seed=world,
        warmup=warmup,
        steps=steps,
        samples=costs.samples,
        shape=costs.shape,
        classes=costs.classes,
        tokens=costs.tokens,
        micro_batches=costs.micro_batches,
        trace=trace,
    )
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(job.channel)
        listener.listen(job.world)
        worker = _start(job, Paths(scratch, [folder]), context.janitor)
        stack.callback(worker.end)
        context.isolation.update(worker.isolation)
        seconds, digest = _time(stack, listener, job, seed, worker)
        agree, moved = _read_moved(Path(job.moved), costs.elements, digest)
        return CudaRun(world, seconds / (job.steps - job.warmup), moved, agree)


def _start(job: CudaJob, paths: Paths, janitor: Janitor) -> Worker:
    """Start torchrun on this machine, with one process per rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = int(probe.getsockname()[1])
    launcher = python_module(
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={job.world}",
        "--master-addr=127.0.0.1",
        "--local-addr=127.0.0.1",
        f"--master-port={free_port}",
        "-m",
        "bottleneck_lab.measure.kinds.data_parallel.child_gpu",
        msgspec.json.encode(job).decode(),
    )
    return Worker(
        launcher,
        paths,
        LIMITS,
        pass_fds=[],
        cores=None,
        threads=1,
        gpu=job.backend == "nccl",
        janitor=janitor,
        network=True,
    )


def _read_moved(path: Path, elements: int, digest: bytes) -> tuple[bool, np.ndarray[Any, Any]]:
    """Read the file that rank 0 leaves. Returns True if all ranks ended alike, and by how much
    training moved rank 0's parameters. Raises LearnerFault when the job left something else.
    """
    size, content = 4 * (elements + 1), b""
    try:
        # The file is the learner's: it may be a link, a pipe, or without an end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size == size:
                content = file.read(size)
    except OSError as error:
        raise LearnerFault(
            "wrong output", f"The job left no parameters: {error.strerror}."
        ) from error
    if len(content) != size:
        raise LearnerFault(
            "wrong output", f"The job did not leave the model's {elements} parameters."
        )
    values = np.frombuffer(content, np.float32)
    if hashlib.sha256(values[1:].tobytes()).digest() != digest:
        raise LearnerFault("tampered", "The job's parameters changed after the clock stopped.")
    return bool(values[0] == 1.0), values[1:]


def _time(
    stack: contextlib.ExitStack, listener: socket.socket, job: CudaJob, seed: int, worker: Worker
) -> tuple[float, bytes]:
    """Return seconds from handing out the seed to all ranks until rank 0 sent the digest of its
    parameters, and the digest. Raises LearnerFault, and VerifierFault if no rank came to load the
    script.
    """
    end = time.monotonic() + START_S
    connections: list[socket.socket] = []
    for _ in range(job.world):
        while not _readable(listener):
            try:
                _look_after(worker, end)
            except LearnerFault as fault:
                if not connections:  # a rank connects before it loads the script
                    raise failed_to_start(fault.detail) from None
                raise
        connections.append(stack.enter_context(listener.accept()[0]))
    ranks = {_receive(connection, 1, worker, end)[0]: connection for connection in connections}
    if set(ranks) != set(range(job.world)):
        raise LearnerFault("tampered", "A rank connected twice.")
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):  # a rank that is gone is blamed below
        for connection in connections:
            connection.sendall(seed.to_bytes(SECRET_BYTES, "little"))
    end = began + STEP_S * (job.steps - job.warmup)
    digest = _receive(ranks[0], _DIGEST_BYTES, worker, end)
    seconds = time.monotonic() - began
    if _receive(ranks[0], len(DONE), worker, end + START_S) != DONE:
        raise LearnerFault("tampered", "A rank sent an unexpected message.")
    return seconds, digest


def _receive(connection: socket.socket, count: int, worker: Worker, end: float) -> bytes:
    """Receive `count` bytes of a rank. Raises LearnerFault if the job ends before."""
    received = b""
    while len(received) < count:
        if not _readable(connection):
            _look_after(worker, end)
            continue
        with contextlib.suppress(ConnectionError):
            if more := connection.recv(count - len(received)):
                received += more
                continue
        raise LearnerFault("crashed", f"A rank ended before the last step. {_last_words(worker)}")
    return received


def _readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], _POLL_S)[0])


def _look_after(worker: Worker, end: float) -> None:
    """Raise LearnerFault when the job has ended, holds more than it may, or its time is up."""
    if worker.process.poll() is not None:
        raise LearnerFault("crashed", f"The job ended before the last step. {_last_words(worker)}")
    if excess := worker.watch.excess():
        raise LearnerFault(excess.reason, f"The job {excess.words}.")
    if time.monotonic() > end:
        raise LearnerFault("timed out", "The job did not finish in time.")


def _last_words(worker: Worker) -> str:
    """Return the line of the log in which the first rank that failed says why; empty if none."""
    error = re.search(
        r"^(?:\[[^]]*\]: ?)?(\w*(?:Error|Exception|Interrupt): .*)$",
        worker.log_tail(),
        re.MULTILINE,
    )
    return error.group(1) if error else ""
