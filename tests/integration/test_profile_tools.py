"""`lab profile -- program` and `lab monitor`, through the real `lab`, outside any workspace."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.course.captures import read_timeline

from .. import warm

pytestmark = pytest.mark.long

LAB = [sys.executable, "-m", "bottleneck_lab"]
MADE_UP = Path(__file__).parents[2] / "datasets" / "captures"
NET = """
import sys
import torch

net = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1) if "steps" in sys.argv else None
for step in range(int(sys.argv[1])):
    net.zero_grad()
    net(torch.randn(16, 32)).square().mean().backward()
    if optimizer:
        optimizer.step()
print("trained", __name__, flush=True)
if "fail" in sys.argv:
    raise ValueError("no such luck")
if "wait" in sys.argv:
    import time
    time.sleep(60)
"""
"""It has an optimizer only where steps are counted: torch imports its compiler for one, which takes
a second.
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "BOTTLENECK_LAB_HOME": str(folder / "home"), "COLUMNS": "80"}


def lab(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.lab(*arguments, at=folder, environment=environment(folder))


@pytest.mark.parametrize("command", ["profile", "monitor"])
def test_help_shows_an_example(folder, command):
    done = lab(folder, command, "--help")
    assert done.returncode == 0
    assert f"Example: lab {command}" in done.stdout


def test_a_program_s_capture_from_beginning_to_summary(folder):
    program = [sys.executable, "net.py", "4", "steps"]
    done = lab(folder, "profile", "--memory", "--tensorboard", "--", *program)
    assert done.returncode == 0, done.stderr
    assert "trained __main__" in done.stdout
    assert "Where the time went" in done.stdout
    assert "3 steps" in done.stdout or "4 steps" in done.stdout
    assert "script.py --trace" in done.stderr, "the command is shown"
    made = folder / "captures" / "0001-torch"
    described = json.loads((made / "capture.json").read_text())
    assert described["files"] == ["trace.json.gz"]
    assert described["program"][1:] == program[1:]
    assert list((made / "tensorboard").glob("*.pt.trace.json.gz"))
    assert "no snapshot of the GPU's allocator" in done.stdout or (made / "memory.pickle").is_file()
    assert "Where the time went" in lab(folder, "report").stdout, (
        "the latest capture in this folder"
    )
    assert lab(folder, "report", "7").returncode == 2


def test_a_folder_of_traces_is_read_as_its_ranks(folder):
    """In the order of their numbers; of a report and its export only one."""
    traces, empty = folder / "traces", folder / "empty"
    traces.mkdir()
    empty.mkdir()
    for name, made_up in (("rank10.json.gz", "input"), ("rank2.json.gz", "healthy")):
        shutil.copy(MADE_UP / f"synthetic-{made_up}.json.gz", traces / name)
    (traces / "rank2.nsys-rep").write_bytes(b"a report beside its export")
    found = json.loads(lab(folder, "report", "--json", "traces").stdout)["summary"]
    assert found["ranks"] == [0, 1]
    assert found["source"].split(", ") == ["traces/rank2.json.gz", "traces/rank10.json.gz"]
    refused = lab(folder, "report", str(empty))
    assert refused.returncode == 4
    assert "holds no trace" in refused.stderr


def test_json_is_all_that_stdout_holds_and_a_schedule_counts_optimizer_steps(folder):
    schedule = ["--schedule", "1,1,2", "--out", "mine", "--json"]
    done = lab(folder, "profile", *schedule, "--", "net.py", "6", "steps")
    found = json.loads(done.stdout)
    assert found["capture"] == str(folder / "mine")
    assert len(found["summary"]["steps"]) == 2
    assert "trained" in done.stderr


def test_frames_change_no_share(folder):
    """They come from a second run: the first one's times are reported, with the other's lines."""
    (folder / "slow.py").write_text(
        "import torch\n"
        "def tidy():\n"
        "    words = []\n"
        "    for number in range(3000):\n"
        "        words.append(str(number).strip())\n"
        "for step in range(20):\n"
        "    torch.randn(200, 200) @ torch.randn(200, 200)\n"
        "    tidy()\n"
        "list(torch.utils.data.DataLoader(range(2), num_workers=1))\n"
        "torch.ones(2)\n"
    )
    done = lab(folder, "profile", "--stack", "--json", "--", sys.executable, "slow.py")
    assert done.returncode == 0, done.stderr
    capture = folder / "captures" / "0001-torch"
    described = json.loads((capture / "capture.json").read_text())
    assert described["frames"] == ["frames.json.gz"]
    assert set(described["costs_ns"]) == {"operators", "shapes"}
    alone, together = summarise(load(capture / "trace.json.gz")), summarise(read_timeline(capture))
    assert alone.lines == []
    (was,), (now,) = alone.devices, together.devices
    # A loader's frame begins a little before its range, and names that time too.
    assert {p.cause: p.share_of_wall for p in now.gap_causes} == pytest.approx(
        {p.cause: p.share_of_wall for p in was.gap_causes}, abs=0.02
    )
    assert now.idle_ns == was.idle_ns
    # A share near the least that is a finding may be one in only one of them, on a busy machine.
    for one, other in ((alone, together), (together, alone)):
        large = {finding.id for finding in one.findings if finding.share_of_wall >= 0.2}
        assert large <= {finding.id for finding in other.findings}
    assert any("tidy" in row.line for row in together.lines)
    assert any(r.name.startswith("DataLoader starts its workers: 1 on") for r in alone.ranges)
    assert any("of the host's time" in note for note in together.quality.notes)


def test_under_torchrun_each_rank_leaves_a_trace(folder):
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = lab(
        folder, "profile", "--", torchrun, "--standalone", "--nproc-per-node=2", "net.py", "3"
    )
    assert done.returncode == 0, done.stderr
    described = json.loads((folder / "captures" / "0001-torch" / "capture.json").read_text())
    assert described["files"] == ["trace.rank0.json.gz", "trace.rank1.json.gz"]
    assert "Where the time went" in done.stdout


def test_a_program_that_fails_shows_its_own_traceback_and_what_was_recorded(folder):
    done = lab(folder, "profile", "--", sys.executable, "net.py", "2", "fail")
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stdout
    assert "runpy" not in done.stdout
    assert "Where the time went" in done.stdout
    assert "exited with status 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", sys.executable, "-c", "print(1)"], "no torch operator"),
        (
            ["--schedule", "5,5,5", "--", "net.py", "3", "steps"],
            "took 3 optimizer steps; the schedule needs 15",
        ),
        (
            ["--", sys.executable, "nowhere.py"],
            "exited with status 1 before its first torch operator",
        ),
    ],
    ids=["no torch", "too few steps", "no such file"],
)
def test_a_capture_that_shows_nothing_leaves_nothing(folder, arguments, words):
    done = lab(folder, "profile", *arguments)
    assert done.returncode in (1, 2, 4)
    assert words in done.stdout + done.stderr
    assert "bottleneck-lab itself failed" not in done.stderr
    assert not list(folder.glob("captures/*"))


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--tool", "nsys", "--", "ls"], 4, "nsys is not installed"),
        (["--tool", "ncu", "--", "ls"], 4, "ncu is not installed"),
        (["--tool", "perf", "--", "ls"], 2, "Choose one of torch, nsys, ncu, sanitizer, memory"),
        (["--", "no-such-program"], 2, "'no-such-program' is not one"),
        (["--schedule", "1,2", "--", "net.py"], 2, "'1,2' is not a schedule"),
        (["--check", "all", "--", "net.py"], 2, "memcheck, racecheck"),
        (["--out", ".", "--", "net.py"], 2, "already exists"),
        (["--stack"], 2, "only choose --tool and --device"),
        ([], 2, "There is no lab in this folder"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_remedy(folder, arguments, status, words):
    tools = [
        tool
        for tool in ("nsys", "ncu", "compute-sanitizer")
        if shutil.which(tool) or Path("/usr/local/cuda/bin", tool).exists()
    ]
    if tools and "--tool" in arguments and status == 4:
        pytest.skip(f"{tools} are installed here")
    done = lab(folder, "profile", *arguments)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "→" in done.stderr
    assert not list(folder.glob("captures*"))


def test_ctrl_c_ends_the_program_and_shows_what_was_recorded(folder):
    command = [*LAB, "profile", "--", sys.executable, "net.py", "3", "wait"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True
    ) as running:
        assert any("trained" in line for line in running.stdout)
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
        assert running.wait(100) == 130
    assert "Where the time went" in rest
    assert "was interrupted" in rest


def test_nohup_is_heeded(folder):
    """Its program goes on when the terminal is closed, and so does the recording."""
    (folder / "closed.py").write_text(
        NET + "import os, signal\nos.kill(os.getppid(), signal.SIGHUP)\n"
    )
    command = [
        "env",
        "--ignore-signal=HUP",
        *LAB,
        "profile",
        "--out",
        "mine",
        "--",
        sys.executable,
        "closed.py",
        "2",
    ]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "mine" / "capture.json").is_file()


FORKS = """
import os, sys
import torch
if os.fork():
    print("ended", os.waitstatus_to_exitcode(os.wait()[1]), os.listdir(".running-mine"))
    torch.ones(3).sin()
else:
    torch.ones(3).cos()
    print("copied")
    sys.exit(5)
"""


def test_a_copy_that_the_program_makes_of_itself_has_no_part_in_the_recording(folder):
    (folder / "forks.py").write_text(FORKS)
    done = lab(folder, "profile", "--out", "mine", "--json", "--", sys.executable, "forks.py")
    assert done.returncode == 0, done.stderr
    assert "copied" in done.stderr
    assert "ended 5 []" in done.stderr
    events = json.loads(gzip.decompress((folder / "mine" / "trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    names = {event.get("name") for event in events}
    assert names & {"aten::sin", "aten::cos"} == {"aten::sin"}


def test_monitor_gives_samples_as_json_and_to_prometheus(folder):
    (folder / "steps").write_text("7")
    command = [
        *LAB,
        "monitor",
        "--json",
        "--count",
        "2",
        "--interval-s",
        "1.5",
        "--steps",
        "steps",
        "--prometheus",
        "0",
    ]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        address = next(line.split()[-1] for line in running.stderr if "http://" in line)
        first = json.loads(running.stdout.readline())
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert "bottleneck_lab_steps_total 7.0\n" in answer.read().decode()
        second = json.loads(running.stdout.readline())
        assert running.wait(60) == 0
    assert (first["steps"], second["steps_per_s"]) == (7.0, 0.0)
    assert second["at_s"] > first["at_s"]
    assert first["gpus"] or first["no_gpu"]


NSYS = shutil.which("nsys")
NVTX = """
import torch
for step in range(3):
    torch.cuda.nvtx.range_push(f"step {step}")
    torch.randn(64, 64) @ torch.randn(64, 64)
    torch.cuda.nvtx.range_pop()
"""


@pytest.mark.nsys
@pytest.mark.skipif(NSYS is None, reason="nsys is not installed")
def test_the_real_nsys(folder):
    (folder / "marked.py").write_text(NVTX)
    done = lab(folder, "profile", "--tool", "nsys", "--", sys.executable, "marked.py")
    assert done.returncode == 0, done.stderr
    assert "Where the time went" in done.stdout
    assert "nsys profile --trace=" in done.stderr
    made = folder / "captures" / "0001-nsys"
    assert {path.suffix for path in made.iterdir()} >= {".sqlite", ".nsys-rep"}


@pytest.mark.nsys
@pytest.mark.skipif(NSYS is None, reason="nsys is not installed")
def test_the_real_nsys_gives_one_report_a_rank(folder):
    (folder / "marked.py").write_text(NVTX)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = lab(
        folder,
        "profile",
        "--tool",
        "nsys",
        "--",
        torchrun,
        "--standalone",
        "--nproc-per-node=2",
        "marked.py",
    )
    assert done.returncode == 0, done.stderr
    made = folder / "captures" / "0001-nsys"
    assert json.loads((made / "capture.json").read_text())["files"] == [
        "report_0.sqlite",
        "report_1.sqlite",
    ]


@pytest.mark.nsys
@pytest.mark.skipif(NSYS is None, reason="nsys is not installed")
def test_the_real_nsys_without_anything_to_show_keeps_its_report(folder):
    done = lab(folder, "profile", "--tool", "nsys", "--", "sh", "-c", "sleep 0.2")
    assert done.returncode == 0, done.stderr
    assert "mark the program's parts with NVTX" in done.stdout
    assert (folder / "captures" / "0001-nsys" / "report.nsys-rep").is_file()


NCU = shutil.which("ncu")


@pytest.mark.nsys
@pytest.mark.skipif(NCU is None, reason="ncu is not installed")
def test_the_real_ncu_measures_or_says_why_not(folder):
    done = lab(
        folder, "profile", "--tool", "ncu", "--launches", "1", "--", sys.executable, "net.py", "1"
    )
    assert done.returncode == 4
    assert (
        "no CUDA driver" in done.stderr
        or "no kernel" in done.stderr
        or "administrators" in done.stderr
    )
