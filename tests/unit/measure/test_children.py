"""Children whose output is read line by line: however that ends, none of them is left, and no
signal comes before they are known.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from bottleneck_lab.measure.sandbox.children import signals_held, stream
from bottleneck_lab.measure.sandbox.janitor import Janitor

from ...processes import PATIENCE_S, lives, running, soon

STREAMS = """
import signal, sys
from pathlib import Path
from bottleneck_lab.measure.sandbox.children import stream
from bottleneck_lab.measure.sandbox.janitor import Janitor

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with Janitor() as janitor:
    show = lambda line: print(line, end="", flush=True)
    stream(["sh", "-c", "echo $$; sleep 600"], Path("."), janitor, show, {})
"""


@pytest.fixture
def handler():
    """Of SIGTERM, as `lab` has it."""

    def stop(*_):
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, stop)
    yield stop
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("released", [True, False])
def test_a_signal_waits_for_its_release_or_for_the_end(handler, released):
    reached = []

    def begin():
        with signals_held() as release:
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("the process is known")
            if released:
                release()
                reached.append("too far")

    with pytest.raises(SystemExit):
        begin()
    assert reached == ["the process is known"]
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_signal_that_is_ignored_stays_so():
    """A child would inherit anything else."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_held():
        held = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)
    assert held is signal.SIG_IGN


def test_other_threads_need_not_hold_them(handler):
    seen = []

    def hold():
        with signals_held():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [handler]


LIMITS = """
import resource
from bottleneck_lab.measure.sandbox.children import lower_limit

for have, want in ((256, 4096), (256, 100), (resource.RLIM_INFINITY, 1 << 30)):
    what = resource.RLIMIT_NOFILE if have > 0 else resource.RLIMIT_FSIZE
    resource.setrlimit(what, (have, have))
    lower_limit(what, want)
    print(*resource.getrlimit(what))
"""


def test_a_limit_lower_than_ours_stays():
    """As `ulimit -n` or a login node may have set; without privileges it cannot be raised."""
    said = subprocess.run(
        [sys.executable, "-c", LIMITS], check=True, capture_output=True, text=True
    ).stdout
    assert said.split("\n")[:3] == ["256 256", "100 100", f"{1 << 30} {1 << 30}"]


def test_its_status_and_its_lines(tmp_path):
    lines = []
    command = ["sh", "-c", 'echo "$GREETING"; pwd; exit 3']
    with Janitor() as janitor:
        assert stream(command, tmp_path, janitor, lines.append, {"GREETING": "hello"}) == 3
    assert lines == ["hello\n", f"{tmp_path.resolve()}\n"]


def test_what_it_leaves_in_the_background_ends_with_it(tmp_path):
    """Such a process holds the output open: nobody would come back."""
    lines = []
    with Janitor() as janitor:
        assert stream(["sh", "-c", "sleep 600 & echo $!"], tmp_path, janitor, lines.append, {}) == 0
    with suppress(psutil.NoSuchProcess):
        left = psutil.Process(int(lines[0]))
        assert soon(lambda: not lives(left))


def test_a_reader_that_fails_ends_it_at_once(tmp_path):
    """As `lab run | head` does."""
    pids = []

    def read_one(line):
        pids.append(int(line))
        raise BrokenPipeError

    with Janitor() as janitor, pytest.raises(BrokenPipeError):
        stream(["sh", "-c", "echo $$; exec sleep 600"], tmp_path, janitor, read_one, {})
    assert not psutil.pid_exists(pids[0])


def test_sigterm_ends_it_at_once(tmp_path):
    command = [sys.executable, "-c", STREAMS]
    with running(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        child = psutil.Process(int(first.stdout.readline()))
        first.terminate()
        assert first.wait(PATIENCE_S) == 143
    assert soon(lambda: not lives(child))


def test_a_signal_that_interrupts_no_read_is_handled(tmp_path):
    """As one is that comes just before the read: here another thread gets it."""
    elsewhere = (
        "threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(),"
        " signal.SIGTERM)).start()"
    )
    script = STREAMS.replace("with Janitor", f"import threading\n{elsewhere}\nwith Janitor")
    command = [sys.executable, "-c", script]
    with running(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        child = psutil.Process(int(first.stdout.readline()))
        assert first.wait(PATIENCE_S) == 143
    assert soon(lambda: not lives(child))


def test_signals_in_the_first_moments_leave_nothing(tmp_path):
    """One each half millisecond from before the start on."""
    for after_us in range(0, 12_000, 500):
        mark = f"{os.getpid()}-{after_us}"
        script = STREAMS.replace('"echo $$; sleep 600"', f'"sleep 600; :", "{mark}"').replace(
            "with Janitor", 'print("starts", flush=True)\nwith Janitor'
        )
        command = [sys.executable, "-c", script]
        with running(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
            first.stdout.readline()
            time.sleep(after_us / 1e6)
            first.terminate()
            assert first.wait(PATIENCE_S) == 143
        assert soon(lambda mark=mark: not bearing(mark))


def bearing(mark):
    """The processes with this word in their command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if mark in (process.info["cmdline"] or [])
    ]
