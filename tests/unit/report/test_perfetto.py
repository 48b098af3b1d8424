"""The trace is served to Perfetto's interface and to nobody else."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlsplit

import pytest

from bottleneck_lab.commands.report import open_trace
from bottleneck_lab.errors import CaptureError, MachineError
from bottleneck_lab.report.perfetto import PERMISSION, explain_by_hand, serve_trace


@pytest.fixture
def trace(tmp_path):
    """A small file with a name that must be quoted."""
    path = tmp_path / "my träce 1.json"
    path.write_bytes(b'{"traceEvents": []}')
    return path


def test_perfetto_fetches_the_trace_from_the_link(trace):
    with serve_trace(trace, port=0) as served:
        link = urlsplit(served.link)
        assert (link.scheme, link.netloc) == ("https", "ui.perfetto.dev")
        url = parse_qs(link.fragment.removeprefix("!/?"))["url"][0]
        assert url == served.trace_url
        assert not served.wait(0)
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == trace.read_bytes()
            assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        assert served.wait(60)


def test_asking_for_the_size_is_not_fetching(trace):
    with serve_trace(trace, port=0) as served:
        request = urllib.request.Request(served.trace_url, method="HEAD")
        with urllib.request.urlopen(request) as answer:
            assert int(answer.headers["Content-Length"]) == trace.stat().st_size
        assert not served.wait(0)


def test_chrome_is_told_that_its_public_page_may_ask(trace):
    with serve_trace(trace, port=0) as served:
        request = urllib.request.Request(served.trace_url, method="OPTIONS")
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["Access-Control-Allow-Private-Network"] == "true"


@pytest.mark.parametrize("change", ["", "/../etc/passwd", "/guessed/my.json"])
def test_no_other_path_is_served(trace, change):
    with serve_trace(trace, port=0) as served:
        base = served.trace_url.split("/", 3)[:3]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen("/".join(base) + change)


def test_a_foreign_host_name_is_refused(trace):
    with serve_trace(trace, port=0) as served:
        request = urllib.request.Request(served.trace_url, headers={"Host": "attacker.example"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(request)


def test_the_port_is_free_again_afterwards(trace):
    with serve_trace(trace, port=0) as served:
        port = urlsplit(served.trace_url).port
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=60)


def test_a_taken_port_is_explained(trace):
    with serve_trace(trace, port=0) as served:
        again = serve_trace(trace, port=urlsplit(served.trace_url).port)
        with pytest.raises(MachineError, match="is taken") as caught:
            again.__enter__()
    assert "by hand" in caught.value.remedy


def test_a_missing_trace_is_explained(tmp_path):
    with (
        pytest.raises(CaptureError, match="is not a file"),
        serve_trace(tmp_path / "none.json", port=0),
    ):
        pass


def test_how_to_load_it_by_hand_names_the_file(trace):
    text = " ".join(explain_by_hand(trace))
    assert str(trace) in text
    assert "chrome://tracing" in text


def test_a_browser_is_opened_and_what_it_will_ask_is_told_first(trace, monkeypatch, capsys):
    told, fetched = [], []

    def browser(link):
        """A browser that returns at once and fetches afterwards, as they do."""
        told.append(capsys.readouterr().out)
        url = parse_qs(urlsplit(link).fragment.removeprefix("!/?"))["url"][0]
        threading.Thread(target=lambda: fetched.append(urllib.request.urlopen(url).read())).start()
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    open_trace(trace, port=0)
    assert PERMISSION in told[0]
    assert capsys.readouterr().out == "Perfetto has loaded the trace.\n"


def test_without_a_browser_it_is_told_how_to_do_it_by_hand(trace, monkeypatch, capsys):
    monkeypatch.setattr("webbrowser.open", lambda link: False)
    open_trace(trace, port=0)
    shown = capsys.readouterr().out
    assert "No browser could be opened here" in shown
    assert all(line in shown for line in explain_by_hand(trace))
