"""A real server in a process of its own, and a browser's part without a browser."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from .. import warm
from ..processes import PATIENCE_S

SERVER = """
import sys
from pathlib import Path
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.server.serve import serve
with open_cohort(Path(sys.argv[1])) as cohort:
    serve(cohort, "127.0.0.1", int(sys.argv[2]), f"http://127.0.0.1:{sys.argv[2]}")
"""
RUNNER = """
import json, sys
from pathlib import Path
from bottleneck_lab.cohort.running.dispatch import LocalDispatcher
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.running.runner import Conditions, Machine, Runner
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
with open_cohort(Path(sys.argv[1])) as cohort:
    machine, command = int(sys.argv[2]), json.loads(sys.argv[3])
    executor = LocalExecutor(cohort.folder / "slots", [], machine=machine, command=command)
    runner = Runner(
        LocalDispatcher(cohort, "runner"),
        executor,
        "runner",
        cohort.jobs,
        Conditions(sandbox_required=bool(bubblewrap()), limits_required=False),
        Machine(needs_quiet=lambda lab, device: machine == 1),
    )
    runner.run(lambda: False, 0.05)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


NEEDS = (
    "bottleneck_lab.cohort.server.serve",
    "bottleneck_lab.cohort.running.dispatch",
    "bottleneck_lab.cohort.running.executors.local",
    "bottleneck_lab.cohort.running.runner",
)
"""Modules that both of them import, which takes a second."""


class Process:
    """A program that can be killed and started again."""

    def __init__(self, script: str, *arguments: str, log: Path) -> None:
        self._script, self._arguments, self._log = script, arguments, log
        self.start()

    def start(self) -> None:
        self.process = warm.Program(self._script, *self._arguments, needs=NEEDS, log=self._log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@contextmanager
def serving(folder: Path, port: int | None = None):
    """The server of the cohort in `folder`, once it answers; its port and process."""
    port = port or free_port()
    server = Process(SERVER, str(folder), str(port), log=folder / "server.log")
    try:
        wait_until_it_answers(port)
        yield port, server
    finally:
        if server.process.poll() is None:
            server.kill()


def wait_until_it_answers(port: int) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            if Visitor(port).get("/health/ready").status == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < end, "the server does not answer"
        time.sleep(0.05)


@dataclass
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self):
        return msgspec.json.decode(self.body)


@dataclass
class Visitor:
    """A browser with its cookie, or a program with its token."""

    port: int
    cookie: str | None = None
    token: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        mine = {
            **({"Cookie": f"bottleneck_lab={self.cookie}"} if self.cookie else {}),
            **self.headers,
            **headers,
        }
        if self.token:
            mine["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body, mine)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            body = (
                b""
                if fields.get("content-type", "").startswith("text/event-stream")
                else answer.read()
            )
        finally:
            connection.close()
        if "set-cookie" in fields:
            self.cookie = fields["set-cookie"].split(";")[0].partition("=")[2]
        return Answer(answer.status, fields, body)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, **fields: str) -> Answer:
        """A form as the page sends it; the CSRF token is read off the visitor's own page unless
        given.
        """
        if "csrf" not in fields and self.cookie:
            fields["csrf"] = self.csrf()
        kind = "application/x-www-form-urlencoded"
        return self.ask("POST", path, urlencode(fields).encode(), **{"Content-Type": kind})

    def csrf(self) -> str:
        hidden = re.search(r'name="csrf" value="([^"]+)"', self.get("/me").text)
        return hidden.group(1) if hidden else ""


def log_in(room, port: int, person) -> Visitor:
    """A visitor who came by a link, as the terminal prints it."""
    from bottleneck_lab.cohort.members import sessions

    with room.cohort.database.writing() as connection:
        token = sessions.new_link(connection, person, time.time())
    visitor = Visitor(port)
    assert visitor.get(f"/login/{token}").status == 303
    return visitor
