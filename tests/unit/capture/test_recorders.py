"""From the command to the files, with stand-ins for the tools: shell scripts that answer as the
tools do, exit status and all.
"""

import json
import os
from pathlib import Path

import pytest

from bottleneck_lab.capture import ncu, nsys, sanitizer, tools
from bottleneck_lab.capture.recording import Options, Request
from bottleneck_lab.capture.workload import Workload
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.errors import CaptureError, MachineError, UsageError
from bottleneck_lab.trace.ncu import parse_csv

NSYS = """
case "$1 $2" in
  "--version ") echo "NVIDIA Nsight Systems version 2025.1.1" ;;
  "profile --help")
     printf '%s\\n' ' -t, --trace=' "   'cuda', 'nvtx'" ' -o, --output=' ' --export=' ;;
  export*)
     for word; do
       case $word in --output=*) echo exported > "${word#--output=}" ;; esac
     done ;;
  *) for word; do
       case $word in
         --output=*)
           report=$(echo ${word#--output=} | sed 's/%q{RANK}/0/')
           echo x > "$report.nsys-rep" ;;
       esac
     done
     echo "the program speaks"; exit 5 ;;
esac
"""
NCU = """
echo "$HOME" >> "$HOMES"
case "$1" in
  --version) echo "Version 2025.3.0.0 (build 1)" ;;
  --help) echo "--kernel-name --set --launch-count --target-processes" ;;
  --list-sets) echo "full  A, B  yes  162" ;;
  --import)
     printf '%s\\n' '"ID","Process ID","Kernel Name","gpu__time_duration.sum"' \\
       '"","","","ns"' '"0","7","gemm","1200"' ;;
  *) while [ "$1" != --export ]; do shift; done
     echo x > "$2.ncu-rep"; shift 2; "$@" ;;
esac
"""
SANITIZER = """
case "$1" in
  --version) echo "Version 2025.3.0" ;;
  --help) echo "--tool --log-file" ;;
  *) while [ "$1" != --log-file ]; do shift; done
     echo "========= ERROR SUMMARY: 2 errors" > "$2" ;;
esac
"""


@pytest.fixture
def stand_in(tmp_path):
    def make(name: str, body: str) -> str:
        path = tmp_path / name
        path.write_text("#!/bin/sh" + body)
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def request_(tmp_path) -> Request:
    (tmp_path / "out").mkdir()
    lines: list[str] = []
    return Request(
        ("echo", "hello"), tmp_path, tmp_path / "out", options=Options(), announce=lines.append
    )


def test_nsys_is_judged_by_its_report_and_exports_what_it_did_not(stand_in, request_):
    captured = nsys.record(stand_in("nsys", NSYS), request_)
    assert captured.files == ["report.sqlite"]
    assert captured.extra == ["report.nsys-rep"]
    assert (captured.version, captured.ended.status) == ("2025.1.1", 5)
    assert "environment variables" in captured.notes[0]
    assert "the program speaks" in captured.ended.tail
    assert "--trace=cuda,nvtx" in captured.command


def test_ncu_has_a_home_of_its_own_and_the_program_keeps_its(
    stand_in, request_, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOMES", str(tmp_path / "homes"))
    captured = ncu.record(stand_in("ncu", NCU), request_)
    homes = (tmp_path / "homes").read_text().split()
    assert len(homes) == 5, "three questions, the capture, the export"
    assert os.environ["HOME"] not in homes
    assert not any(Path(home).exists() for home in homes)
    assert captured.files == ["report.csv"]
    assert "hello" in captured.ended.tail
    (kernel,) = parse_csv((request_.out / "report.csv").read_text(), request_.out / "report.csv")
    assert (kernel.name, kernel.duration_ns) == ("gemm", 1200.0)


def test_the_sanitizer_s_report_is_the_capture(stand_in, request_):
    captured = sanitizer.record(stand_in("cs", SANITIZER), request_)
    assert captured.files == ["memcheck.txt"]
    assert captured.notes == ["memcheck: compute-sanitizer found 2 problems."]


def test_a_lab_s_kernels_are_found_by_name_and_given_to_the_sanitizer_bare(
    stand_in, tmp_path, monkeypatch
):
    monkeypatch.setattr(tools, "find_program", lambda name: Path(stand_in(name, SANITIZER)))
    lab, out = find_lab("fused-attention"), tmp_path / "out"
    out.mkdir()
    tools.profile_workload(Workload(lab, lab.path, "cuda", tmp_path), "sanitizer", out)
    described = json.loads((out / "capture.json").read_text())
    assert described["files"] == ["memcheck.txt", "racecheck.txt"]
    assert described["command"].count("bare.py") == 2
    for folder in (lab.path, lab.solution):
        assert set(tools._kernels(lab, folder).split("|")) >= {"attention_kernel", "flash_fwd"}
        assert "__" not in tools._kernels(lab, folder)


def test_a_tool_that_left_nothing_is_an_error_though_it_exits_0(stand_in, request_):
    with pytest.raises(CaptureError, match="left no report; the program exited with status 0"):
        nsys.record(
            stand_in(
                "nsys",
                NSYS.replace('echo x > "$report', 'true "$report').replace("exit 5", "exit 0"),
            ),
            request_,
        )


def test_a_capture_is_described_without_naming_the_host(stand_in, request_, monkeypatch):
    monkeypatch.setattr(tools, "find_program", lambda name: Path(stand_in(name, NSYS)))
    monkeypatch.setenv("TOKEN", "hunter2")
    captured = tools.record("nsys", request_)
    tools.describe(request_.out, "nsys", captured.files, **captured.facts(), program=["echo"])
    text = (request_.out / "capture.json").read_text()
    described = json.loads(text)
    assert (described["tool"], described["status"], described["files"]) == (
        "nsys",
        5,
        ["report.sqlite"],
    )
    assert os.uname().nodename not in {str(value) for value in described["environment"].values()}
    assert "hunter2" not in text
    assert "the program speaks" in (request_.out / tools.OUTPUT).read_text()


def test_a_missing_or_unknown_tool_is_said_with_its_remedy(monkeypatch):
    monkeypatch.setattr(tools, "find_program", lambda _name: None)
    for tool in ("nsys", "ncu", "sanitizer"):
        with pytest.raises(MachineError) as caught:
            tools.locate_tool(tool)
        assert "CUDA toolkit" in caught.value.remedy
        assert "--tool torch" in caught.value.remedy
    assert tools.locate_tool("torch") is None
    with pytest.raises(UsageError, match="no tool called 'gdb'"):
        tools.locate_tool("gdb")


@pytest.mark.parametrize(
    ("tool", "slug", "device", "reason"),
    [
        *(
            (tool, slug, "virtual", "none run on the emulated device")
            for tool in ("ncu", "sanitizer")
            for slug in ("stuttering-tagger", "ddp-scaling", "perf-gate", "past-the-plateau")
        ),
        *(
            ("memory", slug, "virtual", "the emulated device has another")
            for slug in ("forecaster-out-of-memory", "ddp-scaling", "idle-gpu", "perf-gate")
        ),
        ("ncu", "resnet-latency", "cpu", "none run on `cpu`"),
        ("sanitizer", "fused-attention", "cpu", "none run on `cpu`"),
    ],
)
def test_a_tool_that_does_not_fit_the_device_is_refused_with_the_remedy(tool, slug, device, reason):
    """A lab on the emulated device ended in PyTorch's traceback about `virtual`."""
    with pytest.raises(UsageError) as caught:
        tools.require_device(tool, find_lab(slug), device)
    assert caught.value.message.startswith(f"`--tool {tool}` ")
    assert reason in caught.value.message
    assert caught.value.remedy.startswith("`lab profile` without `--tool` records ")
    # Neither a server nor a benchmark is captured by these tools on a GPU.
    on_gpu = tool != "memory" and slug not in ("past-the-plateau", "perf-gate")
    assert ("`--device cuda`" in caught.value.remedy) is on_gpu


@pytest.mark.parametrize(
    ("tool", "device"),
    [
        *((tool, "cuda") for tool in tools.TOOLS),
        *((tool, device) for tool in ("torch", "nsys") for device in ("cpu", "virtual")),
        ("memory", "cpu"),
    ],
)
def test_a_tool_that_fits_the_device_is_not_refused(tool, device):
    tools.require_device(tool, find_lab("resnet-latency"), device)


class TestOfALab:
    """The workload as it runs alone, under a stand-in."""

    def profiled(self, tool, tmp_path, out):
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        (workspace / "predict.py").write_text("print('alone')")
        shown = []
        workload = Workload(find_lab("resnet-latency"), workspace, "cpu", tmp_path / "photos")
        trace = tools.profile_workload(
            workload, tool, out, lambda doing, _share: shown.append(doing)
        )
        return trace, shown

    def test_the_command_is_shown_and_can_be_run_by_hand(
        self, stand_in, tmp_path, request_, monkeypatch
    ):
        monkeypatch.setenv("HOMES", str(tmp_path / "homes"))
        monkeypatch.setattr(tools, "find_program", lambda name: Path(stand_in(name, NCU)))
        trace, shown = self.profiled("ncu", tmp_path, request_.out)
        assert trace.name == "report.csv"
        (line,) = shown
        assert line.startswith(f"$ LAB_PHOTOS={tmp_path}/photos LAB_DEVICE=cpu ")
        assert line.endswith("-u predict.py")
        described = json.loads((request_.out / "capture.json").read_text())
        assert (described["lab"], described["device"], described["emulated"]) == (
            "resnet-latency",
            "cpu",
            False,
        )
        assert line == f"$ {described['command']}"
        assert "alone" in (request_.out / "output.txt").read_text()

    def test_a_report_without_a_timeline_does_not_become_the_latest_capture(
        self, stand_in, tmp_path, request_, monkeypatch
    ):
        monkeypatch.setattr(tools, "find_program", lambda name: Path(stand_in(name, NSYS)))
        with pytest.raises(CaptureError, match="nothing to make a timeline from") as caught:
            self.profiled("nsys", tmp_path, request_.out)
        assert "--tool torch" in caught.value.remedy
