"""`lab run`: what comes after it."""

from __future__ import annotations

import threading

import pytest
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.commands import run
from bottleneck_lab.measure import quiet
from bottleneck_lab.workspace.start import start_workspace


@pytest.mark.parametrize("status", [0, 1])
def test_where_a_run_is_the_evidence_the_next_step_follows(tmp_path, monkeypatch, status):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("perf-gate"), tmp_path / "work", "virtual")
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(run, "run_workload", lambda *_, **__: status)
    assert ("Next: lab diagnose" in CliRunner().invoke(app, ["run"]).output) == (status == 0)
    answers = [f"-a{text}" for text in ("real_share=0.1", "together_share=0.4", "always=sort")]
    CliRunner().invoke(app, ["diagnose", *answers])
    assert ("Next: edit gate.py" in CliRunner().invoke(app, ["run"]).output) == (status == 0)
    (workspace.root / "gate.py").write_text("raise SystemExit")
    step = "Next: edit gate.py\nYour code ended with an error" if status else "Next: lab check"
    assert step in CliRunner().invoke(app, ["run"]).output
    CliRunner().invoke(app, ["reset", "--yes"])  # empties the answers
    assert ("Next: lab diagnose" in CliRunner().invoke(app, ["run"]).output) == (status == 0)


OUT_OF_MEMORY = "torch.OutOfMemoryError: virtual GPU out of memory. Tried to allocate 0.31 MiB."


@pytest.mark.parametrize(("text", "leads_on"), [(OUT_OF_MEMORY, True), ("ValueError: x", False)])
def test_a_shipped_script_that_runs_out_of_memory_leads_to_a_capture(
    tmp_path, monkeypatch, text, leads_on
):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    lab = find_lab("forecaster-out-of-memory")
    workspace, _ = start_workspace(lab, tmp_path / "work", "virtual")
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(run, "run_workload", lambda _, on_line: on_line(f"{text}\n") or 1)
    output = CliRunner().invoke(app, ["run"]).output
    assert ("to spare, so they run to the end." in output) == leads_on
    assert ("\nNext: lab profile\n" in output) == leads_on
    assert ("Then run `lab report` and `lab diagnose`." in output) == leads_on


@pytest.mark.parametrize(("slug", "noted"), [("idle-gpu", True), ("busy-ensemble", False)])
def test_a_run_that_other_programs_disturb_says_so(tmp_path, monkeypatch, slug, noted):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab(slug), tmp_path / "work", "virtual")
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(run, "run_workload", lambda *_, **__: 0)
    monkeypatch.setattr(run, "data_folder", lambda _: tmp_path)
    monkeypatch.setattr(quiet, "busy_cores", lambda: 2.0)
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
    ran = CliRunner().invoke(app, ["run"])
    output = " ".join(ran.output.split())
    others = "Other programs keep 2.0 of 2 cores busy: this run may be slower for it."
    assert ran.exit_code == 0, output
    assert (others in output) == noted, output


def test_a_reader_that_goes_away_ends_a_run_without_a_traceback(monkeypatch):
    lines: list[str] = []

    def closed(text):
        lines.append(text)
        raise BrokenPipeError

    monkeypatch.setattr(run, "say", closed)
    output = run._Output()
    thread = threading.Thread(target=lambda: [output.line("one\n"), output.line("two\n")])
    thread.start()
    thread.join()
    assert lines == ["one"], "pytest would report what a thread raises"
    with pytest.raises(BrokenPipeError):
        output.end()
    with pytest.raises(BrokenPipeError):
        run._Output().line("from the main thread")
