"""Start a server in a sandbox, wait for it, load it and watch it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from bottleneck_lab.measure.channel.messages import Done, Failed, Message, Ran, Ready
from bottleneck_lab.measure.channel.session import Role, Session, limits_of, start_worker
from bottleneck_lab.measure.channel.wire import Channel, Closed, TimedOut
from bottleneck_lab.measure.context import Context, WorkerContext
from bottleneck_lab.measure.kinds.http_server import HttpServerSettings
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level, Load
from bottleneck_lab.measure.machine import loading_cores
from bottleneck_lab.measure.sandbox.process import Worker
from bottleneck_lab.measure.sandbox.waiting import Waiting
from bottleneck_lab.programs import as_options

PROGRAM = "bottleneck_lab.measure.kinds.http_server.child"
BACKLOG = 1024
ANSWER_S = 5.0
"""Longest wait for the answer to a first request before another is sent."""
SETTLE_S = 0.2
"""Wait after a level for late messages about it."""


def listen(path: Path) -> socket.socket:
    """Return a Unix socket that listens at `path`. A server in a sandbox gets its descriptor, and
    so needs no network.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(BACKLOG)
    return listener


def start_server(
    context: WorkerContext,
    program: str,
    folder: Path,
    fds: dict[str, int],
    environment: Path | None = None,
    options: Sequence[str] = (),
) -> Worker:
    """Start the process in which a server runs. `fds`: the options of `program` that name
    descriptors; `environment`: that of a Triton server, if it runs one; `options`: further ones.
    """
    arguments = [*as_options({"--entry": folder / context.lab.spec.entry, **fds}), *options]
    if environment:
        arguments += ["--environment", str(environment)]
    return start_worker(
        context,
        program,
        arguments,
        folder,
        limits_of(context.settings),
        list(fds.values()),
        cores=loading_cores(),
        shown=[environment] if environment else [],
        network=environment is not None,
    )


class ServerSession:
    """A server. `batches`: those that the verifier's device has run for it; here there are none."""

    def __init__(self, session: Session, address: str) -> None:
        self.session = session
        self.address = address
        self.batches: list[Ran] = []

    @classmethod
    def start(cls, context: Context[HttpServerSettings], role: Role, folder: Path) -> Self:
        """Start the server, and wait until its code is loaded."""
        address = context.janitor.folder / f"{role}.sock"
        ours, theirs = Channel.pair()
        with listen(address) as listener, theirs:
            fds = {"--socket": theirs.fileno(), "--listener": listener.fileno()}
            worker = start_server(context, PROGRAM, folder, fds)
        session = cls(Session(role, worker, Channel(ours), clock=context.clock), str(address))
        session.wait_until_loaded(context.settings.start_s)
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server with everything it started."""
        self.session.close()

    def freeze(self) -> None:
        """Stop the server while another is loaded."""
        self.session.freeze("while it was not under load")

    def thaw(self) -> None:
        """Let it run again."""
        self.session.worker.thaw()

    def cpu_s(self) -> float:
        """Return the CPU seconds that the server has used so far."""
        return self.session.worker.cpu_s()

    def waiting(self) -> Waiting:
        """Measure from now on how long its threads wait for a core."""
        return self.session.worker.waiting()

    def wait_until_loaded(self, start_s: float) -> None:
        """Wait until its code is loaded. If that takes longer than `start_s`, close everything and
        raise the server's fault.
        """
        try:
            self.session.expect(Ready, start_s, "starting up")
        except BaseException:
            self.close()
            raise

    def wait_until_it_answers(self, load: Load, start_s: float) -> None:
        """Send one request after another until one is answered. If none is within `start_s`, close
        everything and raise the server's fault.
        """
        deadline = time.monotonic() + start_s
        try:
            with self.session.clock.phase("workers"):
                # A socket accepts connections before anybody serves them, so only an answer counts.
                while time.monotonic() < deadline:
                    level = load.open(self.address, 20.0, 0.2, self.follow, patience_s=ANSWER_S)
                    if (level.status == OK).any():
                        return
        except BaseException:
            self.close()
            raise
        # Made before closing: it looks if the device process, if there is one, still runs.
        fault = self.session.fault(
            "timed out", f"starting up: no request was answered within {start_s:.0f} s."
        )
        self.close()
        raise fault

    def follow(self, seconds: float) -> None:
        """Handle messages about the server for `seconds`. Raises its fault if it ends or breaks a
        limit.
        """
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self.session.watch("serving")
            try:
                self.note(self.session.channel.receive(left_s))
            except TimedOut:
                continue
            except Closed:
                raise self.session.closed("serving") from None

    def batches_of(self, level: Callable[[], Level]) -> tuple[Level, list[Ran]]:
        """Run a level of load. Returns it with the batches that a device ran meanwhile."""
        before = len(self.batches)
        with self.session.clock.phase(self.session.role):
            result = level()
            self.follow(SETTLE_S)
        return result, self.batches[before:]

    def note(self, message: Message) -> None:
        """Raise the server's fault for any message: while it serves it must not send one."""
        if isinstance(message, Failed):
            raise self.session.failed(message, "serving")
        if isinstance(message, Done):
            raise self.session.fault(
                "crashed", "serving: `serve` returned; it must serve until it is stopped."
            )
        raise self.session.fault(
            "tampered", f"serving: an unexpected {type(message).__name__} arrived."
        )
