"""What a worker may do and what becomes of it, each by a learner's file that tries."""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from bottleneck_lab.measure import machine
from bottleneck_lab.measure.channel.session import CallSession
from bottleneck_lab.measure.channel.wire import Kind
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.sandbox import pid1, process
from bottleneck_lab.measure.sandbox.process import Limits, Paths

from ...processes import lives, soon
from ...tools import NO_SANDBOX

pytestmark = pytest.mark.long
LIMITS = Limits(
    start_s=10, call_s=3, total_s=30, memory_bytes=300 << 20, processes=20, file_bytes=10 << 20, scratch_bytes=20 << 20
)


def start(context, code: str, role="learner", limits=LIMITS) -> CallSession:
    context.submission.mkdir(exist_ok=True)
    (context.submission / "entry.py").write_text(textwrap.dedent(code), encoding="utf-8")
    return CallSession.start(context, role, context.submission, "entry.py", limits)


def fault(context, code: str, *inputs) -> LearnerFault:
    with pytest.raises(LearnerFault) as caught, start(context, code) as session:
        session.call(list(inputs))
    return caught.value


def test_an_answer_comes_back_as_it_was_sent(context):
    code = "def load(device):\n    return lambda a, text, n: (a * n, text.upper())"
    with start(context, code) as session:
        seconds, (array, text) = session.call([np.arange(4.0), b"abc", 2])
    assert array.tolist() == [0, 2, 4, 6]
    assert text == b"ABC"
    assert seconds > 0


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        ("def load(device:\n    pass", "crashed", "entry.py, line 1"),
        ("raise RuntimeError('at import')", "crashed", "entry.py, line 1"),
        ("def load(device):\n    return lambda: 1 / 0", "crashed", "line 2, in <lambda>: return lambda: 1 / 0"),
        ("x = 1", "crashed", "load"),
        ("import os\ndef load(device):\n    return lambda: os._exit(0)", "crashed", "exited with status 0"),
        ("import os\ndef load(device):\n    return lambda: os.kill(os.getpid(), 9)", "crashed", "SIGKILL"),
        ("import sys\ndef load(device):\n    return lambda: sys.exit('bye')", "crashed", "bye"),
        ("def load(device):\n    def spin():\n        while True: pass\n    return spin", "timed out", "no answer within 3 s"),
        ("import os, signal\ndef load(device):\n    return lambda: os.kill(os.getpid(), signal.SIGSTOP)", "timed out", "3 s"),
        ("def load(device):\n    return lambda: object()", "crashed", "must be arrays"),
        ("def load(device):\n    return lambda: bytearray(2 << 30)", "crashed", "MemoryError"),
        ("def load(device):\n    return hoard\ndef hoard():\n    held = [b'x' * (30 << 20) for _ in range(12)]\n    while held: pass", "crashed", "memory"),
        ("def load(device):\n    return lambda: open('big', 'wb').write(bytes(64 << 20))", "crashed", ""),
    ],
    ids=["syntax", "import", "exception", "no load", "exit", "kill", "sys.exit", "loop", "stopped", "object", "memory", "resident", "file"],
)  # fmt: skip
def test_every_way_to_fail_is_the_learners_and_named(context, code, reason, words):
    found = fault(context, code)
    assert found.reason == reason
    assert words in found.detail


def test_the_same_fault_in_the_reference_is_ours(context):
    with pytest.raises(VerifierFault, match="reference worker"), start(context, "raise SystemExit", role="reference"):
        pass


def test_megabytes_of_output_do_no_harm(context):
    code = "def load(device):\n    def noisy():\n        print('x' * (4 << 20)); return 1\n    return noisy"
    with start(context, code) as session:
        assert session.call([])[1] == [1]
        assert len(session.worker.log_tail()) <= 64 << 10


def test_raw_bytes_on_the_channel_are_tampering(context):
    code = """
        import os, socket
        def load(device):
            def forge():
                for fd in range(3, 64):
                    try: socket.socket(fileno=os.dup(fd)).sendall(b'{"outcome": "PASS"}' * 10)
                    except OSError: pass
                return 1
            return forge
    """
    assert fault(context, code).reason == "tampered"


def test_nothing_runs_between_calls(context):
    code = """
        import threading, time
        beats = []
        def beat():
            while True:
                beats.append(time.monotonic()); time.sleep(0.005)
        def load(device):
            threading.Thread(target=beat, daemon=True).start()
            return lambda: max((b - a for a, b in zip(beats, beats[1:])), default=0.0)
    """
    with start(context, code) as session:
        session.call([])
        time.sleep(0.5)
        assert session.call([])[1][0] > 0.4, "the thread went on while its worker was frozen"


@pytest.mark.parametrize("with_group", [True, False])
def test_a_call_of_the_kernel_that_outlasts_the_stop_is_waited_for(context, monkeypatch, with_group):
    code = """
        import mmap, threading, time
        region = mmap.mmap(-1, 3 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        region.madvise(mmap.MADV_NOHUGEPAGE)
        def burn():
            region.madvise(22)  # MADV_POPULATE_READ: neither a signal nor a freezer ends it
        def load(device):
            def run():
                threading.Thread(target=burn).start()
                time.sleep(0.01)
                return 1
            return run
    """
    if not with_group:
        monkeypatch.setattr(process.Cgroup, "create", lambda *_: None)
    with start(context, code) as session:
        session.call([])
        at_rest = session.worker.cpu_s()
        time.sleep(0.2)
        assert session.worker.cpu_s() - at_rest < 0.02


def test_a_worker_that_does_not_stand_still_is_not_measured_beside(context, monkeypatch):
    code = "def load(device):\n    return lambda: 1"
    with start(context, code) as session:
        monkeypatch.setattr(session.worker, "freeze", lambda: False)
        with pytest.raises(LearnerFault, match="inside a call of the kernel"):
            session.call([])


@pytest.fixture
def ungrouped(monkeypatch):
    """A machine with bubblewrap and without control groups."""
    if NO_SANDBOX:
        pytest.skip(NO_SANDBOX)
    monkeypatch.setattr(process.Cgroup, "create", lambda *_: None)


CHAIN = """
import mmap, os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them itself: their time is nobody's
with open("counter", "wb") as file:
    file.write(bytes(8))
with open("counter", "r+b") as file:
    counter = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
def load(device):
    def call():
        end = time.monotonic() + 5
        if not os.fork():
            for _ in range(400):  # a process that is always another one, and here for a moment
                counter[0] += 1
                if time.monotonic() > end or os.fork():
                    os._exit(0)
            os._exit(0)
        time.sleep(0.05)
        return counter[0]
    return call
"""


def test_a_chain_of_short_lived_processes_stands_still_and_goes_on_when_told(context, ungrouped):
    limits = replace(LIMITS, memory_bytes=2 << 30, processes=100)  # links of several chains at once
    with start(context, CHAIN, limits=limits) as session:
        for _ in range(5):
            session.call([])
            counter = np.memmap(context.submission / "counter", np.int64, "r")
            stopped_at = int(counter[0])
            time.sleep(0.2)
            assert counter[0] == stopped_at, "the chain went on while its worker was frozen"
            assert not session.worker.ran_while_frozen()
            assert session.worker._woken == 0
            session.worker.thaw()
            assert soon(lambda counter=counter, at=stopped_at: counter[0] > at), "there was no chain"
            assert session.worker.freeze()


def test_a_scan_for_processes_ends_even_if_there_is_always_another(context, unheld, monkeypatch):
    monkeypatch.setattr(process, "FREEZE_S", 0.2)
    with start(context, "def load(device):\n    return lambda: 1") as session, monkeypatch.context() as always:
        numbers = iter(range(1 << 30))
        always.setattr(
            session.worker, "tree", lambda: [type("Other", (), {"pid": next(numbers), "suspend": int, "resume": int})]
        )
        began = time.monotonic()
        assert not session.worker.freeze()
        assert time.monotonic() - began < 5
        session.worker._frozen.clear()


@pytest.mark.parametrize(("share", "rests"), [(0.0, True), (1.0, False)])
def test_waiting_for_a_core_to_stop_on_is_not_going_on(monkeypatch, share, rests):
    """What counts is the share of the time in which they run. Nor is it their fault where whoever looks was held up."""
    rest, looks = pid1._Rest({}, "1"), []

    def look():
        time.sleep(0.1)
        looks.append(1)
        return rest if len(looks) > 4 else None

    monkeypatch.setattr(pid1, "_signal_all", lambda number: None)
    monkeypatch.setattr(pid1, "_ran_s", lambda: share * 0.1 * len(looks))
    monkeypatch.setattr(pid1._Rest, "now", look)
    assert pid1._stop(0.2) is (rest if rests else None)


def test_what_neither_runs_nor_stops_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(pid1, "_signal_all", lambda number: None)
    monkeypatch.setattr(pid1, "_ran_s", lambda: 0.0)
    monkeypatch.setattr(pid1._Rest, "now", lambda: None)
    began = time.monotonic()
    assert pid1._stop(0.1) is None
    assert time.monotonic() - began >= 0.1 * pid1.IN_ALL


WAKING = """
import os
def load(device):
    def call():
        if not os.fork():
            for _ in range(3):  # each wakes the others, for it is never stopped itself by what it sends
                os.fork()
            end = os.times().elapsed + 4
            while os.times().elapsed < end:
                os.kill(-1, 18)
            os._exit(0)
        return 1
    return call
"""


def test_the_time_in_which_a_worker_is_frozen_is_not_its_own(context):
    with start(context, "def load(device):\n    return lambda: 1") as session:
        worker = session.worker
        worker.limits = replace(LIMITS, total_s=time.monotonic() - worker.started + 1.0)
        time.sleep(1.2)
        session.call([])
        assert worker.excess() is None
        worker.thaw()
        time.sleep(1.2)
        assert worker.excess() == ("timed out", f"ran longer than {worker.limits.total_s:.0f} s in all")


def test_who_wakes_one_another_are_stopped_together(context, ungrouped):
    with start(context, WAKING) as session:
        session.call([])
        before_s = session.worker._on_cpu_s()
        time.sleep(0.3)
        assert session.worker._on_cpu_s() - before_s < 0.02
        assert not session.worker.ran_while_frozen()
        assert session.worker._woken == 0


@pytest.mark.parametrize(
    "does", ["pass", "time.sleep(0.01); os.fork() or os._exit(0); os.wait()"], ids=["spins", "forks"]
)
def test_who_is_woken_all_the_same_is_found_by_what_it_did(context, ungrouped, does):
    code = f"""
import os, threading, time
def work():
    while True:
        {does}
def load(device):
    threading.Thread(target=work, daemon=True).start()
    return lambda: 1
"""
    with start(context, code) as session, pytest.raises(LearnerFault, match="went on running while it was stopped"):
        woken_between_calls(session)


def call_until_it_ends(session: CallSession) -> None:
    """What is killed may answer once more before it is dead."""
    while True:
        session.call([])


def woken_between_calls(session: CallSession) -> None:
    """More often than is forgiven: a busy machine may let it run too little to be seen."""
    for _ in range(10 * process.FROZEN_FORGIVEN):
        session.call([])
        for other in session.worker.tree():
            with suppress(psutil.NoSuchProcess):  # woken by its child's end, it may be gone by now
                other.send_signal(signal.SIGCONT)
        time.sleep(0.1)


def test_what_holds_a_worker_is_not_charged_to_it(context, ungrouped):
    with start(context, "def load(device):\n    return lambda: 1") as session:
        session.call([])
        before_s = session.worker.cpu_s()
        first = session.worker._handle.children()[0].children()[0]
        used_s = sum(first.cpu_times()[:2])
        while sum(first.cpu_times()[:2]) - used_s < 0.1:  # it looks at all threads each time
            session.worker.ran_while_frozen()
        assert session.worker.cpu_s() - before_s < 0.05


@pytest.mark.parametrize(
    "attack",
    [
        "[tries(os.kill, 1, number) for number in range(1, 65)]",
        "[tries(open, f'/proc/1/fd/{number}', 'wb', 0) for number in range(64)]",
        "[tries(open, '/proc/1/mem', 'r+b', 0), tries(os.listdir, '/proc/1/map_files'), tries(libc.ptrace, 16, 1, 0, 0)]",
        "[libc.syscall(438, os.pidfd_open(1), number, 0) for number in range(64)]",
        "[os.setpriority(os.PRIO_PROCESS, 1, 19), os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))]",
        "[tries(resource.prlimit, 1, resource.RLIMIT_NOFILE, (0, 0)) and 3]",
    ],
    ids=["signals", "descriptors", "memory", "pidfd_getfd", "priority", "limits"],
)
def test_the_sandboxs_first_process_cannot_be_touched(context, ungrouped, attack):
    code = f"""
import ctypes, os, resource
libc = ctypes.CDLL(None)
def tries(what, *arguments):
    try:
        return what(*arguments)
    except OSError:
        return None
def load(device):
    def call():
        taken = {attack}
        return sum(isinstance(one, int) and one > 2 or hasattr(one, "write") for one in taken)
    return call
"""
    with start(context, code) as session:
        for _ in range(3):
            assert session.call([])[1] == [0]
        assert not session.worker.ran_while_frozen()


@pytest.mark.parametrize("who", ["first process", "sandbox", "supervisor"])
def test_a_killed_first_process_leaves_nothing(context, ungrouped, who):
    code = f"def load(device):\n    return lambda: 1\n{DETACH}"
    with start(context, code) as session:
        session.call([])
        supervisor = session.worker._handle
        sandbox = supervisor.children()[0]
        {"supervisor": supervisor, "sandbox": sandbox, "first process": sandbox.children()[0]}[who].kill()
        with pytest.raises(LearnerFault) as caught:
            call_until_it_ends(session)
    assert caught.value.reason == "crashed"
    assert not left_with(context.janitor.folder)


REFUSED = """
import ctypes, errno, fcntl, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
def refused(what):
    try:
        what()
    except OSError as error:
        return error.errno == errno.ENOSYS
    return False
def timer():
    if libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) != 0:
        raise OSError(ctypes.get_errno(), "timer_create")
def load(device):
    ours, _ = os.pipe()
    here = os.open(".", os.O_RDONLY)
    return lambda: (
        int(refused(timer)),
        int(refused(lambda: fcntl.fcntl(ours, fcntl.F_SETSIG, signal.SIGCONT))),
        int(refused(lambda: fcntl.fcntl(here, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT))),
        fcntl.fcntl(ours, fcntl.F_GETFD),
        resource.getrlimit(resource.RLIMIT_SIGPENDING)[1],
    )
"""


def test_nothing_of_the_kernels_wakes_a_worker_by_a_signal(context):
    with start(context, REFUSED) as session:
        assert session.call([])[1] == [1, 1, 1, fcntl.FD_CLOEXEC, process.MAX_SIGNALS]


def test_time_spent_waiting_for_a_core_is_told(context):
    code = """
import os, time
def load(device):
    def run(x):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        end = time.monotonic() + 0.4
        child = os.fork()
        while time.monotonic() < end:
            pass
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        return x
    return run
"""
    with start(context, code) as session:
        before = session.worker.waited_s()
        session.call([1])
        assert session.worker.waited_s() - before > 0.05


def test_children_and_their_children_end_with_the_worker(context):
    code = """
        import subprocess, sys
        def load(device):
            sleeper = ("import subprocess, sys, time; nap = 'import time; time.sleep(987)'; "
                       "subprocess.Popen([sys.executable, '-c', nap], start_new_session=True); time.sleep(987)")
            subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
            return lambda: 1
    """
    with start(context, code) as session:
        session.call([])
        group = session.worker.tree()
        assert len(group) >= 2
    assert not any(map(lives, group))


DETACH = """
import os, signal, time
for _ in range(3):
    if not os.fork():
        for number in (1, 2, 3, 13, 15, 18):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        if not os.fork():
            os.setsid()
            time.sleep(987)
        os._exit(0)
    os.wait()
"""
"""Leaves three processes behind that are nobody's: their parents have ended, their sessions are their own."""


def left_with(mark) -> list[list[str]]:
    """Command lines of anybody's processes whose environment has the mark in it."""
    found = []
    for other in psutil.process_iter():
        try:
            if lives(other) and any(str(mark) in value for value in other.environ().values()):
                found.append(other.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.fixture
def unheld(monkeypatch):
    """A machine without bubblewrap and control groups."""
    monkeypatch.setattr(process, "bubblewrap", lambda: None)
    monkeypatch.setattr(process.Cgroup, "create", lambda *_: None)


def test_who_detaches_twice_is_seen_stopped_charged_and_ended(context, unheld):
    code = f"def load(device):\n    return lambda: 1\n{DETACH}".replace("time.sleep(987)", "exec('while True: pass')")
    with start(context, code) as session:
        session.call([])
        before_s = session.worker.cpu_s()
        assert len(session.worker.tree()) == 4
        time.sleep(0.3)
        assert session.worker.cpu_s() - before_s < 0.1, "they went on while their worker was frozen"
        session.worker.thaw()
        assert soon(lambda: session.worker.cpu_s() - before_s > 0.1)
        assert session.worker.freeze()
    assert not left_with(context.janitor.folder)


def test_the_time_of_those_who_came_and_went_is_the_workers(context, unheld):
    burn = DETACH.replace("time.sleep(987)", "while time.process_time() < 0.1: pass")
    code = f"""
import os
def load(device):
    def run():
        ended, lives = os.pipe()
        exec({burn!r})
        os.close(lives)
        return len(os.read(ended, 1))  # once the last of them has gone
    return run
"""
    with start(context, code, limits=replace(LIMITS, call_s=20)) as session:
        before_s = session.worker.cpu_s()
        session.call([])
        assert soon(lambda: session.worker.cpu_s() - before_s > 0.2)
        assert soon(lambda: len(session.worker.tree()) == 1)


RUNNING = """
import os, time
def load(device):
    def run():
        end = time.monotonic() + 15
        if not os.fork():
            while time.monotonic() < end:  # a process that is always another one
                if os.fork():
                    os._exit(0)
                os.setsid()
            os._exit(0)
        return 1
    return run
"""
BOMB = """
import os, time
most = len(os.listdir("/proc")) + 150
def load(device):
    def bomb():
        end = time.monotonic() + 15
        if not os.fork():
            while time.monotonic() < end:
                if len(os.listdir("/proc")) < most and not os.fork():
                    os.setsid()
            os._exit(0)
        return 1
    return bomb
"""
"""Both end by themselves, should they not be ended."""


@pytest.mark.parametrize("code", [RUNNING, BOMB], ids=["runs from one process to the next", "bomb"])
def test_nobody_runs_away_from_the_supervisor(context, unheld, code):
    worker = start(context, code)
    worker.worker.thaw()
    worker.channel.send(Kind.CALL)
    time.sleep(0.3)
    worker.close()
    assert worker.worker.process.returncode > 0, "the supervisor had to be killed"
    assert not left_with(context.janitor.folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_attacks_the_supervisor_fails_and_leaves_nothing(context, unheld, monkeypatch, number):
    monkeypatch.setattr(process, "END_S", 1)
    attack = (
        f"{DETACH}\ndef load(device):\n    return lambda: (os.kill(os.getppid(), {int(number)}), time.sleep(1), 1)[2]"
    )
    with start(context, attack) as session:
        if number is signal.SIGKILL:
            with pytest.raises(LearnerFault, match="SIGKILL"):
                session.call([])
        else:
            session.call([])
    assert not left_with(context.janitor.folder)


def test_a_sandbox_that_died_is_not_waited_for_though_a_child_of_it_holds_the_channel(context, monkeypatch):
    code = "import time\ndef load(device):\n    return lambda: time.sleep(60)"
    with start(context, code) as session, monkeypatch.context() as dead:
        dead.setattr(session.worker.process, "poll", lambda: -9)
        dead.setattr(session.worker.process, "returncode", -9)
        with pytest.raises(LearnerFault) as raised:
            session.call([])
    assert raised.value.reason == "crashed"
    assert "SIGKILL" in raised.value.detail


def test_a_fork_bomb_is_the_learners_fault_and_ends(context):
    code = """
        import subprocess, sys, time
        def load(device):
            def bomb():
                kids = [subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(987)']) for _ in range(40)]
                time.sleep(60)
            return bomb
    """
    found = fault(context, code)
    assert found.reason == "crashed"


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_loader_workers_send_batches_however_long_the_path_of_temporary_files_is(request, tmp_path, monkeypatch):
    folder = tmp_path / ("temporary" * 9)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    code = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        def load(device):
            loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=4, num_workers=1)
            return lambda: sum(int(batch.sum()) for (batch,) in loader)
    """
    limits = replace(LIMITS, memory_bytes=2 << 30, call_s=20, start_s=30, total_s=60)
    with start(request.getfixturevalue("context"), code, limits=limits) as session:
        assert session.call([])[1] == [28]


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_the_sandbox_hides_the_home_the_network_and_the_system(context, tmp_path):
    secret = tmp_path / "home" / "secret.key"
    secret.parent.mkdir()
    secret.write_text("key")
    code = """
        import os, socket
        def tries(what):
            try: what(); return 1
            except OSError: return 0
        def load(device):
            return lambda secret, port: (
                tries(lambda: open(secret)), tries(lambda: open('/usr/new', 'w')), tries(lambda: os.listdir(os.path.dirname(secret))),
                tries(lambda: socket.create_connection(('127.0.0.1', port), 1)), len([p for p in os.listdir('/proc') if p.isdigit()]))
    """
    with __import__("socket").create_server(("127.0.0.1", 0)) as server, start(context, code) as session:
        secret_read, system_written, home_listed, connected, processes = session.call(
            [str(secret), server.getsockname()[1]]
        )[1]
    assert (secret_read, system_written, home_listed, connected) == (0, 0, 0, 0)
    assert processes < 10


def test_a_worker_on_a_gpu_has_the_verifier_s_choice_of_gpu_its_driver_and_its_compiler(tmp_path, monkeypatch):
    driver, toolkit = tmp_path / "driver", tmp_path / "toolkit"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{driver}::relative")
    monkeypatch.setattr(process, "find_program", lambda _name: toolkit / "bin" / "nvcc")
    own = {"CUDA_VISIBLE_DEVICES": "3", "LD_LIBRARY_PATH": str(driver), "CUDA_HOME": str(toolkit)}
    on_gpu, on_cpu = (process.worker_environment(Paths(tmp_path), 1, gpu=gpu) for gpu in (True, False))
    assert {name: on_gpu.get(name) for name in own} == own
    assert not own.keys() & on_cpu.keys()


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
@pytest.mark.parametrize("gpu", [True, False])
def test_the_sandbox_shows_a_driver_that_lies_elsewhere_where_there_is_a_gpu(tmp_path, monkeypatch, gpu):
    driver, scratch = tmp_path / "driver", tmp_path / "scratch"
    driver.mkdir()
    scratch.mkdir()
    (driver / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    command = process.sandboxed(["ls", str(driver)], Paths(scratch), 1 << 30, gpu=gpu)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == (["libcuda.so.1"] if gpu else [])


def test_the_gpu_of_a_verdict_is_the_one_that_is_used(monkeypatch):
    """The driver's first is another than NVML's where CUDA_VISIBLE_DEVICES says so."""

    def says(value):
        return lambda place, *_: setattr(getattr(place, "_obj", place), "value", value)

    driver = SimpleNamespace(
        cuInit=lambda _flags: 0,
        cuDeviceGetCount=says(1),
        cuDeviceGetName=says(b"The fourth"),
        cuDeviceGetPCIBusId=says(b"0000:44:00.0"),
    )
    nvml = Mock(
        nvmlDeviceGetHandleByPciBusId=lambda address: address.decode(),
        nvmlDeviceGetName=lambda handle: f"GPU at {handle}",
    )
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _name: driver)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert machine.cuda_devices() == [("The fourth", "0000:44:00.0")]
    assert machine._gpu()["gpu"] == "GPU at 0000:44:00.0"


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_what_is_hidden_is_empty_and_no_memory_to_write_to(tmp_path):
    hidden, scratch = tmp_path / "hidden", tmp_path / "scratch"
    for folder in (hidden, scratch):
        folder.mkdir()
    (hidden / "solution.py").touch()
    paths = Paths(scratch, [tmp_path], [hidden])
    for command, output in ((["ls", "-A", str(hidden)], b""), (["touch", str(hidden / "new")], None)):
        done = subprocess.run(process.sandboxed(command, paths, 1 << 28, gpu=False), capture_output=True, check=False)
        assert (done.stdout if done.returncode == 0 else None) == output


VERIFIER = """
import sys, time
from dataclasses import replace
from pathlib import Path
import os
import msgspec
os.environ["BOTTLENECK_LAB_CONTENT"] = sys.argv[1]
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.sandbox import process
from bottleneck_lab.measure.verifier import check_lab
if sys.argv[3] != "held":
    process.Cgroup.create = lambda *_: None
if sys.argv[3] == "unheld":
    process.bubblewrap = lambda: None
lab = find_lab("running-mean")
device = lab.spec.devices["cpu"]
quick = device.settings | {"self_test_margin": 50.0, "judge": {"samples": [4000, 6000]}}
devices = {"cpu": msgspec.structs.replace(device, settings=quick)}
lab = msgspec.structs.replace(lab, spec=msgspec.structs.replace(lab.spec, devices=devices))
check_lab(lab, Path(sys.argv[2]), "cpu", data=Path(sys.argv[2]), home=Path(sys.argv[2]),
          progress=lambda doing, share: print(doing, flush=True))
"""


PHASES = ["starting the reference", "loading your code", "comparing", "measuring"]
ENDS = [
    *((signal.SIGKILL, phase, "held") for phase in PHASES),
    (signal.SIGINT, "measuring", "held"),
    (signal.SIGTERM, "loading your code", "held"),
    (signal.SIGKILL, "measuring", "ungrouped"),
    (signal.SIGKILL, "measuring", "unheld"),
    (signal.SIGINT, "measuring", "unheld"),
]
"""How the verifier ends, in which phase, and what holds the workers."""


@pytest.mark.parametrize(("how", "phase", "held"), ENDS)
def test_a_verifier_that_is_killed_leaves_nothing_behind(workspace, tmp_path, how, phase, held):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    entry = workspace / "smooth.py"
    entry.write_text(entry.read_text() + DETACH)
    example = str(Path(__file__).parents[3] / "docs" / "example")
    verifier = subprocess.Popen(
        [sys.executable, "-c", VERIFIER, example, str(workspace), held],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    while phase not in verifier.stdout.readline():
        assert verifier.poll() is None
    time.sleep(0.05)
    family = psutil.Process(verifier.pid).children(recursive=True)
    assert family
    verifier.send_signal(how)
    verifier.wait(timeout=20)
    verifier.stdout.close()
    assert soon(lambda: not any(map(lives, family)))
    assert soon(lambda: not left_with(temporary))
    assert not list(temporary.iterdir())


def test_what_a_worker_leaves_in_its_folder_is_bounded_in_bytes_files_and_depth(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "MAX_FILES", 50)
    (tmp_path / "some").write_bytes(bytes(8192))
    assert process.too_much_below(tmp_path, 8192) is None
    assert "GiB" in process.too_much_below(tmp_path, 8191)
    deep = tmp_path.joinpath(*["d"] * (process.MAX_DEPTH + 1))
    monkeypatch.setattr(process, "MAX_FILES", 500)
    deep.mkdir(parents=True)
    assert "deep" in process.too_much_below(tmp_path, 8192)
    monkeypatch.setattr(process, "MAX_FILES", 50)
    assert "50 files" in process.too_much_below(tmp_path, 8192)


def test_blocks_count_as_well_as_length_and_a_locked_folder_is_too_much(tmp_path, monkeypatch):
    with (tmp_path / "promised").open("wb") as file:
        keeps_its_size = 1
        assert ctypes.CDLL(None).fallocate(file.fileno(), keeps_its_size, ctypes.c_long(0), ctypes.c_long(1 << 20)) == 0
    assert (tmp_path / "promised").stat().st_size == 0
    assert "GiB" in process.too_much_below(tmp_path, 1 << 19)
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError))
    assert "look into" in process.too_much_below(tmp_path, 1 << 30)


def test_a_path_too_long_to_be_opened_is_too_much(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("d" * 250, dir_fd=folder)
        above, folder = folder, os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    assert "longer than any" in process.too_much_below(tmp_path, 1 << 30)


def test_a_process_or_a_thread_that_ends_while_it_is_looked_at_is_passed_over(monkeypatch):
    real, gone = Path.iterdir, Path("/proc/self/task/1")
    listed = {
        "/proc/1/task": Mock(side_effect=FileNotFoundError),
        "/proc/2/task": lambda: [gone, *real(Path("/proc/self/task"))],
    }
    monkeypatch.setattr(Path, "iterdir", lambda folder: listed[str(folder)]())
    worker = Mock(tree=lambda: [Mock(pid=1), Mock(pid=2)])
    told = list(process.Worker._of_threads(worker, "comm"))
    assert Path("/proc/self/comm").read_text() in told


def test_files_without_a_name_count_once_and_each_for_what_it_lies_in(tmp_path):
    pid, before = [os.getpid()] * 2, process._nameless_bytes([os.getpid()], in_memory=False)
    held = [(tmp_path / name).open("wb") for name in ("removed", "removed too")]
    for file in held:
        Path(file.name).unlink()
        file.write(bytes(1 << 20))
        file.flush()
    assert process._nameless_bytes(pid, in_memory=False) - before == 2 << 20
    in_memory = process._nameless_bytes(pid, in_memory=True)
    memory = os.memfd_create("nameless")
    os.write(memory, bytes(1 << 20))
    assert process._nameless_bytes(pid, in_memory=True) - in_memory == 1 << 20
    assert process._nameless_bytes(pid, in_memory=False) - before == 2 << 20
    os.close(memory)
    for file in held:
        file.close()


@pytest.mark.parametrize(
    "fill",
    ["os.write(file, bytes(1 << 20))", "libc.fallocate(file, 1, ctypes.c_long(0), ctypes.c_long(4 << 20))"],
    ids=["written", "promised"],
)
def test_a_disk_that_is_filled_by_files_without_a_name_ends_the_worker(context, fill):
    code = f"""
        import ctypes, os, time
        libc, held = ctypes.CDLL(None), []
        def load(device):
            def call():
                while True:
                    file = os.open(".", os.O_TMPFILE | os.O_RDWR)
                    held.append(file)
                    {fill}
                    time.sleep(0.01)
            return call
        """
    error = fault(context, code)
    assert error.reason == "crashed"
    assert "more than 0.0195 GiB" in error.detail
