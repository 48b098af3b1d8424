"""A worker and its channel: started, watched, talked to, and blamed if it misbehaves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np

from bottleneck_lab.errors import SITE
from bottleneck_lab.measure.channel.messages import (
    Answer,
    Begin,
    Call,
    Echo,
    Failed,
    Loading,
    Message,
    MessageT,
    Ready,
    Value,
)
from bottleneck_lab.measure.channel.wire import Arena, Channel, Closed, TimedOut, WireError, pack
from bottleneck_lab.measure.clock import Phase, PhaseClock
from bottleneck_lab.measure.context import WorkerContext
from bottleneck_lab.measure.faults import LearnerFault, NotModelled, VerifierFault
from bottleneck_lab.measure.sandbox.limits import WATCH_S, Limits
from bottleneck_lab.measure.sandbox.process import Worker, printable, python_module
from bottleneck_lab.measure.sandbox.visible import Paths, python_folders
from bottleneck_lab.measure.settings import WorkerSettings
from bottleneck_lab.programs import as_options

Role = Literal["reference", "learner"]
PROGRAM = "bottleneck_lab.measure.worker"
"""The module that answers calls."""
HELD = "--held"
"""A worker's option: start, and load no code yet."""
REINSTALL = (
    "Run `lab doctor`, then check again. If the same happens, install bottleneck-lab in a fresh"
    " environment: a package that it needs may be missing or broken."
)
"""The remedy for a worker that cannot start."""
MAX_TEXT = 4000
"""Characters of a worker's own words that a verdict repeats: an honest worker sends no more, a
hostile one megabytes.
"""


def limits_of(settings: WorkerSettings) -> Limits:
    """Return what a worker may use, as lab.toml sets it."""
    memory_bytes = int(settings.memory_gib * (1 << 30))
    return Limits(start_s=settings.start_s, call_s=settings.call_s, memory_bytes=memory_bytes)


class Relay(Protocol):
    """A process of the verifier's own that stands between it and a worker: asked first when
    something went wrong.
    """

    name: str
    """Its name in a sentence."""

    def stopped(self) -> bool:
        """Return True if somebody has stopped it."""

    def ended(self) -> int | None:
        """Return its exit status; None while it lives."""


class Session:
    """One worker, reference or learner. A fault of the learner's is a LearnerFault, of the
    reference's a VerifierFault.
    """

    def __init__(
        self,
        role: Role,
        worker: Worker,
        channel: Channel,
        relay: Relay | None = None,
        *,
        clock: PhaseClock | None = None,
    ) -> None:
        self.role: Role = role
        self.worker = worker
        self.channel = channel
        self.clock = clock or PhaseClock()
        self._relay = relay
        # Until it is ready, waiting for it counts as starting it; then, as its work.
        self._phase: Phase = "workers"
        # Sent before any code under test runs, so that code can neither hold it back nor recall it.
        self._loading = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker with everything it started."""
        with self.clock.phase("waiting"):
            self.worker.end()
        self.channel.close()
        if self.channel.arena is not None:
            self.channel.arena.close()

    def receive(self, timeout_s: float, doing: str) -> Message:
        """Return the next message within `timeout_s`, while the limits are watched. Raises the
        fault of whoever is to blame.
        """
        with self.clock.phase(self._phase):
            deadline = time.monotonic() + timeout_s
            while True:
                try:
                    message = self.channel.receive(
                        min(WATCH_S, max(0.0, deadline - time.monotonic()))
                    )
                except TimedOut:
                    # A sandbox that is killed while it sets up may leave a child that holds the
                    # channel open and never speaks.
                    if self.worker.process.poll() is not None and not self.channel.waiting():
                        raise self.closed(doing) from None
                    self.watch(doing)
                    if time.monotonic() >= deadline:
                        raise self.fault(
                            "timed out",
                            f"{doing}: no answer within {timeout_s:.0f} s. {self._stuck()}",
                        ) from None
                    continue
                except Closed:
                    raise self.closed(doing) from None
                except WireError as error:
                    raise self.fault(
                        "tampered",
                        f"{doing}: the reply is not a message of the protocol ({error}).",
                    ) from None
                if isinstance(message, Failed):
                    raise self.failed(message, doing)
                if isinstance(message, Loading) and not self._loading:
                    self._loading = True
                    continue
                if isinstance(message, Ready) and self._phase == "workers":
                    self.clock.move(message.loading_s, "workers", "imports")
                    self._phase = self.role
                return message

    def watch(self, doing: str) -> None:
        """Check, at most twice a second, that the worker keeps to its limits. Raises the fault of
        one that does not.
        """
        if excess := self.worker.watch.now_and_then():
            raise self.fault(excess.reason, f"{doing}: the code {excess.words}.")

    def freeze(self, doing: str) -> None:
        """Stop the worker. Raises the fault of one that keeps running: its work would be measured
        with the other side's.
        """
        with self.clock.phase("waiting"):
            frozen = self.worker.freeze()
        if not frozen:
            raise self.fault(
                "tampered", f"{doing}: it kept running inside a system call after it was stopped."
            )

    def expect(self, due: type[MessageT], timeout_s: float, doing: str) -> MessageT:
        """Return the next message, which must be of this type."""
        return self.require(self.receive(timeout_s, doing), due, doing)

    def require(self, message: Message, due: type[MessageT], doing: str) -> MessageT:
        """Return the message. Raises the fault of a worker that sent another type than was due."""
        if not isinstance(message, due):
            raise self.fault(
                "tampered", f"{doing}: {type(message).__name__} arrived instead of {due.__name__}."
            )
        return message

    def failed(self, message: Failed, doing: str) -> LearnerFault | VerifierFault:
        """Return the exception for a worker that reports one of its own."""
        text = printable(message.text[:MAX_TEXT])
        if message.reason == NotModelled.reason:
            return VerifierFault(
                f"{doing}: the emulated device does not model this. {text}",
                f"Do it another way, or check on a GPU. What is missing: {SITE}/emulation.html",
            )
        # A lab's binding may refuse the learner's code for these reasons, by an exception's
        # `reason`; anything else is a crash. "tampered" is for the verifier alone to find.
        reason = "crashed"
        if message.reason in ("forbidden call", "does not compile", "wrong output"):
            reason = message.reason
        return self.fault(reason, f"{doing}: {text}")

    def fault(self, reason: str, detail: str) -> LearnerFault | VerifierFault:
        """Return the exception that blames the owner of this worker."""
        # A relay that does not run cannot pass on an answer: nobody is to blame for the silence.
        if reason == "timed out" and self._relay and self._relay.stopped():
            return VerifierFault(f"{self._relay.name} was stopped. {detail}")
        if not self._loading:
            return failed_to_start(f"{reason}: {detail}", self.role)
        if self.role == "learner":
            return LearnerFault(reason, detail)  # type: ignore[arg-type]  # callers pass literals of FailReason
        return VerifierFault(f"The reference worker failed: {reason}: {detail}")

    def closed(self, doing: str) -> Exception:
        """Return the exception for a channel that has ended: by a relay's end, or the worker's."""
        if self._relay and (status := self._relay.ended()) is not None:
            return VerifierFault(f"{doing}: {self._relay.name} ended (status {status}).")
        return self.gone(doing)

    def gone(self, doing: str) -> LearnerFault | VerifierFault:
        """Return the exception for a worker that is gone."""
        # Its channel closes a moment before the supervisor has ended and knows the exit status.
        for _ in range(100):
            if self.worker.process.poll() is not None:
                break
            time.sleep(0.02)
        detail = f"{doing}: the process {self.worker.ending()}."
        if lines := self.worker.log_tail().strip().splitlines():
            detail += f" It last printed: {lines[-1][:300]}"
        return self.fault("crashed", detail)

    def _stuck(self) -> str:
        if "T" in self.worker.states():
            return "It was stopped (SIGSTOP)."
        return (
            "An endless loop, slow arithmetic of your own, or a wait for something that never"
            " happens?"
        )


def failed_to_start(detail: str, role: Role = "learner") -> VerifierFault:
    """Return the exception for a worker that failed before it ran any of the code under test."""
    worker = "The reference worker" if role == "reference" else "A worker"
    return VerifierFault(f"{worker} failed before it loaded the code to check: {detail}", REINSTALL)


class CallSession(Session):
    """A worker that answers calls. Between calls it is frozen: it can neither prepare the next nor
    disturb the other side's turn.
    """

    @classmethod
    def start(
        cls,
        context: WorkerContext,
        role: Role,
        folder: Path,
        entry: str,
        limits: Limits,
        *,
        program: str = PROGRAM,
        options: Sequence[str] = (),
        fds: Sequence[int] = (),
        wait: bool = True,
    ) -> CallSession:
        """Start a worker on `folder/entry` and wait until its code is loaded. A kind's own
        `program` gets its `options` and descriptors, too.

        Without `wait` another can start meanwhile, and `wait_ready` comes before the first call. A
        worker with the option `HELD` loads no code before `begin`.
        """
        arena = Arena.create(context.settings.arena_mb << 20)
        ours, theirs = Channel.pair()
        own = {"--socket": theirs.fileno(), "--arena": arena.fd}
        arguments = as_options({"--entry": folder / entry, **own, "--device": context.device})
        arguments += options
        learners = role == "learner"
        hidden = context.settings.hidden if learners else []
        if learners and context.settings.threads_only:
            arguments += ["--threads-only"]
        # The reference may be another file, which compiles nothing.
        is_entry = entry == context.lab.spec.entry
        if is_entry and context.settings.native:
            arguments += ["--native"]
        passed = [*own.values(), *fds]
        worker = start_worker(context, program, arguments, folder, limits, passed, hidden=hidden)
        theirs.close()
        session = cls(role, worker, Channel(ours, arena), clock=context.clock)
        if wait:
            try:
                session.wait_ready()
            except BaseException:
                session.close()
                raise
        return session

    def begin(self) -> None:
        """Let a worker that was started with `HELD` load its code, and wait until it has."""
        self.release()
        self.wait_ready()

    def release(self) -> None:
        """Let a worker that was started with `HELD` load its code; `wait_ready` comes next."""
        try:
            self.channel.send(Begin())
        except Closed:
            raise self.closed("starting up") from None

    def wait_ready(self) -> None:
        """Wait until its code is loaded, then freeze it."""
        self.expect(Ready, self.worker.limits.start_s, "starting up")
        self.freeze("starting up")
        self.channel.limit_sends(self.worker.limits.call_s)

    def call(self, inputs: list[Value]) -> tuple[float, list[Any]]:
        """Return seconds on the verifier's clock from handing over the inputs to holding a copy of
        the whole answer, and that answer.
        """
        return self.collect(self.hand_over(inputs))

    def hand_over(self, inputs: list[Value]) -> float:
        """Send the inputs of a call and let the worker run; return when that was on the verifier's
        clock. `collect` takes the answer.
        """
        return self._send_off(Call(inputs))

    def echo(self, inputs: list[Value]) -> float:
        """Return seconds that the protocol takes for these inputs and the last answer, with nothing
        called.
        """
        return self.collect(self._send_off(Echo(inputs)))[0]

    def _send_off(self, question: Call | Echo) -> float:
        message = pack(question, self.channel.arena, half=0)
        # The worker is frozen: whatever lies in the channel was sent after its last answer, such as
        # an answer to this call made in advance.
        if self.channel.waiting():
            raise self._unasked()
        # The clock is the verifier's and runs from before the thaw until a copy of the whole answer
        # is held: what the worker does with its own clock, or with the arena afterwards, changes
        # nothing.
        began = time.perf_counter()
        self.worker.thaw()
        self._send(message)
        return began

    def collect(self, began: float) -> tuple[float, list[Any]]:
        """Wait for the answer to what was handed over at `began`, then freeze the worker. Returns
        seconds since then and a copy of the answer.
        """
        outputs = self.expect(Answer, self.worker.limits.call_s, "during a call").outputs
        answer = [np.array(value) if isinstance(value, np.ndarray) else value for value in outputs]
        seconds = time.perf_counter() - began
        # What answered has lost the sandbox that held it.
        if self.worker.process.poll() is not None:
            raise self.closed("during a call")
        self.freeze("during a call")
        self.watch("during a call")
        return seconds, answer

    def _send(self, message: bytes) -> None:
        try:
            self.channel.send_packed(message)
        except TimedOut:
            detail = (
                f"during a call: the inputs were not read within {self.worker.limits.call_s:.0f}"
                f" s. {self._stuck()}"
            )
            raise self.fault("timed out", detail) from None
        except Closed:
            raise self.closed("during a call") from None

    def _unasked(self) -> Exception:
        """Return the exception for bytes, or an end, that came while no call was pending."""
        self.worker.thaw()
        try:
            message = self.channel.receive(1)
        except Closed:
            return self.closed("between two calls")
        except WireError as error:
            return self.fault(
                "tampered",
                f"between two calls: bytes that are not a message of the protocol ({error}).",
            )
        return self.fault(
            "tampered",
            f"between two calls: an unexpected {type(message).__name__} followed the answer.",
        )


def start_worker(
    context: WorkerContext,
    module: str,
    arguments: list[str],
    folder: Path,
    limits: Limits,
    fds: list[int],
    cores: set[int] | None = None,
    hidden: Sequence[str] = (),
    shown: Sequence[Path] = (),
    *,
    network: bool = False,
    gpu: bool = True,
) -> Worker:
    """Return a worker on `folder` that runs `module`, known to the janitor from the first moment.

    `hidden` packages are not there for it, where a sandbox can hide them; `shown` folders are,
    besides the data. With `network` its processes may meet over TCP. Without `gpu` it sees no GPU
    even on `cuda`.
    """
    settings = context.settings
    with context.clock.phase("workers"):
        worker = Worker(
            python_module(module, *arguments),
            Paths(
                folder,
                [context.data, *shown],
                [Path(folder, name) for folder in python_folders() for name in hidden],
            ),
            limits,
            pass_fds=fds,
            cores=cores,
            threads=settings.threads,
            bound=settings.bind_threads,
            gpu=gpu and context.device == "cuda",
            janitor=context.janitor,
            network=network,
        )
    context.isolation.update(worker.isolation)
    return worker
