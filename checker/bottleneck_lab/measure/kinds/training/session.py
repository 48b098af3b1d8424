"""The verifier's end of a training worker: one call is one training, on the data of a seed."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.measure.channel.session import CallSession, Role, limits_of
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.training import TRAIN, TRAIN_ON_HOST, TrainingSettings
from bottleneck_lab.measure.kinds.training.judging import Reports
from bottleneck_lab.measure.virtual_gpu.books import Figures
from bottleneck_lab.measure.virtual_gpu.owner import EngineOwner, engine_processes
from bottleneck_lab.measure.virtual_gpu.spec import H200, GpuSpec

PROGRAM = "bottleneck_lab.measure.kinds.training.child"

Arrays = dict[str, NDArray[np.floating]]


class OwnFigures(msgspec.Struct, frozen=True):
    """A worker's own word on a training, which nothing checks. `start_s`: seconds until the first
    batch; `waits`: calls that waited for the GPU; memory in bytes, `kept_bytes` after the training;
    `work`: floating-point operations of products, and bytes read and written, `host_work` those of
    them that the host did.
    """

    start_s: float = 0.0
    waits: float = math.nan
    step_bytes: list[float] = []
    peak_bytes: float = math.nan
    kept_bytes: float = 0.0
    work: tuple[float, float] = (math.nan, math.nan)
    host_work: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True)
class Training:
    """The outcome of one training: reports, parameters and, on the virtual GPU, the engine's
    figures.

    `seconds` is the whole call on the verifier's clock.
    """

    reports: Reports
    parameters: Arrays
    figures: Figures | None = None
    seconds: float = 0.0
    own_figures: OwnFigures = field(default_factory=OwnFigures)

    def engine_figures(self) -> Figures:
        """Return the engine's figures of a training on the virtual GPU."""
        assert self.figures is not None
        return self.figures


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker's answer beside the parameters' arrays, which come in the order of `names`."""

    reports: Reports
    names: list[str]
    own_figures: OwnFigures


@contextmanager
def training_session(
    context: Context[TrainingSettings],
    role: Role,
    folder: Path,
    engine: EngineOwner | None = None,
    *,
    wait: bool = True,
) -> Iterator[CallSession]:
    """Start a worker that trains with the script in `folder`, on `engine` if one is given. Without
    `wait` it may still be loading.
    """
    fds = [engine.program.fileno()] if engine else []
    options = [part for fd in fds for part in ("--engine", str(fd))]
    limits, entry = limits_of(context.settings), context.lab.spec.entry
    with CallSession.start(
        context, role, folder, entry, limits, program=PROGRAM, options=options, fds=fds, wait=wait
    ) as session:
        yield session


def train_on_device(session: CallSession, seed: int, task: int = TRAIN) -> Training:
    """Have a worker on a real device do a task; only TRAIN has a time that may be used."""
    return collect_training(session, session.hand_over([seed, task]))


def collect_training(session: CallSession, began: float) -> Training:
    """Wait for the end of a training on a real device that was handed over at `began`."""
    seconds, (text, *arrays) = session.collect(began)
    report = _decode_report(session, text)
    # A worker that names other parameters than it sends has none: the comparison then says so.
    complete = len(report.names) == len(arrays)
    parameters = dict(zip(report.names, arrays, strict=True)) if complete else {}
    return Training(report.reports, parameters, None, seconds, report.own_figures)


def train_modelled(
    context: Context[TrainingSettings],
    role: Role,
    folder: Path,
    seeds: list[int],
) -> list[Training]:
    """Train on the virtual GPU, once for each seed. Raises the fault of whoever is to blame."""
    with (
        engine_processes(1) as (engine,),
        modelled_worker(context, role, folder, engine) as worker,
    ):
        return [worker.train(seed) for seed in seeds]


def train_both(
    context: Context[TrainingSettings], seeds: list[int]
) -> Generator[tuple[Training, Training]]:
    """Train the submission and the shipped script on the virtual GPU at the same time, once for
    each seed: no figure of either depends on how long it takes. Yields the pairs.

    After the first of a size, the shipped script trains on the host: its figures are known, and its
    results are the same there, in a quarter of the time. Raises the fault of whoever is to blame.
    """
    with (
        engine_processes(2) as (first, second),
        modelled_worker(context, "reference", context.pristine(), first) as reference,
        modelled_worker(context, "learner", context.submission, second) as learner,
    ):
        known: dict[bool, Figures | None] = {}
        for done, seed in enumerate(seeds):
            smaller = context.settings.smaller and done > 0
            count = f": {done} of {len(seeds)} pairs done" if len(seeds) > 1 else ""
            context.progress(
                f"training with your script and the shipped one{count}",
                0.1 + 0.8 * done / len(seeds),
            )
            secret = context.rng.getrandbits(31)
            if smaller not in known:
                reference.begin(seed, secret, smaller=smaller)
            else:
                began = reference.session.hand_over([seed, TRAIN_ON_HOST, secret, int(smaller)])
            learner.begin(seed, secret, smaller=smaller)
            try:
                yours = learner.end()  # its limits are watched while it is waited for
            except LearnerFault as fault:
                if fault.reason == "wrong output":
                    refuse_chance(context, fault, seed, secret, smaller=smaller)
                raise
            if smaller not in known:
                theirs = reference.end()
                known[smaller] = theirs.figures
            else:
                on_host = collect_training(reference.session, began)
                theirs = replace(on_host, figures=known[smaller])
            yield yours, theirs


def refuse_chance(
    context: Context[TrainingSettings],
    fault: LearnerFault,
    seed: int,
    secret: int,
    *,
    smaller: bool = False,
) -> None:
    """Raise VerifierFault if the training of the submission that ended with this fault goes right
    when the same is made again: its clock is modelled, and its data and its start are the same.
    """
    with (
        engine_processes(1) as (engine,),
        modelled_worker(context, "learner", context.submission, engine) as worker,
        suppress(LearnerFault),
    ):
        worker.begin(seed, secret, smaller=smaller)
        worker.end()
        raise VerifierFault(
            f"A training went wrong once, and right when the same was made again: {fault.detail}",
            "Check again. If your script leaves nothing to chance, report it with this verdict.",
        )


@dataclass
class ModelledWorker:
    """A worker on a virtual GPU of its own."""

    engine: EngineOwner
    session: CallSession
    gpu: GpuSpec
    _ready: bool = False
    _began: float = 0.0

    def train(self, seed: int) -> Training:
        """Train on the data of a seed."""
        self.begin(seed)
        return self.end()

    def begin(self, seed: int, secret: int = 0, *, smaller: bool = False) -> None:
        """Begin a training on the data of a seed, the first when the code is loaded. With a secret,
        the device starts from parameters that only it knows. `smaller`: with the recipe's small
        size.
        """
        if not self._ready:
            self.session.wait_ready()
            self._ready = True
        self.engine.begin(self.gpu, secret=secret)
        self.engine.wait_started()
        self._began = self.session.hand_over([seed, TRAIN, 0, int(smaller)])

    def end(self) -> Training:
        """Return the training that was begun."""
        seconds, (text, *_) = self.session.collect(self._began)
        # The parameters come from the engine, not from the worker: no value of them passes
        # through the learner's process.
        books = self.engine.end()
        parameters = {name: kept.array() for name, kept in books.kept.items()}
        return Training(
            _decode_report(self.session, text).reports, parameters, books.figures, seconds
        )


@contextmanager
def modelled_worker(
    context: Context[TrainingSettings],
    role: Role,
    folder: Path,
    engine: EngineOwner,
    gpu: GpuSpec | None = None,
) -> Iterator[ModelledWorker]:
    """Start a worker on this engine; it loads its code while something else goes on. `gpu`: another
    than the lab's, for benchmarks.
    """
    with training_session(context, role, folder, engine, wait=False) as session:
        yield ModelledWorker(engine, session, gpu or H200.at_scale(context.settings.scale))


def _decode_report(session: CallSession, text: Any) -> WorkerReport:
    """Decode the text of an answer. Raises the fault of a worker that sent something else."""
    try:
        return msgspec.json.decode(str(text), type=WorkerReport)
    except msgspec.MsgspecError as error:
        raise session.fault(
            "tampered", f"training: the reports cannot be read ({error})."
        ) from None
