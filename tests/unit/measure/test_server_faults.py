"""A server that crashes, hangs, returns or does not start: each ends a check with a verdict that
says so. Real processes, held as in a check.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.http_server import HttpServerSettings, session
from bottleneck_lab.measure.kinds.http_server.judging import refused
from bottleneck_lab.measure.kinds.http_server.load.level import Load
from bottleneck_lab.measure.kinds.http_server.load.messages import Messages, head
from bottleneck_lab.measure.kinds.http_server.session import ServerSession
from bottleneck_lab.measure.sandbox.janitor import Janitor

SERVER = """
import os, time

def serve(listener):
    for number in range(1000):
        connection, _ = listener.accept()
        connection.recv(4096)
        meet(number)
        head = b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n"
        connection.sendall(head + b"{}")
        connection.close()
"""


class Requests:
    """Requests that are all alike."""

    def draw(self, count, rng):
        return np.arange(count)

    def messages(self, requests):
        return Messages([head("GET", "/", "text/plain"), b"-"], np.tile([0, 1], (len(requests), 1)))


def go(context, load):
    """What a check does with a server."""
    server = ServerSession.start(context, "learner", context.submission)
    server.wait_until_it_answers(load, context.settings.start_s)
    with server:
        level = load.closed(server.address, 2, 0.5, server.follow, patience_s=0.3)
        server.follow(1.0)
    return level


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Function: starts a server with this code and loads it for a moment: what came of it. Raises
    what ends a check early.
    """
    monkeypatch.setattr(session, "ANSWER_S", 0.3)

    def load_it(code):
        folder = tmp_path / "submission"
        folder.mkdir()
        (folder / "serve.py").write_text(SERVER + code)
        with Janitor() as janitor:
            settings = HttpServerSettings(start_s=2.0)
            context = Context(
                find_lab("past-the-plateau"),
                "virtual",
                settings,
                folder,
                folder,
                tmp_path,
                janitor,
                print,
            )
            load = Load(janitor.folder / "load", Requests(), janitor, np.random.default_rng(0))
            return go(context, load)

    return load_it


@pytest.fixture
def loaded(running):
    """Function: the same of a server that ends its check: what a check would say of it."""

    def load_it(code):
        with pytest.raises(LearnerFault) as fault:
            running(code)
        return fault.value

    return load_it


def test_a_crash_under_load_is_a_crash_with_its_last_words(loaded):
    fault = loaded(
        "\ndef meet(number):\n    if number == 20:\n        print('out of handles', flush=True)\n  "
        "      os._exit(3)\n"
    )
    assert fault.reason == "crashed"
    assert "serving: the process exited with status 3" in fault.detail
    assert "out of handles" in fault.detail


def test_a_server_that_hangs_has_not_started(loaded):
    fault = loaded("\ndef meet(number):\n    time.sleep(600)\n")
    assert fault.reason == "timed out"
    assert "no request was answered within 2 s" in fault.detail


def test_a_server_that_hangs_under_load_has_left_requests_without_an_answer(running):
    level = running("\ndef meet(number):\n    time.sleep(600 if number == 20 else 0)\n")
    assert (level.status == 200).sum() >= 10
    assert re.search(
        r"[12] of \d+ good requests got no answer", refused(level, np.arange(len(level.status)))
    )


def test_a_server_that_returns_has_crashed(loaded):
    fault = loaded(
        "\ndef meet(number):\n    pass\n\nall_day = serve\n\ndef serve(listener):\n   "
        " listener.accept()\n"
    )
    assert fault.reason == "crashed"
    assert "`serve` returned" in fault.detail


def test_an_exception_in_serve_is_told_with_its_line(loaded):
    fault = loaded("\ndef meet(number):\n    raise LookupError('no such shelf')\n")
    assert fault.reason == "crashed"
    assert "LookupError: no such shelf" in fault.detail
    assert "serve.py, line" in fault.detail
