"""The lab `past-the-plateau` as a learner goes through it: run, captured and reported, on its own
server and on a real Triton.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.course import proving
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.trace import load
from bottleneck_lab.workspace.dataset import is_made
from bottleneck_lab.workspace.home import dataset_root

from ..pretend import pretend_gpu
from ..weather import asked_again
from .test_cli import LAB, Learner

ROOT = Path(__file__).parents[2]
NO_TRITON = "" if is_made("tritonserver") else "no Triton Inference Server: lab data tritonserver"
NSYS = shutil.which("nsys")
pytestmark = pytest.mark.slow
needs_triton = pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON)


@pytest.fixture
def learner(tmp_path, photos) -> Learner:
    """A learner whose photographs, and Triton if there is one, are set up already."""
    newcomer = Learner(tmp_path, ROOT)
    (newcomer.home / "datasets").mkdir(parents=True)
    (newcomer.home / "datasets" / "photos").symlink_to(photos)
    if not NO_TRITON:
        (newcomer.home / "datasets" / "tritonserver").symlink_to(dataset_root("tritonserver"))
    return newcomer


def started(learner: Learner) -> Path:
    """A workspace of the lab's own."""
    done = learner.lab("start", "past-the-plateau", "work", "--no-data")
    assert done.returncode == 0, done.stderr
    return learner.folder / "work"


def on_triton(workspace: Path, solution: Path | None = None) -> Path:
    """The workspace, with its models on Triton, or the solution's."""
    entry = workspace / "serve.py"
    entry.write_text(entry.read_text().replace('SERVER = "python"', 'SERVER = "triton"'))
    for file in (solution / "models").rglob("*.p*") if solution else ():
        (workspace / file.relative_to(solution)).write_bytes(file.read_bytes())
    return workspace


def rates(shown: str) -> list[float]:
    """Requests/s of every maximum batch size in the plateau that a run has shown."""
    return [
        float(each)
        for each in re.findall(r"^ +\d+ +[\d.]+ +(\d+) +\d+ +\d+ +█", shown, re.MULTILINE)
    ]


def tritons() -> list[int]:
    """Processes of Triton's that run on this machine."""
    named = {
        each.pid: " ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])
    }
    return [
        pid
        for pid, words in named.items()
        if "tritonserver" in words.split(" ")[0] or "triton_python_backend_stub" in words
    ]


def test_a_run_shows_the_plateau_and_both_loops(learner):
    done = learner.lab("run", at=started(learner))
    assert done.returncode == 0, done.stderr
    per_second = rates(done.stdout)
    assert len(per_second) == 6
    assert per_second[-1] < 1.5 * per_second[3], (
        "from 8 images on, larger batches bring next to nothing"
    )
    assert "Open loop:" in done.stdout


def test_a_capture_shows_the_batches_and_its_report_draws_the_plateau(learner):
    workspace = started(learner)
    done = learner.lab("profile", at=workspace)
    assert done.returncode == 0, done.stderr
    serving = learner.json("report", at=workspace)["summary"]["serving"]
    assert serving["batches"] >= 3
    assert {part["name"] for part in serving["parts"]} >= {
        "queue",
        "preprocess",
        "infer",
        "postprocess",
    }
    assert serving["idle_share"] > 0.5
    assert learner.lab("report", "--html", "page.html", at=workspace).returncode == 0
    page = (workspace / "page.html").read_text()
    assert "Maximum batch size" in page
    (kept,) = (workspace / ".lab" / "captures").glob("*/plateau.json")
    assert [point["size"] for point in json.loads(kept.read_text())["points"]] == [
        1,
        2,
        4,
        8,
        16,
        32,
    ]


TOLD = """
import torch  # in the test of it: NVTX tells the test

torch.cuda.nvtx.range_push = lambda name: print(f"begins: {name}", flush=True)
torch.cuda.nvtx.range_pop = lambda: None
"""


def test_what_nsys_runs_loads_the_server_and_marks_its_parts_meanwhile(learner):
    workspace = started(learner)
    entry = workspace / "serve.py"
    entry.write_text(TOLD + entry.read_text())
    done = subprocess.run(
        kind_of(find_lab("past-the-plateau")).program(
            find_lab("past-the-plateau"), "virtual", "nsys"
        ),
        cwd=workspace,
        env={
            **learner.environment,
            "LAB_DEVICE": "virtual",
            "LAB_PHOTOS": str(dataset_root("photos")),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("queue", "preprocess", "h2d", "infer", "postprocess"):
        assert done.stdout.count(f"begins: {name}\n") >= 3


@pytest.mark.nsys
@pytest.mark.skipif(NSYS is None, reason="nsys is not installed")
@pytest.mark.parametrize("server", ["python", pytest.param("triton", marks=needs_triton)])
def test_the_real_nsys_sees_a_server_under_load(server, learner):
    workspace = started(learner)
    if server == "triton":
        on_triton(workspace)
    done = learner.lab("profile", "--tool", "nsys", at=workspace)
    assert done.returncode == 0, done.stderr
    (report,) = (workspace / ".lab" / "captures").glob("*-nsys/report.sqlite")
    with closing(sqlite3.connect(report)) as database:
        seen = dict(
            database.execute("select text, count(*) from NVTX_EVENTS group by text").fetchall()
        )
    assert {name for name, count in seen.items() if count >= 3} >= {
        "queue",
        "preprocess",
        "h2d",
        "infer",
        "postprocess",
    }


@pytest.mark.parametrize("server", ["python", pytest.param("triton", marks=needs_triton)])
def test_a_rehearsed_gpu_goes_from_run_to_capture_to_check_and_nothing_calls_it_emulated(
    server, learner, monkeypatch
):
    lab, workspace = find_lab("past-the-plateau"), started(learner)
    if server == "triton":
        on_triton(workspace)
    learner.environment |= {pretend_gpu.VARIABLE: str(pretend_gpu.HERE), "OMP_NUM_THREADS": "1"}
    done = learner.lab("run", "--device", "cuda", at=workspace)
    assert done.returncode == 0, done.stderr
    assert len(rates(done.stdout)) == 6
    assert learner.lab("profile", "--device", "cuda", at=workspace).returncode == 0
    (trace,) = (workspace / ".lab" / "captures").glob("*/trace.json.gz")
    content = gzip.decompress(trace.read_bytes()).decode()
    assert re.search(r'"name": "inference \(batch \d+\)"', content)
    assert "emulated" not in content
    assert not json.loads(trace.with_name("capture.json").read_text())["emulated"]
    serving = learner.json("report", at=workspace)["summary"]["serving"]
    assert serving["batches"] >= 3
    for name in ("BOTTLENECK_LAB_HOME", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, learner.environment[name])
    (workspace / "diagnosis.toml").write_bytes((lab.solution / "diagnosis.toml").read_bytes())
    with pretend_gpu.installed():
        verdict = proving.check(lab, workspace, "cuda")
    assert (verdict.outcome, verdict.summary) == ("INCONCLUSIVE", pretend_gpu.REHEARSED)


@needs_triton
def test_a_run_on_triton_shows_the_plateau_and_what_triton_tells_and_leaves_nothing(learner):
    before = tritons()
    done = learner.lab("run", at=on_triton(started(learner)))
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(rates(done.stdout)) == 6
    assert re.search(r"^resnet50 +\d+ +[\d.]+ ", done.stdout, re.MULTILINE)
    assert set(tritons()) <= set(before)


@needs_triton
def test_models_that_triton_cannot_load_end_a_run_with_its_words(learner):
    workspace = on_triton(started(learner))
    config = workspace / "models" / "classify" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_STRING", "TYPE_TEXT"))
    done = learner.lab("run", at=workspace)
    assert done.returncode == 1
    assert "classify/config.pbtxt" in done.stdout


@needs_triton
def test_a_capture_of_triton_shows_batches_queues_and_the_plateau(learner):
    before, workspace = tritons(), on_triton(started(learner))
    done = learner.lab("profile", at=workspace)
    assert done.returncode == 0, done.stderr
    summary = learner.json("report", at=workspace)["summary"]
    serving = summary["serving"]
    assert serving["batches"] >= 3
    assert {part["name"] for part in serving["parts"]} == {
        "queue",
        "preprocess",
        "h2d",
        "infer",
        "postprocess",
    }
    assert serving["idle_share"] > 0.5
    assert any(
        re.search(r"[\d.]+ ms in the queue of classify", note)
        for note in summary["quality"]["notes"]
    )
    (kept,) = (workspace / ".lab" / "captures").glob("*/plateau.json")
    assert [point["size"] for point in json.loads(kept.read_text())["points"]] == [
        1,
        2,
        4,
        8,
        16,
        32,
    ]
    assert summarise(load(kept.with_name("trace.json.gz"))).findings[0].id == "input-starved"
    assert set(tritons()) <= set(before)


@needs_triton
def test_a_capture_of_triton_that_is_interrupted_leaves_no_process_and_no_file(learner):
    before, workspace = tritons(), on_triton(started(learner))
    shared = set(Path("/dev/shm").iterdir())
    running = subprocess.Popen(
        [*LAB, "profile"],
        cwd=workspace,
        env=learner.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 60
    while len(set(tritons()) - set(before)) < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(8)  # into its warm-up or its window
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    running.stdout.close()
    assert set(tritons()) <= set(before)
    assert set(Path("/dev/shm").iterdir()) <= shared
    assert not list((workspace / ".lab" / "captures").glob("*"))


@pytest.mark.timed
@needs_triton
@pytest.mark.parametrize("solved", [False, True])
def test_on_triton_the_shipped_models_are_too_slow_and_the_solution_passes(
    learner, monkeypatch, solved
):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(learner.home))
    lab = find_lab("past-the-plateau")
    workspace = on_triton(started(learner), lab.solution if solved else None)
    (workspace / "diagnosis.toml").write_bytes((lab.solution / "diagnosis.toml").read_bytes())
    verdict = asked_again(
        lambda: proving.check(lab, workspace, "virtual"),
        lambda verdict: f"{verdict.outcome} {verdict.summary}",
    )
    held = {each.id: each.holds for each in verdict.criteria}
    assert held["right-answers"]
    assert held["right-pixels"]
    assert held["bad-requests"]
    assert (held["throughput"], held["idle"]) == (solved, solved), verdict.summary
