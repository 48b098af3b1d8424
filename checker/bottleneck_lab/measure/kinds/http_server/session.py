"""A server in a sandbox: started, waited for, loaded, watched."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
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

PROGRAM = "bottleneck_lab.measure.kinds.http_server.child"
BACKLOG = 1024
ANSWER_S = 5.0
"""Longest wait for the answer to a first request before another is sent."""
SETTLE_S = 0.2
"""Wait after a level for late messages about it."""


def listen(path: Path) -> socket.socket:
    """A Unix socket that listens at `path`: a server in a sandbox gets its descriptor and needs no
    network.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(BACKLOG)
    return listener


def start_server(
    context: WorkerContext,
    program: str,
    folder: Path,
    places: dict[str, int],
    environment: Path | None = None,
) -> Worker:
    """The process in which a server runs. `places`: the options of `program` that name descriptors;
    `environment`: of a Triton server, if it runs one.
    """
    arguments = ["--entry", str(folder / context.lab.spec.entry)]
    arguments += [part for option, fd in places.items() for part in (option, str(fd))]
    arguments += ["--environment", str(environment)] if environment else []
    return start_worker(
        context,
        program,
        arguments,
        folder,
        limits_of(context.settings),
        list(places.values()),
        cores=loading_cores(),
        shown=[environment] if environment else [],
        network=environment is not None,
    )


class ServerSession:
    """A server. `batches`: what the verifier's device has run for it, in order; here there is none."""

    def __init__(self, session: Session, address: str) -> None:
        self.session = session
        self.address = address
        self.batches: list[Ran] = []

    @classmethod
    def start(cls, context: Context[HttpServerSettings], role: Role, folder: Path) -> Self:
        """Starts the server, and waits until its code is loaded."""
        address = context.janitor.folder / f"{role}.sock"
        ours, theirs = Channel.pair()
        with listen(address) as listener, theirs:
            places = {"--socket": theirs.fileno(), "--listener": listener.fileno()}
            worker = start_server(context, PROGRAM, folder, places)
        session = cls(Session(role, worker, Channel(ours)), str(address))
        session.wait_until_loaded(context.settings.start_s)
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server with everything it started."""
        self.session.close()

    def freeze(self) -> None:
        """Stops the server while another is loaded."""
        self.session.freeze("while it was not under load")

    def thaw(self) -> None:
        """Lets it run again."""
        self.session.worker.thaw()

    def cpu_s(self) -> float:
        """CPU seconds that the server has used so far."""
        return self.session.worker.cpu_s()

    def wait_until_loaded(self, start_s: float) -> None:
        """Waits until its code is loaded. If that takes longer than `start_s`, raises the server's
        fault and closes everything.
        """
        try:
            self.session.expect(Ready, start_s, "starting up")
        except BaseException:
            self.close()
            raise

    def wait_until_it_answers(self, load: Load, start_s: float) -> None:
        """Sends one request after another until one is answered. If none is within `start_s`,
        raises the server's fault and closes everything.
        """
        try:
            self._first_answer(load, start_s)
        except BaseException:
            self.close()
            raise

    def _first_answer(self, load: Load, start_s: float) -> None:
        deadline = time.monotonic() + start_s
        while time.monotonic() < deadline:
            level = load.open(self.address, 20.0, 0.2, self.follow, patience_s=ANSWER_S)
            if (level.status == OK).any():
                return
        raise self.session.fault(
            "timed out", f"starting up: no request was answered within {start_s:.0f} s."
        )

    def follow(self, seconds: float) -> None:
        """Handles messages about the server for `seconds`. Raises its fault if it ends or breaks a
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
        """A level of load, and the batches that a device ran meanwhile."""
        before = len(self.batches)
        result = level()
        self.follow(SETTLE_S)
        return result, self.batches[before:]

    def note(self, message: Message) -> None:
        """Handles a message. Raises the server's fault: while it serves it must not send any."""
        if isinstance(message, Failed):
            raise self.session.failed(message, "serving")
        if isinstance(message, Done):
            raise self.session.fault(
                "crashed", "serving: `serve` returned; it must serve until it is stopped."
            )
        raise self.session.fault(
            "tampered", f"serving: an unexpected {type(message).__name__} arrived."
        )
