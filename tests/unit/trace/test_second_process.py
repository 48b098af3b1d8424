"""The other process: it works, it may fail, and it never outlives the one that started it."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from bottleneck_lab.trace.fast import kineto_parallel, second_process
from bottleneck_lab.trace.fast.second_process import fork, spawn
from bottleneck_lab.trace.kineto.reader import read_kineto
from bottleneck_lab.trace.nsys.claims import SharedExport

from ...processes import PATIENCE_S, another_thread, lives, running, soon
from .test_kineto import EVENTS, laid_out, same

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.long
WAITS = """
import sys, tempfile, time
from bottleneck_lab.trace.fast import second_process

def wait(shared, *_):
    shared.write(b"x")
    shared.flush()
    time.sleep(600)

if __name__ == "__main__":
    sys.modules["waits"] = sys.modules["__main__"]
    wait.__module__ = "waits"
    with tempfile.TemporaryFile() as shared:
        process = getattr(second_process, sys.argv[1])(wait, shared)
        while not shared.seek(0, 2):
            time.sleep(0.005)
        print("started", flush=True)
        process.wait()
"""


def write(shared, *arguments):
    """What the other process does here."""
    shared.write(" ".join([str(os.getpid()), *map(str, arguments)]).encode())
    shared.flush()


def fail(*_):
    raise ValueError("no")


@pytest.fixture
def importable(monkeypatch):
    """A fresh interpreter finds this module by its name."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for work in (write, fail):
        monkeypatch.setattr(
            work, "__module__", ".".join(Path(__file__).relative_to(ROOT).with_suffix("").parts)
        )


@pytest.mark.alone
@pytest.mark.parametrize("way", [fork, spawn])
def test_it_works_or_fails_in_a_process_of_its_own(importable, way):
    with tempfile.TemporaryFile() as shared:
        process = way(write, shared, "a", 7)
        assert process.wait() == 0
        process.kill()  # too late: does nothing
        shared.seek(0)
        pid, *arguments = shared.read().split()
        assert (int(pid) != os.getpid(), arguments) == (True, [b"a", b"7"])
        assert way(fail, shared).wait() == 1


def test_a_process_with_threads_is_not_forked():
    with tempfile.TemporaryFile() as shared, another_thread():
        assert fork(write, shared) is None


@pytest.mark.parametrize("outcome", ["beginning", "end"])
def test_threads_that_python_knows_nothing_of_are_seen_and_what_was_begun_is_undone(
    monkeypatch, outcome
):
    if outcome == "end":  # the copy was faster than the look at the threads
        monkeypatch.setattr(second_process._Forked, "kill", second_process._Forked.wait)
    before = set(psutil.Process().children())
    with tempfile.TemporaryFile() as shared, another_thread(known=False):
        shared.write(b"before ")
        shared.flush()
        assert fork(write, shared, "all") is None
        assert shared.tell() == shared.seek(0, os.SEEK_END) == len(b"before ")
    assert set(psutil.Process().children()) == before


@pytest.fixture
def no_room(monkeypatch):
    """As at the limit of processes."""

    def refuse(*_args, **_options):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("threading.active_count", lambda: 1)
    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.usefixtures("no_room")
def test_where_there_is_no_room_for_another_process_the_first_one_works_alone(tmp_path):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with tempfile.TemporaryFile() as shared:
        assert fork(write, shared) is None
        assert spawn(write, shared) is None
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    path = tmp_path / "trace.json"
    path.write_bytes(laid_out(EVENTS * 30))
    with path.open("rb") as file:
        assert same(kineto_parallel.load_in_parallel(path), read_kineto(file.read, path))
    shared = SharedExport(write, path)
    assert shared.read_by_the_other(("table", 7)) is None
    shared.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_it_ends_with_the_first_process(tmp_path, way, number):
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(script), way]
    with running(command, stdout=subprocess.PIPE, env=environment) as first:
        assert first.stdout.readline() == b"started\n"
        (second,) = psutil.Process(first.pid).children()
        first.send_signal(number)
        first.communicate()
        assert soon(lambda: not lives(second))


def test_an_interrupt_while_a_trace_is_read_leaves_nothing_behind(tmp_path):
    """As Ctrl-C does: both processes get it, and the first one says so as Python does."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    command = [sys.executable, str(script), "fork"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(command, **pipes, start_new_session=True) as first:
        assert first.stdout.readline() == b"started\n"
        (second,) = psutil.Process(first.pid).children()
        os.killpg(first.pid, signal.SIGINT)
        _, errors = first.communicate(timeout=PATIENCE_S)
    assert errors.count(b"KeyboardInterrupt") == 1
    assert soon(lambda: not lives(second))
