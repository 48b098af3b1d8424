"""The limits of a worker, each shown by a learner's file that tries to exceed it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from bottleneck_lab.measure.channel.session import HELD, CallSession
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.sandbox import limits, process, visible, waiting
from bottleneck_lab.measure.sandbox.freezer import of_threads
from bottleneck_lab.measure.sandbox.limits import Limits
from bottleneck_lab.measure.sandbox.visible import Paths

from ...processes import PATIENCE_S, lives, running, soon
from ...tools import NO_SANDBOX

pytestmark = pytest.mark.long
LIMITS = Limits(
    start_s=10,
    call_s=3,
    total_s=30,
    memory_bytes=300 << 20,
    processes=20,
    file_bytes=10 << 20,
    scratch_bytes=20 << 20,
)


def start(
    context, code: str, role="learner", limits=LIMITS, *, wait=True, options=()
) -> CallSession:
    context.submission.mkdir(exist_ok=True)
    (context.submission / "entry.py").write_text(textwrap.dedent(code), encoding="utf-8")
    return CallSession.start(
        context, role, context.submission, "entry.py", limits, wait=wait, options=options
    )


def fault(context, code: str, *inputs) -> LearnerFault:
    with pytest.raises(LearnerFault) as caught, start(context, code) as session:
        session.call(list(inputs))
    return caught.value


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("does not compile", "does not compile"),
        ("forbidden call", "forbidden call"),
        ("wrong output", "wrong output"),
        ("tampered", "crashed"),
        ("", "crashed"),
    ],
)
def test_a_binding_may_say_what_it_refuses_code_for_and_nothing_graver(context, given, reason):
    """`tampered` is for the verifier to say."""
    code = f"""
        class Refused(RuntimeError):
            reason = "{given}"

        def load(device):
            raise Refused("kernel.cpp does not compile: line 3")
        """
    failure = fault(context, code)
    assert failure.reason == reason
    assert "line 3" in failure.detail


def test_a_worker_that_nobody_waits_for_loads_its_code_meanwhile(context):
    with start(context, "def load(device):\n    return lambda n: n + 1", wait=False) as session:
        session.wait_ready()
        assert session.call([1])[1] == [2]


def test_a_worker_that_nobody_waited_for_is_blamed_when_it_is_needed(context):
    with (
        start(context, "1 / 0", wait=False) as session,
        pytest.raises(LearnerFault, match="ZeroDivisionError"),
    ):
        session.wait_ready()


def test_a_held_worker_starts_and_loads_no_code_before_it_may(context):
    code = """
        import pathlib, sys

        pathlib.Path(__file__).with_name("loaded").touch()

        def load(device):
            return lambda: "torch" in sys.modules
        """
    loaded = context.submission / "loaded"
    with start(context, code, wait=False, options=[HELD]) as session:
        time.sleep(1)
        assert not loaded.exists()
        assert session.worker.process.poll() is None
        session.begin()
        assert loaded.exists()
        assert session.call([])[1] == [0], "only a lab on a GPU surely needs PyTorch"


def test_a_held_worker_that_is_gone_before_its_code_loads_is_not_that_codes_fault(context):
    with start(context, "", wait=False, options=[HELD]) as session:
        # Not its supervisor: a sandbox that is still setting up may outlive that.
        while session.worker.process.poll() is None:
            for descendant in session.worker.tree():
                with contextlib.suppress(psutil.NoSuchProcess):
                    descendant.kill()
        with pytest.raises(VerifierFault, match="before it loaded the code to check"):
            session.begin()


def test_an_answer_comes_back_as_it_was_sent(context):
    code = "def load(device):\n    return lambda a, text, n: (a * n, text.upper())"
    with start(context, code) as session:
        seconds, (array, text) = session.call([np.arange(4.0), b"abc", 2])
    assert array.tolist() == [0, 2, 4, 6]
    assert text == b"ABC"
    assert seconds > 0


LOAD = "def load(device):\n    return lambda: "
SPINS = "def load(device):\n    def spin():\n        while True: pass\n    return spin"
HOARDS = """
def load(device):
    return hoard
def hoard():
    held = [b'x' * (30 << 20) for _ in range(12)]
    while held: pass
"""


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        ("def load(device:\n    pass", "crashed", "entry.py, line 1"),
        ("raise RuntimeError('at import')", "crashed", "entry.py, line 1"),
        (LOAD + "1 / 0", "crashed", "line 2, in <lambda>: return lambda: 1 / 0"),
        ("x = 1", "crashed", "load"),
        ("import os\n" + LOAD + "os._exit(0)", "crashed", "exited with status 0"),
        ("import os\n" + LOAD + "os.kill(os.getpid(), 9)", "crashed", "SIGKILL"),
        ("import sys\n" + LOAD + "sys.exit('bye')", "crashed", "bye"),
        (SPINS, "timed out", "no answer within 3 s"),
        ("import os, signal\n" + LOAD + "os.kill(os.getpid(), signal.SIGSTOP)", "timed out", "3 s"),
        (LOAD + "object()", "crashed", "must be arrays"),
        (LOAD + "bytearray(2 << 30)", "crashed", "MemoryError"),
        (HOARDS, "crashed", "memory"),
        (LOAD + "open('big', 'wb').write(bytes(64 << 20))", "crashed", ""),
        (
            "def load(device):\n    raise OSError(97, 'no such family')",
            "crashed",
            "no network in a",
        ),
    ],
    ids=[
        "syntax",
        "import",
        "exception",
        "no load",
        "exit",
        "kill",
        "sys.exit",
        "loop",
        "stopped",
        "object",
        "memory",
        "resident",
        "file",
        "network",
    ],
)
def test_every_way_to_fail_is_the_learners_and_named(context, code, reason, words):
    failure = fault(context, code)
    assert failure.reason == reason
    assert words in failure.detail


def test_the_same_fault_in_the_reference_is_ours(context):
    with (
        pytest.raises(VerifierFault, match="reference worker"),
        start(context, "raise SystemExit", role="reference"),
    ):
        pass


def test_megabytes_of_output_do_no_harm(context):
    code = (
        "def load(device):\n    def noisy():\n        print('x' * (4 << 20)); return 1\n    return"
        " noisy"
    )
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


@pytest.mark.parametrize("with_group", [True, False])
def test_nothing_runs_between_calls(context, monkeypatch, with_group):
    if not with_group:
        monkeypatch.setattr(process.Cgroup, "create", lambda *_: None)
    code = """
        import threading, time
        beats = []
        def beat():
            while True:
                beats.append(time.monotonic()); time.sleep(0.005)
        def load(device):
            threading.Thread(target=beat, daemon=True).start()
            def longest():
                seen = len(beats)
                while len(beats) == seen:  # a beat after the pause shows it
                    time.sleep(0.001)
                return max((b - a for a, b in zip(beats, beats[1:])), default=0.0)
            return longest
    """
    with start(context, code) as session:
        session.call([])
        time.sleep(0.5)
        assert session.call([])[1][0] > 0.4, "the thread went on while its worker was frozen"


@pytest.mark.parametrize("with_group", [True, False])
def test_a_call_of_the_kernel_that_outlasts_the_stop_is_waited_for(
    context, monkeypatch, with_group
):
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
        with pytest.raises(LearnerFault, match="inside a system call after it was stopped"):
            session.call([])


@pytest.fixture
def ungrouped(monkeypatch):
    """A machine with bubblewrap and without control groups."""
    if NO_SANDBOX:
        pytest.skip(NO_SANDBOX)
    monkeypatch.setattr(process.Cgroup, "create", lambda *_: None)


def test_the_time_in_which_a_worker_is_frozen_is_not_its_own(context):
    with start(context, "def load(device):\n    return lambda: 1") as session:
        worker, watch = session.worker, session.worker.watch
        watch._limits = replace(LIMITS, total_s=time.monotonic() - watch._began + 1.0)
        time.sleep(1.2)
        session.call([])
        assert watch.excess() is None
        worker.thaw()
        time.sleep(1.2)
        assert watch.excess() == (
            "timed out",
            f"ran longer than {watch._limits.total_s:.0f} s in all",
        )


def call_until_it_ends(session: CallSession) -> None:
    """A killed worker may answer once more before it is dead."""
    while True:
        session.call([])


@pytest.mark.parametrize("who", ["sandbox", "supervisor"])
def test_a_killed_sandbox_leaves_nothing(context, ungrouped, who):
    code = f"def load(device):\n    return lambda: 1\n{DETACH}"
    with start(context, code) as session:
        session.call([])
        supervisor = session.worker._handle
        {"supervisor": supervisor, "sandbox": supervisor.children()[0]}[who].kill()
        with pytest.raises(LearnerFault) as caught:
            call_until_it_ends(session)
    assert caught.value.reason == "crashed"
    assert not left_with(context.janitor.folder)


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
        meter = session.worker.waiting()
        session.call([1])
        assert meter.seconds() > 0.05


@pytest.fixture
def waits(monkeypatch):
    """A meter of threads that have run and waited for so many ms each."""

    def made(*times):
        readings = iter(
            [
                [],
                [
                    (number, f"{ran * 1e6:.0f} {waited * 1e6:.0f} 1")
                    for number, (ran, waited) in enumerate(times)
                ],
            ]
        )
        monkeypatch.setattr(waiting, "of_threads", lambda *_: next(readings))
        return waiting.Waiting(list)

    return made


def test_threads_that_only_wake_wait_in_no_call(waits):
    times = (15, 1), (0.1, 5), (0.05, 5), (0.05, 5)
    assert waits(*times).seconds() == pytest.approx(16e-3), "where it is credited, all of it is"
    assert waits(*times).seconds_within(0.017) == pytest.approx(1e-3)


def test_threads_that_compute_are_counted(waits):
    assert waits((15, 1), (0.1, 5), (0.05, 5)).computing() == 1, "the others only wake"
    assert waits((8, 290), (7, 291)).computing() == 2
    assert waits((0, 0)).computing() == 0


def test_a_thread_waits_in_a_call_for_no_longer_than_it_did_not_run(waits):
    assert waits((15, 7)).seconds_within(0.017) == pytest.approx(2e-3)


def test_threads_that_share_the_work_all_wait_however_little_each_can_run(waits):
    assert waits((8, 290), (7, 291)).seconds_within(0.3) == pytest.approx(0.581), (
        "two threads beside twenty programs"
    )
    assert waits((15, 1), *[(0.4, 9)] * 20).seconds_within(0.02) > 0.1, "a crowd is not slight"


def test_children_and_their_children_end_with_the_worker(context):
    code = """
        import subprocess, sys
        def load(device):
            sleeper = (
                "import subprocess, sys, time; nap = 'import time; time.sleep(987)'; "
                "subprocess.Popen([sys.executable, '-c', nap], start_new_session=True); "
                "time.sleep(987)"
            )
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
"""Leaves three processes behind that are nobody's: their parents have ended, their sessions are
their own.
"""


def left_with(mark) -> list[list[str]]:
    """Command lines of anybody's processes whose environment has the mark in it."""
    commands = []
    for other in psutil.process_iter():
        try:
            if lives(other) and any(str(mark) in value for value in other.environ().values()):
                commands.append(other.cmdline())
        except psutil.Error:
            continue
    return commands


@pytest.fixture
def unheld(monkeypatch):
    """A machine without bubblewrap and control groups."""
    monkeypatch.setattr(visible, "bubblewrap", lambda: None)
    monkeypatch.setattr(process, "bubblewrap", lambda: None)
    monkeypatch.setattr(process.Cgroup, "create", lambda *_: None)


def test_who_detaches_twice_is_ended(context, unheld):
    with start(context, f"def load(device):\n    return lambda: 1\n{DETACH}") as session:
        session.call([])
        assert len(session.worker.tree()) == 4
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


def test_a_sandbox_that_died_is_not_waited_for_though_a_child_of_it_holds_the_channel(
    context, monkeypatch
):
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
                nap = [sys.executable, '-S', '-c', 'import time; time.sleep(987)']
                kids = [subprocess.Popen(nap) for _ in range(40)]
                time.sleep(60)
            return bomb
    """
    failure = fault(context, code)
    assert failure.reason == "crashed"


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_loader_workers_send_batches_however_long_the_path_of_temporary_files_is(
    request, tmp_path, monkeypatch
):
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
                tries(lambda: open(secret)),
                tries(lambda: open('/usr/new', 'w')),
                tries(lambda: os.listdir(os.path.dirname(secret))),
                tries(lambda: socket.create_connection(('127.0.0.1', port), 1)),
                len([p for p in os.listdir('/proc') if p.isdigit()]),
            )
    """
    with (
        __import__("socket").create_server(("127.0.0.1", 0)) as server,
        start(context, code) as session,
    ):
        secret_read, system_written, home_listed, connected, processes = session.call(
            [str(secret), server.getsockname()[1]]
        )[1]
    assert (secret_read, system_written, home_listed, connected) == (0, 0, 0, 0)
    assert processes < 10


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_the_sandbox_knows_its_own_user_and_no_other_of_the_machine(context):
    code = """
        import getpass, grp, os, pwd
        def load(device):
            names = lambda: [pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name]
            users = lambda: [entry.pw_name for entry in pwd.getpwall()]
            return lambda: (*names(), getpass.getuser(), *users())
    """
    with start(context, code) as session:
        assert session.call([])[1] == ["worker"] * 4 + ["nobody"]


def test_a_worker_that_no_sandbox_holds_has_a_user_name_too(tmp_path):
    # getpass.getuser() then needs no entry in /etc/passwd, which a container's user may lack
    environment = visible.worker_environment(Paths(tmp_path), 1)
    assert environment["USER"] == environment["LOGNAME"] == "worker"


def test_a_worker_on_a_gpu_has_the_verifier_s_choice_of_gpu_its_driver_and_its_compiler(
    tmp_path, monkeypatch
):
    driver, toolkit = tmp_path / "driver", tmp_path / "toolkit"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{driver}::relative")
    monkeypatch.setattr(visible, "find_program", lambda _name: toolkit / "bin" / "nvcc")
    own = {"CUDA_VISIBLE_DEVICES": "3", "LD_LIBRARY_PATH": str(driver), "CUDA_HOME": str(toolkit)}
    on_gpu, on_cpu = (
        visible.worker_environment(Paths(tmp_path), 1, gpu=gpu) for gpu in (True, False)
    )
    assert {name: on_gpu.get(name) for name in own} == own
    assert not own.keys() & on_cpu.keys()


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
@pytest.mark.parametrize("gpu", [True, False])
def test_the_sandbox_shows_a_driver_that_lies_elsewhere_where_there_is_a_gpu(
    tmp_path, monkeypatch, gpu
):
    driver, scratch = tmp_path / "driver", tmp_path / "scratch"
    driver.mkdir()
    scratch.mkdir()
    (driver / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    command = visible.sandboxed(["ls", str(driver)], Paths(scratch), 1 << 30, gpu=gpu)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == (["libcuda.so.1"] if gpu else [])


@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_what_is_hidden_is_empty_and_no_memory_to_write_to(tmp_path):
    hidden, scratch = tmp_path / "hidden", tmp_path / "scratch"
    for folder in (hidden, scratch):
        folder.mkdir()
    (hidden / "solution.py").touch()
    paths = Paths(scratch, [tmp_path], [hidden])
    for command, output in (
        (["ls", "-A", str(hidden)], b""),
        (["touch", str(hidden / "new")], None),
    ):
        done = subprocess.run(
            visible.sandboxed(command, paths, 1 << 28, gpu=False), capture_output=True, check=False
        )
        assert (done.stdout if done.returncode == 0 else None) == output


VERIFIER = """
import sys, time
from dataclasses import replace
from pathlib import Path
import os
import msgspec
os.environ["BOTTLENECK_LAB_CONTENT"] = sys.argv[1]
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.sandbox import visible, process
from bottleneck_lab.measure.verifier import check_lab
if sys.argv[3] != "held":
    process.Cgroup.create = lambda *_: None
if sys.argv[3] == "unheld":
    visible.bubblewrap = process.bubblewrap = lambda: None
lab = find_lab("running-mean")
device = lab.spec.devices["cpu"]
quick = device.settings | {"self_test_margin": 50.0, "judge": {"samples": [2000, 3000]}}
devices = {"cpu": msgspec.structs.replace(device, settings=quick)}
lab = msgspec.structs.replace(lab, spec=msgspec.structs.replace(lab.spec, devices=devices))
check_lab(lab, Path(sys.argv[2]), "cpu", data=Path(sys.argv[2]),
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
    with running(
        [sys.executable, "-c", VERIFIER, example, str(workspace), held],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as verifier:
        while phase not in verifier.stdout.readline():
            assert verifier.poll() is None
        time.sleep(0.05)
        family = psutil.Process(verifier.pid).children(recursive=True)
        assert family
        verifier.send_signal(how)
        verifier.wait(PATIENCE_S)
    assert soon(lambda: not any(map(lives, family)))
    assert soon(lambda: not left_with(temporary))
    assert not list(temporary.iterdir())


def test_what_a_worker_leaves_in_its_folder_is_bounded_in_bytes_files_and_depth(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(limits, "MAX_FILES", 50)
    (tmp_path / "some").write_bytes(bytes(8192))
    assert limits.too_much_below(tmp_path, 8192) is None
    assert "GiB" in limits.too_much_below(tmp_path, 8191)
    deep = tmp_path.joinpath(*["d"] * (limits.MAX_DEPTH + 1))
    monkeypatch.setattr(limits, "MAX_FILES", 500)
    deep.mkdir(parents=True)
    assert "deep" in limits.too_much_below(tmp_path, 8192)
    monkeypatch.setattr(limits, "MAX_FILES", 50)
    assert "50 files" in limits.too_much_below(tmp_path, 8192)


def test_blocks_count_as_well_as_length_and_a_locked_folder_is_too_much(tmp_path, monkeypatch):
    with (tmp_path / "promised").open("wb") as file:
        keeps_its_size = 1
        assert (
            ctypes.CDLL(None).fallocate(
                file.fileno(), keeps_its_size, ctypes.c_long(0), ctypes.c_long(1 << 20)
            )
            == 0
        )
    assert (tmp_path / "promised").stat().st_size == 0
    assert "GiB" in limits.too_much_below(tmp_path, 1 << 19)
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError))
    assert "cannot be read" in limits.too_much_below(tmp_path, 1 << 30)


def test_a_path_too_long_to_be_opened_is_too_much(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("d" * 250, dir_fd=folder)
        above, folder = folder, os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    assert "too long" in limits.too_much_below(tmp_path, 1 << 30)


def test_a_process_or_a_thread_that_ends_while_it_is_looked_at_is_passed_over(monkeypatch):
    real, gone = Path.iterdir, Path("/proc/self/task/1")
    listed = {
        "/proc/1/task": Mock(side_effect=FileNotFoundError),
        "/proc/2/task": lambda: [gone, *real(Path("/proc/self/task"))],
    }
    monkeypatch.setattr(Path, "iterdir", lambda folder: listed[str(folder)]())
    texts = [text for _, text in of_threads([Mock(pid=1), Mock(pid=2)], "comm")]
    assert Path("/proc/self/comm").read_text() in texts


def test_files_without_a_name_count_once_and_each_for_what_it_lies_in(tmp_path):
    pid, before = [os.getpid()] * 2, limits.nameless_bytes([os.getpid()], in_memory=False)
    held = [(tmp_path / name).open("wb") for name in ("removed", "removed too")]
    for file in held:
        Path(file.name).unlink()
        file.write(bytes(1 << 20))
        file.flush()
    assert limits.nameless_bytes(pid, in_memory=False) - before == 2 << 20
    in_memory = limits.nameless_bytes(pid, in_memory=True)
    memory = os.memfd_create("nameless")
    os.write(memory, bytes(1 << 20))
    assert limits.nameless_bytes(pid, in_memory=True) - in_memory == 1 << 20
    assert limits.nameless_bytes(pid, in_memory=False) - before == 2 << 20
    os.close(memory)
    for file in held:
        file.close()


@pytest.mark.parametrize(
    "fill",
    [
        "os.write(file, bytes(1 << 20))",
        "libc.fallocate(file, 1, ctypes.c_long(0), ctypes.c_long(4 << 20))",
    ],
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


FORKED = """
import os, sys, time
held = b"x" * (64 << 20)
for _ in range(4):
    if not os.fork():
        time.sleep(60)
        os._exit(0)
print("ready", flush=True)
time.sleep(60)
"""


def test_pages_that_forked_processes_share_count_once():
    command = [sys.executable, "-S", "-c", FORKED]
    with running(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        children = psutil.Process(parent.pid).children()
        pids = [parent.pid, *(child.pid for child in children)]
        plain = limits._memory_bytes(pids, 1 << 40)
        exact = limits._memory_bytes(pids, 100 << 20)
        for process_ in (*children, parent):
            process_.kill()
    assert plain > 5 * 64 << 20, "below the limit the cheap sum is enough"
    assert 64 << 20 <= exact < 100 << 20


def test_inductor_compiles_with_as_many_threads_as_the_lab_has(tmp_path):
    assert visible.worker_environment(Paths(tmp_path), 3)["TORCHINDUCTOR_COMPILE_THREADS"] == "3"
