"""The same lab on this machine's own GPUs: torchrun and NCCL, timed by the verifier's clock.
Written without GPUs at hand and never run on any.

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

from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.criteria import grade_check, grade_value
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.gpu import cuda_devices
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, load_costs
from bottleneck_lab.measure.kinds.data_parallel.figures import TOLERANCE
from bottleneck_lab.measure.rehearsal import rehearsing
from bottleneck_lab.measure.sandbox.children import OnLine
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.sandbox.limits import Limits
from bottleneck_lab.measure.sandbox.process import Worker, python_module
from bottleneck_lab.measure.sandbox.visible import Paths
from bottleneck_lab.measure.settings import Settings

LIMITS = Limits(total_s=900.0, memory_bytes=64 << 30, processes=512)
STEPS, WARMUP = 30, 10
START_S, STEP_S = 300.0, 60.0
"""Until all ranks have trained the warm-up; for each step after it."""
SECRET_BYTES = 7  # with a rank's number added still an int64
DONE = b"\x01"
_DIGEST_BYTES = hashlib.sha256().digest_size
_POLL_S = 0.5


class CudaJob(msgspec.Struct, frozen=True):
    """What a launched job is told. `samples`, each of `shape`: of a micro-batch; `channel` is the
    path of the verifier's socket, which hands out what is trained after `warmup` steps, `moved` the
    file for what training changed.
    """

    world: int
    backend: str
    folder: str
    entry: str
    channel: str
    moved: str
    seed: int
    warmup: int
    steps: int
    samples: int
    shape: tuple[int, ...]
    classes: int
    tokens: int
    micro_batches: int
    trace: str = ""


class CudaRun(msgspec.Struct, frozen=True):
    """Seconds a step by the verifier's clock (mean after the warm-up), and how far rank 0's
    parameters moved with whether all ranks agreed.
    """

    world: int
    step_s: float
    parameters: np.ndarray[Any, Any]
    ranks_agree: bool


def gpu_count() -> int:
    """CUDA devices of this machine."""
    return len(cuda_devices())


def measure_cuda(context: Context[Settings]) -> Measured:
    """Learner's and shipped script on half of the GPUs (at most four) and on all (at most eight).
    Raises MachineError below two GPUs.
    """
    many = 1 << (min(gpu_count(), 8).bit_length() - 1) if gpu_count() else 0
    if many < 2:
        raise MachineError(
            "This lab on cuda needs at least two GPUs in this machine.",
            "Use the emulated ones: `lab check --device virtual`.",
        )
    costs, seed = load_costs(context.lab.path), context.rng.getrandbits(8 * SECRET_BYTES)
    shape = job_shape(costs, WARMUP, STEPS)
    theirs, shipped = {}, {}
    for world in (many, many // 2):
        theirs[world] = _blamed(context, context.submission, "learner", costs, world, seed, shape)
        shipped[world] = _blamed(
            context, context.pristine(), "reference", costs, world, seed, shape
        )
    return _conclude(context, theirs, shipped, many)


def job_shape(costs: CostTable, warmup: int, steps: int) -> dict[str, Any]:
    """How much is trained: on a device that is not there as little as shows that it can be."""
    if rehearsing():
        return {"samples": 2, "shape": costs.stand_in.shape, "warmup": 2, "steps": 7}
    return {"samples": costs.samples, "shape": costs.shape, "warmup": warmup, "steps": steps}


def _conclude(
    context: Context[Settings], theirs: dict[int, CudaRun], shipped: dict[int, CudaRun], many: int
) -> Measured:
    few = many // 2
    problem = next(
        (found for world in (many, few) if (found := differs(theirs[world], shipped[world]))), None
    )
    scaling = 2 * min(theirs[few].step_s, shipped[few].step_s) / theirs[many].step_s
    results = [grade_check(context.required("same-training"), problem, many + few, "ranks")]
    if problem is None:
        results.append(grade_value(context.required("scaling"), scaling, STEPS - WARMUP, "steps"))
    figures = {f"step_s_{world}": run.step_s for world, run in theirs.items()}
    return Measured(
        results,
        details=figures
        | {f"shipped_step_s_{world}": run.step_s for world, run in shipped.items()}
        | {"scaling": scaling},
        notes=[
            f"{few} and {many} GPUs of this machine, NCCL, wall clock of the verifier, mean of"
            f" {STEPS - WARMUP} steps"
        ],
        speedup=shipped[many].step_s / theirs[many].step_s if problem is None else None,
    )


def differs(run: CudaRun, reference: CudaRun) -> str | None:
    """Why this training is not the reference's, or None. GPU kernels differ in their last bits, so
    equality is up to the tolerance.
    """
    if not run.ranks_agree:
        return f"The {run.world} ranks end with different parameters."
    moved = float(np.linalg.norm(reference.parameters))
    apart = float(np.linalg.norm(run.parameters - reference.parameters)) / moved if moved else 0.0
    return (
        None
        if apart <= TOLERANCE
        else (
            f"On {run.world} ranks the parameters differ from the reference's by {apart:.1%} of how"
            f" far training moved them; {TOLERANCE:.0%} is allowed."
        )
    )


def _blamed(
    context: Context[Settings],
    folder: Path,
    role: str,
    costs: CostTable,
    world: int,
    seed: int,
    shape: dict[str, Any],
) -> CudaRun:
    context.progress(
        f"{'your' if role == 'learner' else 'the shipped'} script on {world} GPUs", 0.5
    )
    try:
        return launch(
            context,
            folder,
            costs,
            world,
            seed,
            "nccl",
            shape,
            scratch=context.janitor.folder / f"{role}-{world}",
        )
    except LearnerFault as fault:
        if role == "learner":
            raise
        raise VerifierFault(f"The shipped script failed on {world} GPUs: {fault.detail}") from fault


def launch(
    context: Context[Settings],
    folder: Path,
    costs: CostTable,
    world: int,
    seed: int,
    backend: str,
    shape: dict[str, Any],
    *,
    scratch: Path,
    trace: str = "",
) -> CudaRun:
    """Runs the script under torchrun on `world` ranks, timed here, by this process' clock. Raises
    LearnerFault.

    What is trained after the warm-up follows from `seed`, which the ranks get when the clock
    starts. It stops at a digest of all that training has changed, which nobody can tell who has not
    trained: no step that a rank only reports counts.
    """
    scratch.mkdir(parents=True)
    job = CudaJob(
        world=world,
        backend=backend,
        folder=str(folder),
        entry=context.lab.spec.entry,
        channel=str(scratch / "channel"),
        moved=str(scratch / "moved"),
        seed=world,
        classes=costs.classes,
        tokens=costs.tokens,
        micro_batches=costs.micro_batches,
        trace=trace,
        **shape,
    )
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(job.channel)
        listener.listen(job.world)
        worker = _start(job, Paths(scratch, [folder]), context.janitor)
        stack.callback(worker.end)
        context.isolation.update(worker.isolation)
        seconds, digest = _time(stack, listener, job, seed, worker)
        agree, moved = _moved(Path(job.moved), costs.elements, digest)
        return CudaRun(world, seconds / (job.steps - job.warmup), moved, agree)


def _start(job: CudaJob, paths: Paths, janitor: Janitor) -> Worker:
    """torchrun on this machine, with one process per rank."""
    launcher = python_module(
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={job.world}",
        "--master-addr=127.0.0.1",
        "--local-addr=127.0.0.1",
        f"--master-port={_free_port()}",
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


def _moved(path: Path, elements: int, digest: bytes) -> tuple[bool, np.ndarray[Any, Any]]:
    """Whether all ranks ended alike, and how far training moved rank 0's parameters. Raises
    LearnerFault when the job left something else.
    """
    size = 4 * (elements + 1)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            content = (
                file.read(size) if stat.S_ISREG(status.st_mode) and status.st_size == size else b""
            )
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


def _free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _time(
    stack: contextlib.ExitStack, listener: socket.socket, job: CudaJob, seed: int, worker: Worker
) -> tuple[float, bytes]:
    """Seconds from handing out the seed to all ranks until rank 0 told the digest of its
    parameters, and the digest. Raises LearnerFault.
    """
    end = time.monotonic() + START_S
    connections = [stack.enter_context(_accept(listener, worker, end)) for _ in range(job.world)]
    ranks = {_receive(connection, 1, worker, end)[0]: connection for connection in connections}
    if set(ranks) != set(range(job.world)):
        raise LearnerFault("tampered", "A rank connected twice.")
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):  # what came of a rank that is gone is told below
        for connection in connections:
            connection.sendall(seed.to_bytes(SECRET_BYTES, "little"))
    end = began + STEP_S * (job.steps - job.warmup)
    digest = _receive(ranks[0], _DIGEST_BYTES, worker, end)
    seconds = time.monotonic() - began
    if _receive(ranks[0], len(DONE), worker, end + START_S) != DONE:
        raise LearnerFault("tampered", "A rank sent an unexpected message.")
    return seconds, digest


def _accept(listener: socket.socket, worker: Worker, end: float) -> socket.socket:
    """The next rank's connection, unless the job ends before."""
    while not _readable(listener):
        _look_after(worker, end)
    return listener.accept()[0]


def _receive(connection: socket.socket, count: int, worker: Worker, end: float) -> bytes:
    """So many bytes of a rank, unless the job ends before."""
    got = b""
    while len(got) < count:
        if not _readable(connection):
            _look_after(worker, end)
            continue
        with contextlib.suppress(ConnectionError):
            if more := connection.recv(count - len(got)):
                got += more
                continue
        raise LearnerFault("crashed", f"A rank ended before the last step. {_last_words(worker)}")
    return got


def _readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], _POLL_S)[0])


def _look_after(worker: Worker, end: float) -> None:
    """Raises LearnerFault when the job has ended, holds more than it may, or its time is up."""
    if worker.process.poll() is not None:
        raise LearnerFault("crashed", f"The job ended before the last step. {_last_words(worker)}")
    if excess := worker.watch.excess():
        raise LearnerFault(excess.reason, f"The job {excess.words}.")
    if time.monotonic() > end:
        raise LearnerFault("timed out", "The job did not finish in time.")


def _last_words(worker: Worker) -> str:
    """The line in which the first rank that failed said why."""
    said = re.search(
        r"^(?:\[[^]]*\]: ?)?(\w*(?:Error|Exception|Interrupt): .*)$",
        worker.log_tail(),
        re.MULTILINE,
    )
    return said.group(1) if said else ""


def profile_cuda(context: Context[Settings], trace: Path, on_line: OnLine) -> int:
    """The script on all GPUs under torch.profiler, one trace per rank. Returns 1 when it failed."""
    costs, world = load_costs(context.lab.path), min(gpu_count(), 8)
    scratch = context.janitor.folder / "profile"
    shape = job_shape(costs, 2, 12)
    try:
        launch(
            context,
            context.submission,
            costs,
            world,
            context.rng.getrandbits(8 * SECRET_BYTES),
            "nccl",
            shape,
            scratch=scratch,
            trace="trace",
        )
    except LearnerFault as fault:
        on_line(f"{fault.detail}\n")
        return 1
    name = trace.name.removesuffix(".json.gz")
    for rank in range(world):
        target = trace if rank == 0 else trace.with_name(f"{name}-rank{rank}.json.gz")
        target.write_bytes((scratch / f"trace-rank{rank}.json.gz").read_bytes())
        on_line(f"{target.name}\n")
    return 0
