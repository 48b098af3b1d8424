"""The `feed` kind: how well a training script keeps a device fed.

The script's batches go to a device process that the verifier owns. Useful utilisation is the device time that the checked work needs, over the wall time on the
verifier's clock. What to train is handed out epoch by epoch, so nothing can be prepared before the clock runs; the pixels of rows drawn in secret are compared
with the reference transform afterwards.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import psutil

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import (
    Conditions,
    grade_check,
    grade_decision,
    grade_value,
    not_held_against,
    sequential_test,
)
from bottleneck_lab.grading.sequential import BLOCKS, Decision, State
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.accelerator import BYTES_PER_IMAGE, SLOTS
from bottleneck_lab.measure.accelerators import A100
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.device import MEAN, STD
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.machine import LoadMeter, loading_cores, own_cpu_s
from bottleneck_lab.measure.process import Limits, Worker
from bottleneck_lab.measure.session import CallSession, Session, start_worker
from bottleneck_lab.measure.wire import Arena, Channel, Kind, WireError

KEPT_ROWS = 3
"""Rows of each batch whose pixels are checked: a script that spoils one image in twenty escapes the 96 of an epoch once in 130 times."""
BATCHES_PER_BLOCK = 3
EPOCH_BATCHES = 32
WARM_UP_BATCHES = 4
MAX_EPOCHS = 3
CALIBRATIONS = 3
CALIBRATION_IMAGES = 16
MAX_CORES_SHARE = 1.1
"""CPU time a second that the script may seem to use over its cores: it is counted in hundredths of a second where there is no control group."""


@dataclass(frozen=True)
class Step:
    """One training step as the device saw it, in ns of the monotonic clock."""

    arrived_ns: int
    started_ns: int
    ended_ns: int
    labels: np.ndarray[Any, Any]
    kept: np.ndarray[Any, Any]


@dataclass
class Assignment:
    """An epoch that was handed out: what had to be trained, which rows were kept, and when."""

    number: int
    seed: int
    order: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    given_ns: int

    @property
    def batches(self) -> int:
        return len(self.rows)


@dataclass
class Run:
    """All that was handed out and all that came back. The first assignment is the warm-up and is never timed."""

    batch: int
    assignments: list[Assignment] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def timed(self) -> list[Step]:
        """The steps after the warm-up."""
        return self.steps[self.assignments[0].batches :] if self.assignments else []

    def began_ns(self) -> int:
        """When the first timed epoch was handed out."""
        return self.assignments[1].given_ns

    def block_ends_ns(self) -> list[int]:
        """The start of the clock and the end of every whole block."""
        ends = [step.ended_ns for step in self.timed()]
        return [self.began_ns(), *ends[BATCHES_PER_BLOCK - 1 :: BATCHES_PER_BLOCK]]

    def utilisation(self, step_s: float) -> list[float]:
        """Useful utilisation (0–1) of each block: device time needed for its batches over wall time."""
        ends = self.block_ends_ns()
        return [BATCHES_PER_BLOCK * step_s * 1e9 / (end - begin) for begin, end in pairwise(ends)]

    def idle(self) -> list[float]:
        """Share (0–1) of each block's wall time in which the device had nothing to do."""
        ends, steps = self.block_ends_ns(), self.timed()
        blocks = [
            steps[at : at + BATCHES_PER_BLOCK]
            for at in range(0, BATCHES_PER_BLOCK * (len(ends) - 1), BATCHES_PER_BLOCK)
        ]
        return [
            max(0.0, 1 - sum(step.ended_ns - step.started_ns for step in block) / (end - begin))
            for block, begin, end in zip(blocks, ends, ends[1:], strict=False)
        ]

    def images_per_s(self) -> float:
        """Images trained a second over the whole timed part, epoch starts included."""
        steps = self.timed()
        return sum(len(step.labels) for step in steps) * 1e9 / (steps[-1].ended_ns - self.began_ns())


class FeedSession(Session):
    """The learner's training script at one end, the verifier's device process in the middle."""

    def __init__(
        self, worker: Worker, channel: Channel, device: subprocess.Popen[bytes], step_s: float, end: Callable[[], None]
    ) -> None:
        super().__init__("learner", worker, channel)
        self.device = device
        self.step_s = step_s
        self._end_device = end

    @classmethod
    def start(cls, context: Context, limits: Limits, step_s: float, batch: int) -> FeedSession:
        """Starts the device, then the script, and waits until it is ready to train.

        The device is to take `step_s` for a step, a real one as nearly as it can; `session.step_s` is what it takes. A real one's is measured while there is
        no script yet, which could make it longer.
        """
        with contextlib.ExitStack() as stack:
            arena = Arena.create(SLOTS * batch * BYTES_PER_IMAGE)
            stack.callback(arena.close)
            device, channel, theirs = start_device(context, arena, step_s, batch)
            stack.callback(_end, device, context)
            stack.callback(channel.close)
            with theirs:
                step_s = device_step_s(channel, limits.start_s)
                worker = cls._start_script(context, limits, theirs, arena)
            session = cls(worker, channel, device, step_s, stack.pop_all().close)
        try:
            session.expect(Kind.READY, limits.start_s, "starting up and preparing")
        except BaseException:
            session.close()
            raise
        return session

    @staticmethod
    def _start_script(context: Context, limits: Limits, theirs: socket.socket, arena: Arena) -> Worker:
        arguments = [
            "train",
            "--entry",
            str(context.submission / context.lab.spec.entry),
            "--socket",
            str(theirs.fileno()),
        ]
        arguments += ["--arena", str(arena.fd), "--photos", str(context.data)]
        return start_worker(
            context, arguments, context.submission, limits, [theirs.fileno(), arena.fd], cores=loading_cores()
        )

    def receive(self, timeout_s: float, doing: str) -> tuple[Kind, list[Any]]:
        self.watch(doing)  # a script that never lets us wait is watched all the same
        kind, values = super().receive(timeout_s, doing)
        if kind is Kind.GONE or (kind is Kind.EPOCH and self.worker.process.poll() is not None):
            raise super().closed(doing)
        if kind is Kind.BROKEN:
            raise LearnerFault(
                "tampered", f"{doing}: the script sent the device what is no training step ({values[0]!s})."
            )
        return kind, values

    def fault(self, reason: str, detail: str) -> LearnerFault | VerifierFault:
        if reason == "timed out" and self._device_is_stopped():
            return VerifierFault(f"The device process was stopped. {detail}")
        return super().fault(reason, detail)

    def _device_is_stopped(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.device.pid).status() == psutil.STATUS_STOPPED)
        return True

    def closed(self, doing: str) -> Exception:
        try:
            status = self.device.wait(1)
        except subprocess.TimeoutExpired:  # it is the script that has ended
            return super().closed(doing)
        return VerifierFault(f"{doing}: the device process ended (status {status}).")

    def close(self) -> None:
        super().close()
        self._end_device()


def start_device(
    context: Context, arena: Arena, step_s: float, batch: int
) -> tuple[subprocess.Popen[bytes], Channel, socket.socket]:
    """The device process, the verifier's channel to it, and the socket that the script is to have."""
    ours, verifiers = Channel.pair()
    host, theirs = Channel.pair()
    engine = "cuda" if context.device == "cuda" else "emulated"
    command = [
        sys.executable,
        "-I",
        "-m",
        "bottleneck_lab.measure.device",
        "--engine",
        engine,
        "--step-s",
        repr(step_s),
        "--batch",
        str(batch),
    ]
    command += ["--host", str(host.fileno()), "--verifier", str(verifiers.fileno()), "--arena", str(arena.fd)]
    device = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=[host.fileno(), verifiers.fileno(), arena.fd],
        start_new_session=True,
    )
    context.janitor.follow(device.pid)
    host.close()
    verifiers.close()
    return device, Channel(ours), theirs


def _end(device: subprocess.Popen[bytes], context: Context) -> None:
    device.kill()
    device.wait()
    context.janitor.forget(device.pid)


def device_step_s(channel: Channel, timeout_s: float) -> float:
    """What the device says that a step takes, when it is there. Raises VerifierFault when it does not come."""
    try:
        _, values = channel.receive(timeout_s)
    except WireError as error:
        raise VerifierFault(f"The device process did not start: {error}") from None
    (step_s,) = values
    return float(step_s)


def measure(context: Context) -> Measured:
    """Runs the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    judge, limits = context.judge(), Limits(start_s=float(context.settings.get("start_s", 240)))
    batch = int(context.settings.get("batch", 16))
    context.progress("calibrating this machine with the shipped loader", 0.02)
    count = judge.count(context.data)
    before_s = calibrate(context, count)
    step_s = _share(context) * before_s * batch
    context.progress("starting your script", 0.1)
    with FeedSession.start(context, limits, step_s, batch) as session:
        meter = LoadMeter(lambda: own_cpu_s() + session.worker.cpu_s() + _cpu_of(session.device.pid))
        step_s, began_s, cpu_s = session.step_s, time.monotonic(), session.worker.cpu_s()
        run = train(session, context, judge, step_s, batch)
        refuse_more_cores((session.worker.cpu_s() - cpu_s) / (time.monotonic() - began_s))
        foreign_cores = meter.cores()
    context.progress("checking pixels", 0.9)
    problem, checked = check_pixels(run, judge, context)
    # A real device's step does not follow the host's speed.
    drift = 1.0 if context.device == "cuda" else calibrate(context, count) / before_s
    results = grade(context, run, step_s, drift, foreign_cores)
    results.insert(0, grade_check(context.required("right-pixels"), problem, checked, "images"))
    results.insert(0, grade_check(context.required("every-sample-once"), *check_samples(run, judge, context), "images"))
    return Measured(
        results,
        details=_details(run, step_s, before_s, drift),
        notes=_notes(context, step_s, before_s, batch),
        speedup=run.images_per_s() * before_s if run.timed() else None,
        conditions=Conditions(other_cores=foreign_cores, cores=os.cpu_count(), noise=abs(drift - 1)),
    )


def _share(context: Context) -> float:
    """How long a step of the device is to be, as a share of the shipped loader's time for a batch."""
    return float(context.settings.get("device_share", 0.4))


def refuse_more_cores(busy: float) -> None:
    """Raises LearnerFault where a script kept more cores busy than loading is pinned to: a process may move itself to others."""
    allowed = len(loading_cores())
    if busy > MAX_CORES_SHARE * allowed:
        raise LearnerFault(
            "tampered", f"Loading has {allowed} cores; the script moved to others and kept {busy:.1f} busy."
        )


def calibrate(context: Context, count: int) -> float:
    """CPU seconds that the shipped loader needs for an image in one of its workers, measured by the reference worker."""
    with CallSession.start(context, "reference", context.pristine(), "judge.py", Limits()) as session:
        return median(_loader_s(session, context, count) for _ in range(CALIBRATIONS))


def _loader_s(session: CallSession, context: Context, count: int) -> float:
    indices = np.array(context.rng.sample(range(count), min(count, CALIBRATION_IMAGES)))
    _, (seconds,) = session.call([str(context.data), indices, context.rng.getrandbits(31)])
    return float(seconds)


def train(session: FeedSession, context: Context, judge: ModuleType, step_s: float, batch: int) -> Run:
    """Hands out epochs until the utilisation is decided, and collects what the device saw."""
    run = Run(batch)
    test = sequential_test(context.required("useful-utilisation"), BLOCKS)
    silence_s, enough = float(context.settings.get("call_s", 60)), False
    while True:
        kind, values = session.receive(silence_s, f"training (step {len(run.steps) + 1})")
        if kind is Kind.RECORD:
            run.steps.append(Step(*values))
        elif kind is Kind.EPOCH:
            _expect_steps(run, int(values[0]))
            enough = len(run.assignments) > MAX_EPOCHS or (
                bool(run.timed()) and test.decide(run.utilisation(step_s)).state is not State.CONTINUE
            )
            give(session, run, context, judge.count(context.data), last=enough)
            context.progress("measuring", 0.2 + 0.2 * min(3, len(run.assignments) - 1))
        elif kind is Kind.DONE:
            _expect_steps(run, len(run.steps))
            if not enough:
                raise LearnerFault("wrong output", "training ended while there were more epochs to come.")
            return run


def _expect_steps(run: Run, steps: int) -> None:
    due = sum(assignment.batches for assignment in run.assignments)
    if steps != due:
        raise LearnerFault(
            "wrong output",
            f"{steps} batches were trained where {due} were due: every sample exactly once, in batches of {run.batch}.",
        )


def give(session: FeedSession, run: Run, context: Context, count: int, *, last: bool) -> None:
    """Hands out the next epoch, or none when the device has seen enough."""
    rng = np.random.default_rng(context.rng.getrandbits(128))
    sizes = [] if last else [WARM_UP_BATCHES] + [EPOCH_BATCHES] * MAX_EPOCHS
    epoch = plan_epoch(rng, run, count, sizes)
    session.channel.send(Kind.EPOCH, epoch.number, epoch.seed, epoch.order, epoch.rows)


def plan_epoch(rng: np.random.Generator, run: Run, count: int, sizes: list[int]) -> Assignment:
    """Draws the next epoch, of `sizes[n]` batches where the data has as many, and notes it; an empty one after the last."""
    number = len(run.assignments)
    batches = min(sizes[number], count // run.batch) if number < len(sizes) else 0
    order = rng.permutation(count)[: batches * run.batch].astype(np.int64)
    rows = rng.permuted(np.tile(np.arange(run.batch), (batches, 1)), axis=1)[:, :KEPT_ROWS].astype(np.int64)
    epoch = Assignment(number, int(rng.integers(1 << 31)), order, rows, time.monotonic_ns())
    if batches:
        run.assignments.append(epoch)
    return epoch


def check_samples(run: Run, judge: ModuleType, context: Context) -> tuple[str | None, int]:
    """What is wrong with the batches' sizes or labels, if anything, and how many images were looked at."""
    at = 0
    for assignment in run.assignments:
        for order in assignment.order.reshape(-1, run.batch):
            labels, at = run.steps[at].labels, at + 1
            want = [judge.label(context.data, int(index)) for index in order]
            if labels.tolist() != want:
                size = (
                    f"{len(labels)} images where {run.batch} were due"
                    if len(labels) != run.batch
                    else "labels that are not those of its samples"
                )
                return (
                    f"Batch {at} has {size}: every sample is to be trained exactly once, in the given order.",
                    at * run.batch,
                )
    return None, at * run.batch


def check_pixels(run: Run, judge: ModuleType, context: Context) -> tuple[str | None, int]:
    """What is wrong with the pixels that were kept, if anything, and how many images were compared."""
    steps, checked = iter(run.steps), 0
    for assignment in run.assignments:
        for order, rows, step in zip(assignment.order.reshape(-1, run.batch), assignment.rows, steps, strict=False):
            for row, got in zip(rows, step.kept, strict=False):
                checked += 1
                want = judge.reference_sample(context.data, int(order[row]), assignment.seed, assignment.number)
                if complaint := judge.compare(as_pixels(got), want):
                    return f"Sample {order[row]} of epoch {assignment.number}: {complaint}", checked
    return None, checked


def as_pixels(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 3×224×224 from what the device was given: already so, or float32 normalised with ImageNet's mean and deviation."""
    if image.dtype == np.uint8:
        return image
    with np.errstate(invalid="ignore", over="ignore"):
        pixels: np.ndarray[Any, Any] = np.nan_to_num(np.clip((image * STD + MEAN) * 255, 0, 255).round()).astype(
            np.uint8
        )
    return pixels


def grade(context: Context, run: Run, step_s: float, drift: float, foreign_cores: float) -> list[CriterionResult]:
    """Utilisation and data wait. Where the machine changed speed meanwhile, only what holds at either speed is decided."""
    spec, wait = context.required("useful-utilisation"), context.required("data-wait")
    speeds = [1.0, drift]
    decision = _at_either(spec, [[block * speed for block in run.utilisation(step_s)] for speed in speeds])
    overall = run.images_per_s() * step_s / run.batch
    missed = [overall * speed < sequential_test(spec).bar for speed in speeds]
    if decision.state is State.PASS and any(missed) and not all(missed):
        decision = _undecided(decision)
    busy = (
        grade_value(spec, overall)
        if decision.state is State.PASS and all(missed)
        else grade_decision(spec, decision, "blocks")
    )
    idle = _at_either(wait, [[max(0.0, 1 - (1 - block) * speed) for block in run.idle()] for speed in speeds])
    return [not_held_against(result, foreign_cores) for result in (busy, grade_decision(wait, idle, "blocks"))]


def _at_either(spec: CriterionSpec, samples: list[list[float]]) -> Decision:
    """What the samples say at each speed of the machine, with the figures of the first; undecided where that is not the same."""
    first, *others = [sequential_test(spec, BLOCKS).decide(each, exhausted=True) for each in samples]
    return first if all(other.state is first.state for other in others) else _undecided(first)


def _undecided(decision: Decision) -> Decision:
    return msgspec.structs.replace(decision, state=State.INCONCLUSIVE)


def _cpu_of(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _details(run: Run, step_s: float, loader_s: float, drift: float) -> dict[str, Any]:
    return {
        "step_s": step_s,
        "shipped_loader_s_an_image": loader_s,
        "calibration_drift": drift,
        "block_utilisation": run.utilisation(step_s),
        "block_idle": run.idle(),
        "images_per_s": run.images_per_s(),
        "steps_ms": [
            [(t - run.began_ns()) / 1e6 for t in (step.arrived_ns, step.started_ns, step.ended_ns)]
            for step in run.timed()
        ],
    }


def _notes(context: Context, step_s: float, loader_s: float, batch: int) -> list[str]:
    if context.device == "cuda":
        wanted_s = _share(context) * loader_s * batch
        return [
            f"The GPU trains every batch of {batch} images as often as comes nearest to {1000 * wanted_s:.0f} ms, {1000 * step_s:.0f} ms in all: it outruns "
            f"one core of this machine ({1 / loader_s:.0f} shipped images/s) as the emulated device does, and two cores can feed it."
        ]
    slower = step_s / A100.step_s(batch)
    return [
        f"The device is emulated: {A100.name}, slowed {slower:.0f}x so that it outruns one core of this machine "
        f"({1 / loader_s:.0f} shipped images/s) as a real one outruns its host. Its step of {batch} images takes {1000 * step_s:.0f} ms."
    ]
