"""Send requests to a server and record when each was due, sent and answered.

The load generator's process: `python -I -m
bottleneck_lab.measure.kinds.http_server.load.generator --plan FILE --out FILE`. In an open loop a
request is due when the plan says, whatever became of the ones before; in a closed loop each of the
plan's clients sends the next when it has its answer. The generator waits only for the clock and the
kernel: a request that finds no free connection opens one. It has one thread, since two would wait
for each other's lock; sending due requests comes before reading answers.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httptools
import msgspec
import numpy as np

from bottleneck_lab.measure.kinds.http_server.load.messages import Messages
from bottleneck_lab.measure.kinds.http_server.load.stolen import Stolen

CONNECTIONS = 600
"""The most open at once; a server that keeps more requests waiting has failed by any measure."""
NOT_SENT, LOST = -1, 0
"""Status of a request for which there was no connection; and of one whose connection ended, or that
had no answer by the end.
"""
MAX_REPLY_BYTES = 64 << 10
PRIORITY = -10
Clock = Callable[[], int]


class Plan(msgspec.Struct, frozen=True):
    """The requests to send to the Unix socket `address`: those that `Messages` wrote to the file
    `messages`, one after the other.

    due_ns: when, from the start, in an open loop; empty for a closed one of `clients` clients that
    lasts `seconds`. broken: messages sent instead of the requests of these numbers; disconnects:
    numbers of requests whose client is gone in the middle of its upload. patience_s: how long to
    wait for answers after the last request. urgent: it runs before other programs, if it may.
    """

    address: str
    messages: str
    due_ns: list[int] = []
    clients: int = 0
    seconds: float = 0.0
    broken: dict[int, bytes] = {}
    disconnects: list[int] = []
    patience_s: float = 3.0
    urgent: bool = True


class Connection:
    """One connection to the server, and the request that it carries."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.setblocking(False)
        self.sock.connect(address)
        self.request = -1
        self.unsent = memoryview(b"")
        self.status = 0
        self._new_reply()

    def _new_reply(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.complete = False

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; the parser calls this."""
        self.body += body

    def on_message_complete(self) -> None:
        """Take the end of a reply; the parser calls this."""
        self.complete, self.status = True, self._parser.get_status_code()

    def begin(self, request: int, message: bytes) -> None:
        """Begin a request: send as much of it as the kernel takes."""
        self._new_reply()
        self.request, self.unsent = request, memoryview(message)
        self.flush()

    def flush(self) -> None:
        """Send more of the request."""
        # A server that reads slowly must not hold up the other connections.
        while self.unsent:
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                # The server will not read the rest, but its answer may already have arrived.
                self.unsent = memoryview(b"")
                return

    def read(self) -> bool:
        """Read what has arrived. Returns False if the connection can no longer be used."""
        while True:
            try:
                chunk = self.sock.recv(1 << 16)
            except BlockingIOError:
                return True
            # Bytes without a request, or without an end, come from no honest server.
            if not chunk or self.request < 0 or len(self.body) > MAX_REPLY_BYTES:
                return False
            self._parser.feed_data(chunk)

    def may_go_on(self) -> bool:
        """Return True if the server keeps the connection open for another request."""
        return bool(self._parser.should_keep_alive()) and not self.unsent


class Generator:
    """All requests of a plan and what happened to each: one entry a request in `begun_ns` (when it
    was due), `sent_ns` and `ended_ns`, by the monotonic clock, 0 if it never happened.
    """

    def __init__(self, plan: Plan, messages: Messages, clock: Clock = time.monotonic_ns) -> None:
        self.plan = plan
        self._messages = messages
        self._clock = clock
        self.begun_ns: list[int] = []
        self.sent_ns: list[int] = []
        self.ended_ns: list[int] = []
        self.status: list[int] = []
        self.replies: list[bytes] = []
        self._open: dict[int, Connection] = {}
        self._idle: list[Connection] = []
        self._running = 0
        self._poll = select.epoll()
        self._stolen = Stolen(clock)
        self._ready = (0, self._compose(0))

    def run(self) -> None:
        """Send everything, and wait for the answers."""
        start_ns = self._clock()
        self._until_ns = start_ns + round(self.plan.seconds * 1e9)
        due = [start_ns + each for each in self.plan.due_ns]
        # In a closed loop each client sends its first request; `_note` sends the others.
        for _ in range(self.plan.clients):
            self._send(self._clock())
        while len(self.begun_ns) < len(due) or self._clock() < self._until_ns:
            while len(self.begun_ns) < len(due) and due[len(self.begun_ns)] <= self._clock():
                self._send(due[len(self.begun_ns)])
            next_ns = due[len(self.begun_ns)] if len(self.begun_ns) < len(due) else self._until_ns
            self._wait(next_ns)
        deadline = self._clock() + round(self.plan.patience_s * 1e9)
        while self._running and self._clock() < deadline:
            self._wait(deadline)

    def _wait(self, until_ns: int) -> None:
        """Handle events until then."""
        number = len(self.begun_ns)
        # Composed ahead, while nothing is due, so that it can be sent on time.
        if self._ready[0] != number and self._clock() < until_ns:
            self._ready = (number, self._compose(number))
        left_s = (until_ns - self._clock()) / 1e9
        self._stolen.ran()
        if left_s > 0:
            # Unlike epoll, which counts milliseconds, select wakes within microseconds.
            select.select([self._poll], [], [], left_s)
            self._stolen.slept(until_ns)
        for descriptor, event in self._poll.poll(0):
            # A connection that was closed a moment ago may also have had an event.
            if descriptor in self._open:
                self._serve(self._open[descriptor], event)
            if self._clock() >= until_ns:
                return  # the remaining events are reported again

    def _send(self, due_ns: int) -> None:
        # An entry whatever becomes of it: a request that is never sent counts as unanswered.
        number = len(self.begun_ns)
        self.begun_ns.append(due_ns)
        self.sent_ns.append(0)
        self.ended_ns.append(0)
        self.status.append(NOT_SENT)
        self.replies.append(b"")
        try:
            connection = self._idle.pop() if self._idle else self._connect()
            if connection is None:
                return
            self._running += 1
            self.sent_ns[number], self.status[number] = self._clock(), LOST
            message = self._ready[1] if self._ready[0] == number else self._compose(number)
            connection.begin(number, message)
        except OSError:
            # It was counted only if there was a connection to send it on.
            self._running -= self.status[number] == LOST
            return
        # Half of the message has been sent, and the client is gone.
        if number in self.plan.disconnects:
            self._drop(connection)
        else:
            self._watch(connection)

    def _connect(self) -> Connection | None:
        if len(self._open) >= CONNECTIONS:
            return None
        connection = Connection(self.plan.address)
        self._open[connection.sock.fileno()] = connection
        self._poll.register(connection.sock, select.EPOLLIN)
        return connection

    def _compose(self, number: int) -> bytes:
        whole = self.plan.broken.get(number) or self._messages.whole(number)
        return whole[: len(whole) // 2] if number in self.plan.disconnects else whole

    def _watch(self, connection: Connection) -> None:
        self._poll.modify(
            connection.sock, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)
        )

    def _serve(self, connection: Connection, event: int) -> None:
        try:
            if event & select.EPOLLOUT:
                connection.flush()
                self._watch(connection)
            # Anything but room to write: an answer, an error, or the end of the connection.
            alive = connection.read() if event & ~select.EPOLLOUT else True
        except (OSError, httptools.HttpParserError):
            alive = False
        if connection.complete:
            self._note(connection, alive)
        elif not alive:
            self._drop(connection)

    def _note(self, connection: Connection, alive: bool) -> None:
        number, connection.request, connection.complete = connection.request, -1, False
        self.ended_ns[number], self.status[number] = self._clock(), connection.status
        self.replies[number] = connection.body
        self._running -= 1
        # Kept open for the next request, as real clients do.
        if alive and connection.may_go_on():
            self._idle.append(connection)
        else:
            self._close(connection)
        if self.plan.clients and self._clock() < self._until_ns:
            self._send(self._clock())

    def _drop(self, connection: Connection) -> None:
        """Close a connection that can no longer be used; a request that it carried is lost. A
        client of a closed loop sends its next one.
        """
        lost = connection.request >= 0
        self._running -= lost
        self._close(connection)
        if lost and self.plan.clients and self._clock() < self._until_ns:
            self._send(self._clock())

    def stolen_ns(self) -> np.ndarray[Any, Any]:
        """Return for each request how long, between due and sent, a hypervisor kept this process
        from running.
        """
        return self._stolen.between(np.array(self.begun_ns), np.array(self.sent_ns))

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        self._open.pop(connection.sock.fileno(), None)
        connection.sock.close()


def go_first() -> None:
    """Give this process real-time priority, if it may have it (root, or a limit on real-time
    priority); else a better nice value, if it may have that.
    """
    # Behind a server on the same cores it would send late. It uses little of a core, and the kernel
    # reserves a share of each core for other processes (sched(7)).
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


def main() -> None:
    """Entry point: carry out a plan and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan = msgspec.msgpack.decode(options.plan.read_bytes(), type=Plan)
    generator = Generator(plan, Messages.load(Path(plan.messages)))
    if plan.urgent:
        go_first()
    gc.disable()  # a run leaves little garbage, and a collection takes a millisecond
    cpu_s, began = time.process_time(), time.monotonic()
    generator.run()
    cores = (time.process_time() - cpu_s) / (time.monotonic() - began)
    ends = np.cumsum([len(reply) for reply in generator.replies])
    np.savez(
        options.out,
        cores=np.array(cores),
        reply_ends=ends,
        replies=np.frombuffer(b"".join(generator.replies), np.uint8),
        begun_ns=np.array(generator.begun_ns, np.int64),
        sent_ns=np.array(generator.sent_ns, np.int64),
        ended_ns=np.array(generator.ended_ns, np.int64),
        status=np.array(generator.status, np.int64),
        stolen_ns=generator.stolen_ns(),
    )


if __name__ == "__main__":
    main()
