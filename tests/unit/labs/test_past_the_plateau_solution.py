"""The reference server in hard times: what is no picture, too large, too much, or gone; and what it
says of itself.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import re
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bottleneck_lab.catalog import find_lab

from ...modules import load_file

LAB = find_lab("past-the-plateau")
DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana-inference-server.json"


@pytest.fixture(scope="module")
def solution():
    """The module, with this lab's `recipe`: other labs have one, too, and their tests may have
    loaded it in this process.
    """
    other = sys.modules.pop("recipe", None)
    sys.path.insert(0, str(LAB.path))
    try:
        yield load_file(LAB.solution / "serve.py", "solved_serve")
    finally:
        sys.path.remove(str(LAB.path))
        sys.modules.pop("recipe", None)
        if other is not None:
            sys.modules["recipe"] = other


class Model:
    """Scores a batch by its mean level; waits while it is held."""

    def __init__(self) -> None:
        self.free, self.batches = threading.Event(), []
        self.free.set()

    def __call__(self, images):
        self.free.wait(60)
        self.batches.append(len(images))
        return np.repeat(images.mean(axis=(1, 2, 3))[:, None], 10, axis=1).astype(np.float32)


class Place:
    """The server on a port of its own, with a model that the test holds."""

    def __init__(self, solution) -> None:
        self.model = Model()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(
            target=solution.serve, args=(self.listener, self.model), daemon=True
        ).start()

    def ask(self, body=b"", path="/classify", method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def begin(self, body):
        """A request whose answer is not waited for."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/classify", body)
        return connection

    def statuses(self, begun):
        """What became of requests that were begun."""
        replies = [connection.getresponse() for connection in begun]
        for connection, reply in zip(begun, replies, strict=True):
            reply.read()
            connection.close()
        return [reply.status for reply in replies]

    def metrics(self):
        return self.ask(path="/metrics", method="GET")[1].decode()


@pytest.fixture(scope="module")
def place(solution):
    place = Place(solution)
    yield place
    place.listener.close()


def picture(level=100):
    file = io.BytesIO()
    Image.new("RGB", (1024, 768), (level, level, level)).save(file, "JPEG")
    return file.getvalue()


def test_each_picture_gets_its_own_scores(place):
    for level in (40, 90, 200):
        status, body = place.ask(picture(level))
        assert status == 200
        assert json.loads(body)["scores"] == pytest.approx([level] * 10, abs=2)


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"\xff\xd8" + bytes(500), picture()[:3000]],
    ids=["empty", "text", "noise", "cut off"],
)
def test_what_is_no_picture_gets_400_and_its_neighbours_are_answered(place, body):
    place.model.free.clear()
    good = [place.begin(picture(60)) for _ in range(3)]
    assert place.ask(body)[0] == 400
    place.model.free.set()
    assert place.statuses(good) == [200] * 3


def test_a_huge_body_is_refused_before_it_is_read_to_its_end(place, solution, monkeypatch):
    monkeypatch.setattr(solution, "MAX_BODY_BYTES", 100_000)
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=60)
    connection.putrequest("POST", "/classify")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    connection.send(bytes(200_000))
    assert place.statuses([connection]) == [413]
    assert place.ask(picture())[0] == 200


def test_more_than_can_wait_is_told_to_come_again(place, solution, monkeypatch):
    monkeypatch.setattr(solution, "MAX_WAITING", 4)
    place.model.free.clear()
    waiting = [place.begin(picture()) for _ in range(4)]
    deadline = time.monotonic() + 60
    while "server_waiting_requests 4.0" not in place.metrics() and time.monotonic() < deadline:
        time.sleep(0.02)
    connection = place.begin(picture())
    reply = connection.getresponse()
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    connection.close()
    reply.close()
    place.model.free.set()
    assert place.statuses(waiting) == [200] * 4


def test_clients_that_go_away_leave_nothing_waiting(place):
    place.model.free.clear()
    for _ in range(3):
        place.begin(picture()).close()
    half = socket.create_connection(("127.0.0.1", place.port))
    half.sendall(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\nabc")
    half.close()
    place.model.free.set()
    assert place.ask(picture())[0] == 200
    deadline = time.monotonic() + 60
    while "server_waiting_requests 0.0" not in place.metrics() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "server_waiting_requests 0.0" in place.metrics()


def test_a_model_that_fails_is_told_to_those_who_waited_and_to_nobody_else(place, monkeypatch):
    def broken(self, images):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Model, "__call__", broken)
        assert place.ask(picture())[0] == 500
    assert place.ask(picture())[0] == 200


def test_metrics_count_what_was_answered(place):
    def count(status):
        found = re.search(
            rf'^server_answers_total{{status="{status}"}} (\S+)', place.metrics(), re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    before = count(200), count(400)
    place.ask(picture())
    place.ask(b"no picture")
    assert (count(200), count(400)) == (before[0] + 1, before[1] + 1)
    assert "server_batch_size_bucket" in place.metrics()


def test_every_metric_of_the_dashboard_is_there(place):
    place.ask(picture())
    shown, served = DASHBOARD.read_text(encoding="utf-8"), place.metrics()
    names = set(re.findall(r"\bserver_[a-z_]+", " ".join(re.findall(r'"expr": "([^"]+)"', shown))))
    assert len(names) >= 6
    assert all(re.search(rf"^{name}(?:{{|\s)", served, re.MULTILINE) for name in names)


def test_a_profile_of_the_next_batches_can_be_asked_for(place):
    answers = []
    asker = threading.Thread(target=lambda: answers.append(place.ask(path="/profile?batches=2")))
    asker.start()
    deadline = time.monotonic() + 60
    while asker.is_alive() and time.monotonic() < deadline:
        assert place.ask(picture())[0] == 200
    status, body = answers[0]
    assert status == 200
    names = {event.get("name") for event in json.loads(gzip.decompress(body))["traceEvents"]}
    assert {"queue", "preprocess", "postprocess"} <= names
    assert place.ask(path="/profile?batches=0")[0] == 400


def test_a_port_that_is_taken_is_told_in_one_line(place, solution, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["serve.py", "--port", str(place.port)])
    with pytest.raises(
        SystemExit, match=rf"^Cannot listen on port {place.port}: Address already in use"
    ):
        solution.recipe.main(solution.serve)
