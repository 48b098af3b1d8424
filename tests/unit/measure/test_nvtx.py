"""A server as nsys sees it: what it marks becomes NVTX ranges within the captured window, and what
is run under nsys loads it.
"""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.kinds.http_server import nvtx
from bottleneck_lab.measure.kinds.registry import kind_of


@pytest.fixture
def marked(monkeypatch):
    """What NVTX is told, in order."""
    calls = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("end"))
    return calls


@pytest.fixture
def window(monkeypatch):
    """The captured window, closed: an event."""
    monkeypatch.setattr(nvtx, "_shown", threading.Event())
    return nvtx._shown


def test_only_parts_that_begin_within_the_window_are_marked(marked, window):
    with nvtx.Range("before"):
        window.set()
        with nvtx.Range("preprocess"):
            pass
        with nvtx.Range("infer"):
            window.clear()
        with nvtx.Range("after"):
            pass
    assert marked == ["preprocess", "end", "infer", "end"]


def test_a_function_is_marked_each_time_it_is_called(marked, window):
    @nvtx.Range("preprocess", "of a picture")
    def work(depth):
        return work(depth - 1) if depth else "done"

    window.set()
    assert work(1) == "done"
    assert marked == ["preprocess", "preprocess", "end", "end"]


def test_the_window_is_open_for_as_long_as_it_is_shown(window, monkeypatch):
    slept = []
    monkeypatch.setattr(
        nvtx.time, "sleep", lambda seconds: slept.append((seconds, window.is_set()))
    )
    nvtx.show(4.0)
    assert slept == [(4.0, True)]
    assert not window.is_set()


@pytest.fixture
def unmarked(monkeypatch):
    """A process that nobody has marked, whatever a test does to it."""
    monkeypatch.setattr(torch.profiler, "record_function", torch.profiler.record_function)
    monkeypatch.setenv(nvtx.VARIABLE, "")
    monkeypatch.delenv(nvtx.VARIABLE)


def test_a_server_and_what_it_starts_mark_what_they_mark_for_torch(unmarked, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert not nvtx.wanted()
    nvtx.mark()
    assert torch.profiler.record_function is nvtx.Range
    assert nvtx.wanted(), "in this process, and in those that inherit its environment"


def test_a_pytorch_without_nvtx_says_so(unmarked, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="without NVTX"):
        nvtx.mark()


def test_nsys_runs_a_server_under_load_and_other_tools_say_that_they_cannot():
    lab = find_lab("past-the-plateau")
    kind = kind_of(lab)
    assert (
        kind.program(lab, "virtual", "nsys")[-1]
        == "bottleneck_lab.measure.kinds.http_server.under_load"
    )
    for tool in ("ncu", "sanitizer", "memory"):
        with pytest.raises(
            UsageError, match=f"`--tool {tool}` does not capture a server under load"
        ):
            kind.program(lab, "cuda", tool)
    assert kind.program(lab, "virtual") == (sys.executable, "-u", "serve.py")
