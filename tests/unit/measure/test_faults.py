"""Every process of a check is killed or stopped in every phase, its disk and memory run out, its
pipes close, the wall clock jumps.

The outcome has to be right, and the blame: FAIL where it was the learner's process, ERROR where it
was ours. Nothing may be left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import msgspec
import psutil
import pytest
from PIL import Image

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.grading.attest import canonical_bytes
from bottleneck_lab.grading.verdict import Outcome
from bottleneck_lab.measure import verifier
from bottleneck_lab.measure.channel import session as channel
from bottleneck_lab.measure.channel.session import start_worker
from bottleneck_lab.measure.context import Measured
from bottleneck_lab.measure.kinds.input_pipeline import device_process, session
from bottleneck_lab.measure.kinds.input_pipeline.device_process import start_device
from bottleneck_lab.measure.sandbox import janitor
from bottleneck_lab.measure.sandbox.cgroup import Cgroup
from bottleneck_lab.measure.sandbox.limits import Limits
from bottleneck_lab.measure.settings import Settings
from bottleneck_lab.measure.verifier import check_lab

from ...processes import groups_left, started_since

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[3]
CONTENT = {
    "running-mean": ROOT / "docs" / "example",
    "feeder": ROOT / "tests" / "exploits" / "content",
}
"""Labs in miniature, for the kinds `speedup` and `input_pipeline`; the other two kinds have their
own lab.
"""
QUICK = {
    "running-mean": {"self_test_margin": 50.0, "judged": 20, "judge": {"samples": [2000, 3000]}},
    "feeder": {},
}


class Bench:
    """A lab, a workspace with a right solution in it, and a temporary folder of its own."""

    def __init__(self, slug: str, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(CONTENT.get(slug, ROOT)))
        load_labs.cache_clear()
        lab = find_lab(slug)
        self.device = next(iter(lab.spec.devices))
        spec = lab.spec.devices[self.device]
        settings = spec.settings | (
            {"start_s": 12, "call_s": 2, "memory_gib": 0.5, **QUICK[slug]}
            if slug in CONTENT
            else {}
        )
        devices = {self.device: msgspec.structs.replace(spec, settings=settings)}
        self.lab = msgspec.structs.replace(
            lab, spec=msgspec.structs.replace(lab.spec, devices=devices)
        )
        self.workspace = tmp_path / "workspace"
        shutil.copytree(self.lab.path, self.workspace)
        self.entry = self.workspace / lab.spec.entry
        shutil.copytree(self.lab.solution, self.workspace, dirs_exist_ok=True)
        (self.workspace / "small").mkdir()
        Image.new("RGB", (300, 300)).save(self.workspace / "small" / "0.jpg")
        self.temporary = tmp_path / "temporary"
        self.temporary.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(self.temporary))
        # A disk takes its time over 4 GiB.
        monkeypatch.setattr(channel, "Limits", partial(Limits, scratch_bytes=256 << 20))

    def check(self, progress=lambda doing, share: None):
        """The verdict, and the assertion that nothing is left."""
        others = psutil.Process().children()
        verdict = check_lab(
            self.lab,
            self.workspace,
            self.device,
            data=self.workspace,
            progress=progress,
        )
        if isinstance(progress, Saboteur):
            progress.stop()
        assert not started_since(others)
        assert not list(self.temporary.iterdir())
        assert not groups_left()
        assert "checker itself failed" not in verdict.summary, verdict.measurement.get("traceback")
        return verdict


@pytest.fixture
def bench(tmp_path, monkeypatch):
    yield lambda slug: Bench(slug, tmp_path, monkeypatch)
    load_labs.cache_clear()


WORDS = {
    "learner": ("/submission/", "/learner-ranks/"),
    "reference": ("/reference/", "/reference-ranks/"),
    "device": ("input_pipeline.device",),
    "janitor": ("janitor.py",),
}


def processes(who: str) -> list[psutil.Process]:
    """The living processes of ours that are `who`: the sandbox's own and the Python in it."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(word in argument for argument in process.cmdline() for word in WORDS[who]):
                processes.append(process)
        except psutil.NoSuchProcess:
            continue
    return processes


class Saboteur:
    """Sends a signal to a process of the check as soon as it is there, once the phase has begun
    that `phase` is part of the name of.
    """

    def __init__(self, who: str, phase: str, number: signal.Signals) -> None:
        self.who, self.phase, self.number = who, phase, number
        self.thread = threading.Thread(target=self._strike, daemon=True)
        self.hit = self.stopped = False

    def stop(self) -> None:
        """Ends the striking: the next check is not to be met by it."""
        self.stopped = True
        if self.thread.is_alive():
            self.thread.join()

    def __call__(self, doing: str, share: float) -> None:
        if self.phase in doing and not self.thread.is_alive() and not self.hit:
            self.thread.start()

    def _strike(self) -> None:
        """Until it was met, and half a second longer: a sandbox that is killed while it sets up may
        leave its child to live.
        """
        end, number = time.monotonic() + 10, self.number
        while time.monotonic() < end and not self.stopped:
            for process in processes(self.who):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
                    if not self.hit:
                        self.hit, end = True, time.monotonic() + 0.5
            time.sleep(0.005)


SPEEDUP = [
    "starting the reference",
    "loading your code",
    "checking answers",
    "comparing the reference",
    "measuring",
]
FEED = ["calibrating", "starting your script", "measuring", "calibrating this machine again"]
KILLED_WHOLE = [
    ("resnet-top-ops", "reference", "starting the reference"),
    ("resnet-top-ops", "reference", "capture 2 of the workload"),
    ("resnet-top-ops", "learner", "running your script"),
    ("resnet-top-ops", "janitor", "capture 1 of the workload"),
    ("ddp-scaling", "learner", "your script on 8"),
    ("ddp-scaling", "learner", "your script on 4"),
    ("ddp-scaling", "reference", "your script on 8"),
    ("ddp-scaling", "reference", "the shipped script on 8"),
    ("ddp-scaling", "reference", "the shipped script on 4"),
    ("ddp-scaling", "janitor", "your script on 8"),
]
KILLED = [
    *[("running-mean", "learner", phase) for phase in SPEEDUP[1:]],
    *[("running-mean", "reference", phase) for phase in SPEEDUP],
    *[("running-mean", "janitor", phase) for phase in (SPEEDUP[0], SPEEDUP[4])],
    *[("feeder", "learner", phase) for phase in FEED[1:3]],
    *[("feeder", "device", phase) for phase in FEED[1:3]],
    *[("feeder", "reference", phase) for phase in (FEED[0], FEED[3])],
    *[("feeder", "janitor", phase) for phase in (FEED[0], FEED[2])],
    *[pytest.param(*case, marks=pytest.mark.slow) for case in KILLED_WHOLE],
]


STARTING = {
    *("loading your code", "starting your script", "running your script"),
    "your script on 8",
}
"""Phases in which a worker may be killed before it has begun to load the learner's code."""
NAMED = {"reference": "reference worker", "device": "device process"}
"""Words of an ERROR that say which of our processes it was."""


def rightful(verdict) -> bool:
    """Return True if a right solution gets this verdict where nothing is wrong, except perhaps that
    others use the machine.
    """
    weather = verdict.outcome is Outcome.ERROR and "protocol itself" in verdict.summary
    return weather or verdict.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE)


def assert_blamed(verdict, phase: str, reason: str) -> None:
    """The learner's process is to blame, unless it had not begun to load the learner's code."""
    early = "before it loaded the code to check" in verdict.summary
    outcome = (Outcome.ERROR, None) if early else (Outcome.FAIL, reason)
    assert (verdict.outcome, verdict.reason) == outcome, verdict.summary
    assert phase in STARTING or not early


@pytest.mark.parametrize(
    ("slug", "who", "phase"), KILLED, ids=lambda value: value.replace(" ", "-")
)
def test_killed(bench, slug, who, phase):
    saboteur = Saboteur(who, phase, signal.SIGKILL)
    verdict = bench(slug).check(saboteur)
    assert saboteur.hit
    if who == "learner":
        assert_blamed(verdict, phase, "crashed")
    elif who == "janitor":  # the verifier does its work, and the verdict is the learner's
        assert rightful(verdict), verdict.summary
    else:
        assert verdict.outcome is Outcome.ERROR, verdict.summary
        assert NAMED[who] in verdict.summary or slug not in CONTENT, verdict.summary
    assert verdict.isolation, "a verdict says what held the code, however it came about"


STOPPED = [
    ("running-mean", "learner", "checking answers"),
    ("running-mean", "learner", "comparing the reference"),
    ("running-mean", "learner", "measuring"),
    ("running-mean", "reference", "checking answers"),
    ("running-mean", "reference", "measuring"),
    ("feeder", "learner", "measuring"),
    ("feeder", "device", "measuring"),
    pytest.param("feeder", "device", "starting your script", marks=pytest.mark.slow),
    pytest.param("ddp-scaling", "learner", "your script on 8", marks=pytest.mark.slow),
    pytest.param("ddp-scaling", "reference", "the shipped script on 8", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("slug", "who", "phase"), STOPPED, ids=lambda value: value.replace(" ", "-")
)
def test_stopped(bench, slug, who, phase, monkeypatch):
    monkeypatch.setattr(
        "bottleneck_lab.measure.sandbox.process.END_S", 1.0
    )  # the supervisor is stopped as well
    monkeypatch.setattr("bottleneck_lab.measure.kinds.data_parallel.session.RUN_S", 60.0)
    verdict = bench(slug).check(Saboteur(who, phase, signal.SIGSTOP))
    if who == "learner":
        assert_blamed(verdict, phase, "timed out")
        assert "SIGSTOP" in verdict.summary or slug not in CONTENT
    else:
        assert verdict.outcome is Outcome.ERROR, verdict.summary
        assert NAMED[who] in verdict.summary or slug not in CONTENT, verdict.summary


def test_a_script_is_started_when_the_device_is_there_and_says_why_it_fails(bench, monkeypatch):
    def late(*arguments):
        device, channel, theirs = start_device(*arguments)
        device.send_signal(signal.SIGSTOP)
        at.append(time.monotonic())
        threading.Timer(1.0, device.send_signal, [signal.SIGCONT]).start()
        return device, channel, theirs

    def started(*arguments, **options):
        at.append(time.monotonic())
        return start_worker(*arguments, **options)

    at = []
    monkeypatch.setattr(device_process, "start_device", late)
    monkeypatch.setattr(session, "start_worker", started)
    faulty = bench("feeder")
    faulty.entry.write_text("raise RuntimeError('this early')\n")
    verdict = faulty.check()
    assert (verdict.outcome, verdict.reason) == (Outcome.FAIL, "crashed"), verdict.summary
    assert "this early" in verdict.summary
    assert at[1] - at[0] > 0.9


def test_a_stopped_janitor_is_not_waited_for_for_ever(bench, monkeypatch):
    monkeypatch.setattr(janitor, "PATIENCE_S", 1.0)
    saboteur = Saboteur("janitor", "checking", signal.SIGSTOP)
    verdict = bench("running-mean").check(saboteur)
    assert saboteur.hit
    assert rightful(verdict), verdict.summary
    assert verdict.duration_s < 100


CODE = {
    "memory": (
        """
        held = []
        def load(device):
            def call(trace, width):
                while True:
                    held.append(bytearray(b"x" * (8 << 20)))
            return call
    """
    ),
    "memory in files": (
        """
        import os
        held = []
        def load(device):
            def call(trace, width):
                while True:
                    held.append(os.memfd_create("nameless"))
                    os.write(held[-1], b"x" * (1 << 20))
            return call
    """
    ),
    "scratch disk": (
        """
        def load(device):
            def call(trace, width):
                with open("full", "wb") as file:
                    while True:
                        file.write(bytes(8 << 20))
            return call
    """
    ),
    "its pipes": (
        """
        import os
        def load(device):
            def call(trace, width):
                os.closerange(0, 64)
                while True: pass
            return call
    """
    ),
    "processes": (
        """
        import os, time
        def load(device):
            def call(trace, width):
                while True:
                    if not os.fork(): time.sleep(987)
            return call
    """
    ),
}


@pytest.mark.parametrize("with_group", [True, False], ids=["with-a-control-group", "without"])
@pytest.mark.parametrize("what", CODE)
def test_code_that_exhausts_a_resource_fails_by_itself(bench, what, with_group, monkeypatch):
    if not with_group:
        monkeypatch.setattr(Cgroup, "create", lambda *_: None)
    faulty = bench("running-mean")
    faulty.entry.write_text(textwrap.dedent(CODE[what]))
    verdict = faulty.check()
    assert verdict.outcome is Outcome.FAIL, verdict.summary
    assert verdict.reason in ("crashed", "timed out")


@pytest.fixture
def small_disk(bench):
    """A temporary folder of 8 MB, for root; nobody else may mount one."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    faulty = bench("running-mean")
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(faulty.temporary)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this container may not mount a small disk")
    yield faulty
    subprocess.run(["umount", "-l", str(faulty.temporary)], check=True)


def test_a_disk_that_the_learner_fills_is_the_learners(small_disk):
    small_disk.entry.write_text(textwrap.dedent(CODE["scratch disk"]))
    verdict = small_disk.check()
    assert (verdict.outcome, verdict.reason) == (Outcome.FAIL, "crashed"), verdict.summary
    assert "No space left" in verdict.summary


def test_a_disk_that_was_full_is_not(small_disk):
    with (
        (small_disk.temporary / "fill").open("wb", buffering=0) as file,
        contextlib.suppress(OSError),
    ):
        while True:
            file.write(bytes(1 << 16))
    assert shutil.disk_usage(small_disk.temporary).free == 0
    lab, workspace = small_disk.lab, small_disk.workspace
    verdict = check_lab(lab, workspace, small_disk.device, data=workspace)
    assert verdict.outcome is Outcome.ERROR, verdict.summary
    assert "is full" in verdict.summary
    assert [path.name for path in small_disk.temporary.iterdir()] == ["fill"]


def kind_that(measures):
    """A kind of lab without settings, whose measurement does this."""
    return Mock(settings=lambda _lab, _device: Settings(), measure=measures)


@pytest.mark.parametrize(("room_mib", "theirs_mib"), [(1000, 600), (1000, 10), (100, 80)])
def test_a_disk_that_is_full_for_the_verifier_is_the_learners_only_if_its_files_filled_it(
    bench, monkeypatch, room_mib, theirs_mib
):
    def written_on(context):
        with (context.submission / "left").open("wb") as file:
            file.truncate(theirs_mib << 20)
        raise OSError(errno.ENOSPC, "No space left on device")

    faulty = bench("running-mean")
    monkeypatch.setattr(verifier, "kind_of", lambda _lab: kind_that(written_on))
    monkeypatch.setattr(verifier.shutil, "disk_usage", lambda _path: Mock(free=room_mib << 20))
    verdict = faulty.check()
    if (room_mib, theirs_mib) == (1000, 600):
        assert (verdict.outcome, verdict.reason) == (Outcome.FAIL, "crashed"), verdict.summary
    else:
        assert verdict.outcome is Outcome.ERROR
        assert verdict.advice == ["Make room there, or set TMPDIR to another disk."]


def test_figures_that_are_no_numbers_leave_a_verdict_that_can_be_signed(bench, monkeypatch):
    details = {"difference": float("nan"), "curve": [{"ms": float("inf")}, 1.5]}
    measured = Measured([], details=details)
    monkeypatch.setattr(verifier, "kind_of", lambda _lab: kind_that(lambda _context: measured))
    verdict = bench("running-mean").check()
    assert verdict.measurement == {"difference": None, "curve": [{"ms": None}, 1.5]}
    assert b'"difference":null' in canonical_bytes(verdict)


@pytest.mark.parametrize("slug", CONTENT)
def test_a_wall_clock_that_jumps_changes_nothing(bench, slug, monkeypatch):
    honest, calls = time.time, []

    def skewed() -> float:
        calls.append(1)
        return honest() + (-1) ** len(calls) * 1e6

    monkeypatch.setattr(time, "time", skewed)
    verdict = bench(slug).check()
    assert rightful(verdict), verdict.summary
    assert 0 < verdict.duration_s < 100
