"""Clients and servers of different versions: what is not known is ignored, and what is needed and
cannot be read names the version that can.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest
from msgspec.structs import replace

from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.members import joining
from bottleneck_lab.cohort.protocol import VERSION_HEADER, Join, Joined, Standing
from bottleneck_lab.cohort.running.remote import RemoteDispatcher
from bottleneck_lab.cohort.running.workers import RunnerStatus, Slot
from bottleneck_lab.cohort.submissions.receipts import require_genuine
from bottleneck_lab.errors import MachineError

from .serving import serving
from .test_leases import claim, finish, signed

NEWER = "99.1"
MAPS = {"files", "capture", "health", "receipt"}
"""Objects with keys of their own, and the signed one: nothing is added there."""


def with_more(value):
    """Return JSON as a newer server could write it: a new field in every object."""
    if isinstance(value, list):
        return [with_more(one) for one in value]
    if not isinstance(value, dict):
        return value
    old = {name: one if name in MAPS else with_more(one) for name, one in value.items()}
    return {**old, "not_known_yet": {"why": ["new"]}}


@contextmanager
def newer(port: int, change, named: str = NEWER):
    """A server that passes everything on to the one at `port`, and changes its JSON answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            headers = {"Authorization": self.headers["Authorization"] or ""}
            with closing(connection):
                connection.request(self.command, self.path, body, headers)
                reply = connection.getresponse()
                data = json.dumps(change(json.loads(reply.read()))).encode()
            self.send_response(reply.status)
            self.send_header(VERSION_HEADER, named)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.do_POST()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def served(sqlite_room):
    sqlite_room.cohort.database.clock = sqlite_room.clock = time.time
    with serving(sqlite_room.cohort.folder) as (port, _):
        yield sqlite_room, port


def test_a_client_ignores_what_only_a_newer_server_knows(served):
    room, port = served
    with room.cohort.database.reading() as connection:
        code = joining.join_codes(connection)[0]
    with newer(port, with_more) as url:
        joined = Client(url).join(Join(code, "Ada"))
        client = Client(url, joined.token)
        client.require_allowed("slow")
        assert client.open_help("slow").hints is None
        accepted = client.submit(room.submission())
        handle = accepted.receipt.submission
        assert client.standing(handle).state == "queued"
        me = client.me()
        assert [one.submission for one in me.submissions] == [handle]
        assert "slow" in {lab.slug for lab in me.labs}
        assert client.login_path().startswith("/login/")
        assert client.send_capture({"capture.json": b"{}", "trace.json.gz": b"x"})
        with pytest.raises(RefusedByServerError, match="no submission with that name"):
            client.standing("nobodys")
        lease = claim(room)
        finish(room, lease, signed(room, lease))
        assert require_genuine(joined, client.standing(handle)).outcome == "PASS"


@pytest.mark.parametrize(
    ("change", "ask"),
    [
        (lambda answer: {"people": answer}, lambda client, _: client.me()),
        (
            lambda answer: answer | {"receipt": {**answer["receipt"], "more": 1}},
            lambda client, submission: client.submit(submission),
        ),
        (lambda answer: {"page": "/"}, lambda client, _: client.login_path()),
    ],
    ids=["another form", "a receipt with more in it", "a link"],
)
def test_what_cannot_be_read_names_the_servers_version(served, change, ask):
    room, port = served
    _, token = room.join("Ada")
    with (
        newer(port, change) as url,
        pytest.raises(MachineError, match=f"has bottleneck-lab {NEWER}, and this is") as error,
    ):
        ask(Client(url, token), room.submission())
    assert error.value.remedy == f"Install bottleneck-lab {NEWER} here."
    with (
        newer(port, change, version("bottleneck-lab")) as url,
        pytest.raises(MachineError) as error,
    ):
        ask(Client(url, token), room.submission())
    assert "Check the address" in error.value.remedy


def test_a_verdict_of_a_newer_version_is_not_called_forged(sqlite_room):
    room = sqlite_room
    person, token = room.join("Ada")
    room.submit(token)
    lease = claim(room)
    newer_document = json.loads(signed(room, lease)) | {"not_known_yet": 1}
    joined = Joined("c", "Autumn", person.handle, "Ada", token, room.cohort.public_key)
    standing = Standing(lease.submission, "slow", "done", 1, 0, None, "")
    standing = replace(standing, verdict=json.dumps(newer_document))
    with pytest.raises(MachineError, match="cannot read the verdict that arrived") as error:
        require_genuine(joined, standing)
    assert "Install the version that the server has" in error.value.remedy


def test_a_server_names_its_version_to_a_newer_client(served):
    _, port = served
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection):
        connection.request("POST", "/api/join", b'{"code": "x", "name": "Ada", "shoe_size": 41}')
        reply = connection.getresponse()
        refusal = json.loads(reply.read())
    assert reply.headers[VERSION_HEADER] == version("bottleneck-lab")
    assert f"bottleneck-lab {version('bottleneck-lab')} cannot read this" in refusal["message"]


def test_a_runner_ignores_new_fields_and_stops_when_the_server_was_updated(served):
    room, port = served
    status = RunnerStatus("far", "local", [Slot("cpu0")], 0.0, {}, "elsewhere")
    _, token = room.join("Ada")
    room.intake.offer(token, room.submission()).result(30)
    with newer(port, with_more, version("bottleneck-lab")) as url:
        far = RemoteDispatcher(url, room.cohort.runner_token(), "far")
        assert far.register(status) == []
        work = far.claim({"cpu"}, lambda _waiting: "cpu0")
        assert work.files == {"work.py": b"# right\n"}
        assert far.beat(status, [work.lease.nonce]).kept == {work.lease.nonce}
        far.give_up(work.lease.nonce, "done")
    with newer(port, with_more) as url, pytest.raises(MachineError, match=f"now has .* {NEWER}"):
        RemoteDispatcher(url, room.cohort.runner_token(), "far").beat(status, [])
