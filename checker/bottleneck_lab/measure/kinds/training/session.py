"""The verifier's end of a training worker: one call is one training, on the data of a seed."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.measure.channel.messages import Value
from bottleneck_lab.measure.channel.session import CallSession, Role, limits_of
from bottleneck_lab.measure.channel.trusted import TrustedSession
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.training import TRAIN, TRAIN_ON_HOST, TrainingSettings
from bottleneck_lab.measure.kinds.training.judging import Reports
from bottleneck_lab.measure.sandbox.visible import Paths, worker_environment
from bottleneck_lab.measure.virtual_gpu.books import Figures
from bottleneck_lab.measure.virtual_gpu.owner import Companion, EngineOwner, engine_processes
from bottleneck_lab.measure.virtual_gpu.spec import H200, GpuSpec
from bottleneck_lab.programs import as_options

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


class Run(NamedTuple):
    """One run of a script: on the data of a seed, with a secret from parameters that only the
    device knows, of the recipe's small size if `smaller`.
    """

    seed: int
    secret: int = 0
    smaller: bool = False

    def as_call(self, task: int) -> list[Value]:
        """Return the inputs of a worker's call. Only a training on the host is told the secret."""
        secret = self.secret if task == TRAIN_ON_HOST else 0
        return [self.seed, task, secret, int(self.smaller)]


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


def collect_training(session: CallSession | TrustedSession, began: float) -> Training:
    """Wait for the end of a training on a real device that was handed over at `began`."""
    seconds, (text, *arrays) = session.collect(began)
    report = _decode_report(session, text)
    # A worker that names other parameters than it sends has none: the comparison then says so.
    complete = len(report.names) == len(arrays)
    parameters = dict(zip(report.names, arrays, strict=True)) if complete else {}
    return Training(report.reports, parameters, None, seconds, report.own_figures)


def train_trusted(context: Context[TrainingSettings], folder: Path, seed: int) -> Training:
    """Train with the trusted script in `folder` on the virtual GPU. Raises VerifierFault."""
    with _trusted_worker(context, folder, engines=1) as (worker, _):
        return worker.train(seed)


def train_both(
    context: Context[TrainingSettings], seeds: list[int]
) -> Generator[tuple[Training, Training]]:
    """Train the submission and the shipped script on the virtual GPU at the same time, once for
    each seed: no figure of either depends on how long it takes. Yields the pairs.

    After the first, the shipped script trains on the host: its results are the same there, in a
    quarter of the time, and it has no figures. Raises the fault of whoever is to blame.
    """
    runs = [
        Run(seed, context.rng.getrandbits(31), smaller=context.settings.smaller and number > 0)
        for number, seed in enumerate(seeds)
    ]
    with (
        _trusted_worker(context, context.pristine(), engines=2) as (reference, [engine]),
        modelled_worker(context, "learner", context.submission, engine) as learner,
    ):
        reference.begin(runs[0])
        learner.begin(runs[0])
        for done, run in enumerate(runs):
            count = f": {done} of {len(runs)} pairs done" if len(runs) > 1 else ""
            context.progress(
                f"training with your script and the shipped one{count}",
                0.1 + 0.8 * done / len(runs),
            )
            if done:
                began = reference.session.hand_over(run.as_call(TRAIN_ON_HOST))
            try:
                yours = learner.end()  # its limits are watched while it is waited for
            except LearnerFault as fault:
                if fault.reason == "wrong output":
                    refuse_chance(context, fault, run)
                raise
            # The first run takes the shipped script longer: the submission goes on meanwhile.
            if done + 1 < len(runs):
                learner.begin(runs[done + 1])
            theirs = collect_training(reference.session, began) if done else reference.end()
            yield yours, theirs


@contextmanager
def _trusted_worker(
    context: Context[TrainingSettings], folder: Path, *, engines: int
) -> Iterator[tuple[ModelledWorker, list[EngineOwner]]]:
    """Start so many engines, and with them, since all of them need PyTorch, the trusted script in
    `folder` on the first. Yields that and the other engines.
    """
    settings = context.settings
    arena = Arena.create(settings.arena_mb << 20)
    ours, theirs = Channel.pair()
    own = {"--socket": theirs.fileno(), "--arena": arena.fd}
    entry = folder / context.lab.spec.entry
    companion = Companion(
        PROGRAM,
        as_options({"--entry": entry, **own, "--device": context.device}),
        [*own.values()],
        worker_environment(Paths(folder), settings.threads),
        folder,
    )
    with closing(arena), closing(ours), engine_processes(engines, companion) as (first, *others):
        theirs.close()
        session = TrustedSession(Channel(ours, arena), limits_of(settings), context.clock)
        yield ModelledWorker(first, session, H200.at_scale(settings.scale)), others


def refuse_chance(context: Context[TrainingSettings], fault: LearnerFault, run: Run) -> None:
    """Raise VerifierFault if the training of the submission that ended with this fault goes right
    when the same is made again: its clock is modelled, and its data and its start are the same.
    """
    with (
        engine_processes(1) as (engine,),
        modelled_worker(context, "learner", context.submission, engine) as worker,
        suppress(LearnerFault),
    ):
        worker.begin(run)
        worker.end()
        raise VerifierFault(
            f"A training went wrong once, and right when the same was made again: {fault.detail}",
            "Check again. If your script leaves nothing to chance, report it with this verdict.",
        )


@dataclass
class ModelledWorker:
    """A worker on a virtual GPU of its own."""

    engine: EngineOwner
    session: CallSession | TrustedSession
    gpu: GpuSpec
    _ready: bool = False
    _began: float = 0.0

    def train(self, seed: int) -> Training:
        """Train on the data of a seed."""
        self.begin(Run(seed))
        return self.end()

    def begin(self, run: Run) -> None:
        """Begin a training, the first when the code is loaded."""
        if not self._ready:
            self.session.wait_ready()
            self._ready = True
        self.engine.begin(self.gpu, secret=run.secret)
        self.engine.wait_started()
        self._began = self.session.hand_over(run.as_call(TRAIN))

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


def _decode_report(session: CallSession | TrustedSession, text: Any) -> WorkerReport:
    """Decode the text of an answer. Raises the fault of a worker that sent something else."""
    try:
        return msgspec.json.decode(str(text), type=WorkerReport)
    except msgspec.MsgspecError as error:
        raise session.fault(
            "tampered", f"training: the reports cannot be read ({error})."
        ) from None
