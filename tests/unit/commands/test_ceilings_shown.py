"""`lab doctor --measure`, and which captures its ceilings are held against. What is measured, and
how, is in measure/test_ceilings.py.
"""

import json

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bottleneck_lab.analysis.counters.roofline import CacheLevel, Machine, Roofline
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.commands import doctor
from bottleneck_lab.course import captures
from bottleneck_lab.course.captures import read_capture
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.report.console.summary import render_summary
from bottleneck_lab.report.evidence_only import evidence_only
from bottleneck_lab.workspace.attempts import Attempt
from bottleneck_lab.workspace.start import start_workspace

from ..report.made_up import slow

CPU = Machine("Fast CPU", {"fp32": 90e9}, 18e9, [CacheLevel("L1", 16384, 200e9)], 2, "2026-01-02")


@pytest.fixture
def asked(monkeypatch):
    """The devices asked for, and whether afresh."""
    asked = []

    def ceilings(device, on_step, *, again, threads):
        on_step("copying", 0.5)
        asked.append((device, again))
        assert threads is None, "this folder is no lab's"
        return CPU

    monkeypatch.setattr(doctor, "ceilings_of", ceilings)
    monkeypatch.setattr(doctor, "gpus", list)
    return asked


def test_the_ceilings_are_shown_with_where_they_balance(asked):
    done = CliRunner().invoke(app, ["doctor", "--measure"])
    assert done.exit_code == 0, done.output
    assert asked == [("cpu", False)]
    for said in (
        "Fast CPU, 2 threads, measured on 2026-01-02",
        "90.0 GFLOP/s",
        "18.0 GB/s",
        "L1      200.0 GB/s",
        "balance at 5.0 FLOP/byte",
    ):
        assert said in done.output


def test_they_are_measured_again_when_asked_and_on_a_gpu_too(asked, monkeypatch):
    monkeypatch.setattr(doctor, "gpus", lambda: ["a GPU"])
    done = CliRunner().invoke(app, ["doctor", "--measure", "--again", "--json"])
    assert asked == [("cpu", True), ("cuda", True)]
    assert [found["name"] for found in json.loads(done.stdout)] == ["Fast CPU"] * 2


def capture_of(folder, cpu: str):
    """A capture of a matrix product on a CPU of this name."""
    shapes = {
        "Input Dims": [[128, 64], [64, 32]],
        "Input type": ["float", "float"],
        "Concrete Inputs": ["", ""],
    }
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5}
    folder.mkdir()
    (folder / "trace.json").write_text(
        json.dumps({"traceEvents": [{**event, "args": {"External id": 7, **shapes}}]})
    )
    (folder / "capture.json").write_text(
        json.dumps({"files": ["trace.json"], "environment": {"cpu": cpu}})
    )
    return folder


@pytest.fixture
def stored(monkeypatch):
    monkeypatch.setattr(
        captures, "stored_ceilings", lambda device, *_: {"cpu": CPU, "cuda": None}[device]
    )
    monkeypatch.setattr(captures, "cpu_model", lambda: "Fast CPU")


def test_a_capture_of_this_cpu_is_held_against_its_ceilings(stored, tmp_path):
    found = read_capture(capture_of(tmp_path / "mine", "Fast CPU")).roofline
    assert found.machine == CPU
    assert found.rows[0].bound == "compute-bound"


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cuda", None)])
def test_in_a_lab_they_are_measured_with_the_labs_threads(monkeypatch, tmp_path, device, threads):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("resnet-top-ops"), tmp_path / "work", device)
    assert captures.lab_threads(workspace.captures / "0001-torch") == threads
    assert captures.lab_threads(tmp_path) is None


def test_a_capture_of_another_cpu_is_not(stored, tmp_path):
    found = read_capture(capture_of(tmp_path / "other", "Slow CPU")).roofline
    assert found.machine is None
    assert "lab doctor --measure" in found.note


def test_before_a_diagnosis_the_balance_is_shown_and_no_bound(stored, tmp_path, capsys):
    summary = evidence_only(read_capture(capture_of(tmp_path / "mine", "Fast CPU")))
    render_summary(summary, Console(width=100))
    shown = capsys.readouterr().out
    assert "Fast CPU: memory and fp32 arithmetic balance at 5.0 FLOP/byte" in " ".join(
        shown.split()
    )
    assert "compute-bound" not in shown


@pytest.mark.parametrize(
    ("blind", "judged", "rows", "sentence"),
    [
        (True, False, True, "they are listed here once a check has judged your answers"),
        (False, False, True, "they are listed here once a check has judged your answers"),
        (False, True, True, "aten::mm fp32"),
        (False, True, False, "This capture has no shapes"),
        (True, False, False, "This capture has no shapes"),
    ],
)
def test_a_lab_that_asks_for_flop_per_byte_shows_them_once_answers_are_judged(
    stored, monkeypatch, tmp_path, capsys, blind, judged, rows, sentence
):
    result = CriterionResult("bounds", "diagnosis", holds=False if judged else None, sentence="")
    verdict = msgspec.structs.replace(slow(), criteria=[result])
    monkeypatch.setattr(captures, "load_attempts", lambda _: [Attempt(1, verdict, tmp_path)])
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("resnet-top-ops"), tmp_path / "work", "cpu")
    workspace.captures.mkdir(parents=True)
    folder = capture_of(workspace.captures / "0001-torch", "Fast CPU")
    description = json.loads((folder / "capture.json").read_text()) | {"lab": "resnet-top-ops"}
    (folder / "capture.json").write_text(json.dumps(description))
    summary = read_capture(folder)
    if not rows:
        summary = msgspec.structs.replace(summary, roofline=Roofline())
    summary = captures.visible_summary(summary, folder, blind=blind, remedies_later=False)
    render_summary(summary, Console(width=100))
    shown = " ".join(capsys.readouterr().out.split())
    assert sentence in shown
    assert ("aten::mm fp32" in shown) == (judged and rows)


@pytest.mark.parametrize("others", [0.0, 1.8])
def test_figures_measured_beside_other_programs_say_so_here_and_in_reports(
    asked, stored, monkeypatch, tmp_path, others
):
    machine = msgspec.structs.replace(CPU, disturbed_by=others)
    monkeypatch.setattr(doctor, "ceilings_of", lambda *_, **__: machine)
    done = CliRunner().invoke(app, ["doctor", "--measure"])
    assert ("Other programs kept 1.8" in done.output) == (others > 0)
    monkeypatch.setattr(captures, "stored_ceilings", lambda *_: machine)
    note = read_capture(capture_of(tmp_path / "mine", "Fast CPU")).roofline.note
    assert ("Other programs kept 1.8 cores busy" in note) == (others > 0)


@pytest.mark.parametrize("others", [0.0, 1.8])
def test_more_than_the_arithmetic_ceiling_means_that_it_was_measured_too_low(
    stored, monkeypatch, tmp_path, others
):
    low = {name: rate / 1e3 for name, rate in CPU.flops.items()}
    machine = msgspec.structs.replace(CPU, flops=low, disturbed_by=others)
    monkeypatch.setattr(captures, "stored_ceilings", lambda *_: machine)
    note = read_capture(capture_of(tmp_path / "mine", "Fast CPU")).roofline.note
    assert note.count("`lab doctor --measure --again`") == 1
    assert "cache" not in note
