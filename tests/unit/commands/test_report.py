"""`lab report --html` of a capture of the workspace it stands in."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.commands import report
from bottleneck_lab.course import captures, subjects
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Prediction
from bottleneck_lab.report.evidence_only import without_taught
from bottleneck_lab.report.operator_launches import OPERATORS
from bottleneck_lab.trace import load
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.workspace import cases
from bottleneck_lab.workspace.commitments import commit, untried_findings
from bottleneck_lab.workspace.folder import to_json
from bottleneck_lab.workspace.progress import note_attempt, note_start
from bottleneck_lab.workspace.start import start_workspace

from ..report.made_up import slow

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"


def with_capture(slug, root, trace):
    """Start a lab with one capture of the shipped code: the bytes of a gzipped trace."""
    lab = find_lab(slug)
    workspace, _ = start_workspace(lab, root, "virtual")
    folder = workspace.captures / "0001-torch"
    folder.mkdir(parents=True)
    (folder / "trace.json.gz").write_bytes(trace)
    described = {"lab": slug, "files": ["trace.json.gz"], "tool": "torch"}
    described["code"] = lab.code_hash(lab.path)
    (folder / "capture.json").write_text(json.dumps(described))
    return workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A lab with one capture of the shipped code and a committed answer about it."""
    trace = (CAPTURES / "synthetic-input.json.gz").read_bytes()
    workspace = with_capture("idle-gpu", tmp_path / "here", trace)
    questions = workspace.lab.spec.questions
    question = next(question for question in questions if question.from_capture)
    commit(workspace, {question.id: 0.5}, "0001-torch")
    monkeypatch.chdir(workspace.root)
    return workspace


def test_a_capture_is_read_once(workspace, monkeypatch, tmp_path):
    read = []

    def counted(path):
        read.append(path)
        return load(path)

    monkeypatch.setattr(subjects, "load", counted)
    monkeypatch.setattr(captures, "load", counted)
    page = report.write_html(report.find_subject(None), tmp_path / "report.html").read_text()
    assert len(read) == 1
    assert "Your diagnosis" in page


@pytest.mark.parametrize(("emulated", "taken"), [(True, "0001-torch"), (False, "0002-nsys")])
def test_a_diagnosis_does_not_go_by_a_capture_that_cannot_show_the_device(
    workspace, emulated, taken
):
    later = workspace.captures / "0002-nsys"
    shutil.copytree(workspace.captures / "0001-torch", later)
    described = json.loads((later / "capture.json").read_text()) | {
        "tool": "nsys",
        "emulated": emulated,
    }
    (later / "capture.json").write_text(json.dumps(described))
    assert captures.evidence_capture(workspace).name == taken
    assert captures.readable(workspace)[-1] == later, "it can be reported on all the same"


def test_the_example_is_a_real_gpu_capture_and_needs_no_workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    shown = CliRunner().invoke(app, ["report", "--example"])
    assert shown.exit_code == 0, shown.output
    assert "NVIDIA H200" in shown.output
    assert shown.output.startswith(" Three steps of a training on an H200\n")
    assert "Next: lab start " in shown.output
    figures = CliRunner().invoke(app, ["report", "--example", "--json"])
    summary = json.loads(figures.output)["summary"]
    assert summary["findings"][0]["id"] == "launch-bound"
    assert len(list(tmp_path.iterdir())) == 0
    CliRunner().invoke(app, ["report", "--example", "--html", "page.html"])
    assert "<h1>Three steps of a training on an H200</h1>" in Path("page.html").read_text()


def test_the_example_is_small_and_names_no_folder_of_the_machine():
    capture = CAPTURES / "h200" / "training.json.gz"
    assert capture.stat().st_size < 150_000
    assert not re.search(rb'"/(?:home|root|tmp|work)/', gzip.decompress(capture.read_bytes()))


def test_a_gap_without_a_number_says_how_many_have_one(workspace):
    refused = CliRunner().invoke(app, ["report", "--gap", "999"])
    assert isinstance(refused.exception, UsageError)
    numbers = " ".join(str(refused.exception).split())
    count = int(re.search(r"longest gaps have the numbers 1 to (\d+)\.", numbers)[1])
    shown = CliRunner().invoke(app, ["report", "--gap", str(count)])
    assert shown.exit_code == 0


WAIT = "train.py(31): train"
NORMS = "max_grad_norm = max(max_grad_norm, parameter.grad.norm().item())"


@pytest.fixture
def tagger(tmp_path, monkeypatch):
    """`stuttering-tagger` with a capture that waits on a line of the shipped script."""
    host = {"ph": "X", "pid": 1, "ts": 0}
    rows = [
        host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5, "tid": 1},
        host | {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "dur": 90, "tid": 1},
        host | {"cat": "python_function", "name": WAIT, "dur": 95, "tid": f"{LINES_OF}1"},
        host | {"cat": "kernel", "name": "gemm", "dur": 80, "args": {"device": 0, "stream": 7}},
        host | {"cat": "user_annotation", "name": "ProfilerStep#1", "dur": 100, "tid": 1},
    ]
    trace = gzip.compress(json.dumps({"traceEvents": rows}).encode())
    workspace = with_capture("stuttering-tagger", tmp_path / "tagger", trace)
    monkeypatch.chdir(workspace.root)
    return workspace


def test_a_line_is_shown_with_the_source_that_was_captured(tagger, tmp_path):
    """Also after an edit: the shipped script is still there."""
    script = tagger.root / "train.py"
    script.write_text(script.read_text().replace("import os", "import os  # edited"))
    shown = CliRunner().invoke(app, ["report"], prog_name="lab").output
    assert f"{WAIT}\n" in shown
    assert NORMS[:30] in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if NORMS[:30] in line)
    page = report.write_html(report.find_subject(None), tmp_path / "page.html").read_text()
    assert NORMS in page


def test_no_source_is_shown_of_a_version_that_is_gone(tagger):
    folder = tagger.captures / "0001-torch"
    described = json.loads((folder / "capture.json").read_text()) | {"code": "another version"}
    (folder / "capture.json").write_text(json.dumps(described))
    shown = CliRunner().invoke(app, ["report"], prog_name="lab").output
    assert WAIT in shown
    assert NORMS[:30] not in shown


def test_operators_are_listed_without_a_capture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(app, ["report", "--with", "help"], prog_name="lab")
    assert listed.exit_code == 0
    for name in OPERATORS:
        assert f"\n  {name} " in listed.output


def test_a_budget_has_what_stands_below_it_in_paragraphs(tagger):
    shown = CliRunner().invoke(app, ["report", "--ask", "budget"], prog_name="lab").output
    sides, *_, notes = shown.partition("\nWithout waits a step takes")[2].strip().split("\n\n")
    assert sides.endswith("saves more.")
    assert notes.startswith("saves percent: ")


def test_several_traces_are_refused_with_what_reads_them():
    traces = [str(CAPTURES / f"synthetic-{name}.json.gz") for name in ("input", "sync")]
    refused = CliRunner().invoke(app, ["report", *traces])
    assert isinstance(refused.exception, UsageError)
    assert "lab report FOLDER" in refused.exception.remedy


def test_a_stretch_beyond_the_end_is_refused_with_the_end(workspace):
    result = CliRunner().invoke(app, ["report", "--at", "9000-9001ms"])
    assert isinstance(result.exception, UsageError)
    assert re.search(r"The capture ends at \d", result.exception.message)


def test_a_table_without_rows_says_so_and_small_figures_are_no_powers(workspace):
    none = CliRunner().invoke(app, ["report", "--query", "SELECT * FROM device WHERE start < 0"])
    assert none.output.startswith("No rows")
    small = CliRunner().invoke(app, ["report", "--query", "SELECT 0.0000216 AS percent"])
    assert "0.000022" in small.output


def test_rows_wider_than_the_terminal_have_one_value_a_line(workspace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    wide = CliRunner().invoke(app, ["report", "--query", "SELECT * FROM device LIMIT 2"]).output
    assert re.findall(r"^row (\d)$", wide, re.MULTILINE) == ["1", "2"]
    assert len(re.findall(r"^  stream  +\d+ *$", wide, re.MULTILINE)) == 2
    few = CliRunner().invoke(app, ["report", "--query", "SELECT name, rank FROM device"]).output
    assert "row 1" not in few


@pytest.mark.parametrize(
    ("capture", "question", "sizes"),
    [
        ("pageable", "copies", r"\d+\.\d [KMG]iB"),
        ("communication", "communication", r"all of these"),
    ],
)
def test_sizes_that_a_ready_question_lists_are_in_a_reports_units(
    monkeypatch, capture, question, sizes
):
    """And sizes that were not recorded are no zeros."""
    monkeypatch.setenv("COLUMNS", "80")
    trace = str(CAPTURES / f"synthetic-{capture}.json.gz")
    output = CliRunner().invoke(app, ["report", trace, "--ask", question]).output
    assert re.search(sizes, output, re.MULTILINE), output
    assert not re.search(r" 0 (?:B )?", output)
    assert "row 1" not in output


def test_an_answer_from_an_unreliable_capture_comes_with_the_reason(tmp_path):
    """Twenty launches, and the kernels of five."""
    row = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
    events = [{"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, **row, "dur": 400}]
    for number in range(1, 21):
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20 * number - 10}
        events.append({**row, **launch, "args": {"correlation": number}})
        kernel = {"cat": "kernel", "name": "gemm", "ts": 20 * number, "tid": 7}
        about = {"device": 0, "stream": 7, "correlation": number}
        events += [{**row, **kernel, "args": about}] * (number <= 5)
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    answer = CliRunner().invoke(app, ["report", str(trace), "--ask", "top-kernels"])
    assert "gemm" in answer.stdout
    assert "Unreliable, because" in answer.stderr
    sound = CliRunner().invoke(
        app, ["report", str(CAPTURES / "synthetic-launch.json.gz"), "--ask", "top-kernels"]
    )
    assert "Unreliable" not in sound.output


def test_a_diagnosis_of_another_capture_says_of_which(workspace, tmp_path):
    later = workspace.captures / "0002-torch"
    shutil.copytree(workspace.captures / "0001-torch", later)
    about = "It is about capture 0001-torch; this report shows 0002-torch."
    shown = " ".join(CliRunner().invoke(app, ["report"]).output.split())
    assert f"Your answers (`lab diagnose` shows the questions) {about}" in shown
    page = report.write_html(report.find_subject(None), tmp_path / "report.html").read_text()
    assert "It is about capture 0001-torch" in page
    own = CliRunner().invoke(app, ["report", "1"]).output
    assert "Your answers" in own
    assert all(question.ask not in own for question in workspace.lab.spec.questions)
    assert "It is about capture" not in own


def test_a_prediction_has_the_gain_beside_it_that_a_check_measured(workspace):
    question = next(each for each in workspace.lab.spec.questions if each.predicts_gain)
    commit(workspace, {question.id: 2.0}, "0001-torch")
    assert "You: 2.00x" in CliRunner().invoke(app, ["report"]).output
    assert "measured" not in CliRunner().invoke(app, ["report"]).output.split("Your answers")[1]
    for number, gain in ((1, 1.4), (2, 2.3), (3, None)):
        verdict = replace(slow(), prediction=Prediction(2.0, gain), submission_hash="")
        workspace.attempts.mkdir(exist_ok=True)
        workspace.write(workspace.attempts / f"{number:04}.json", to_json(verdict))
    answers = CliRunner().invoke(app, ["report"]).output.split("Your answers")[1]
    assert "You: 2.00x. Check 2 measured 2.30x." in " ".join(answers.split())


def test_where_a_lab_asks_for_no_capture_none_is_named_beside_the_answers(tmp_path, monkeypatch):
    trace = (CAPTURES / "synthetic-sync.json.gz").read_bytes()
    workspace = with_capture("timing-pitfalls", tmp_path / "here", trace)
    question = workspace.lab.spec.questions[0]
    commit(workspace, {question.id: question.choices[0]}, "0001-torch")
    shutil.copytree(workspace.captures / "0001-torch", workspace.captures / "0002-torch")
    monkeypatch.chdir(workspace.root)
    shown = CliRunner().invoke(app, ["report"]).output
    assert "Your answers" in shown
    assert "It is about capture" not in shown
    checked = Mock(submission_hash="other", started_at="2999-01-01")
    described = workspace.captures / "0002-torch" / "capture.json"
    description = json.loads(described.read_text()) | {"made_at": "2026-01-01"}
    described.write_text(json.dumps(description))
    older = captures.mismatch(described.parent, checked)
    current = "shows the code that is here now; the last check was of other code."
    assert older == f"0002-torch {current}", "as after `lab reset`"
    entry = workspace.root / workspace.lab.spec.editable[0]
    entry.write_text(f"{entry.read_text()}\nEDITED = True\n")
    older = captures.mismatch(described.parent, checked)
    assert older == "0002-torch shows older code than the last check."


def test_a_case_keeps_the_remedy_that_an_unchecked_lab_asks_for(workspace, tmp_path, monkeypatch):
    """Every other remedy is shown, and this one after the lab's first check."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    slug, taught = workspace.lab.slug, workspace.lab.spec.taught
    note_start(slug, str(workspace.root))
    assert untried_findings() == {taught}
    summary = summarise(load(CAPTURES / "synthetic-input.json.gz"))
    assert taught in {each.id for each in summary.findings}
    shown = {each.id: each.advice for each in without_taught(summary, {taught}).findings}
    assert shown[taught].startswith("A lab that you have started")
    assert [each.advice for each in summary.findings if each.id != taught] == [
        advice for id_, advice in shown.items() if id_ != taught
    ]
    note_attempt(slug, str(workspace.root), "FAIL")
    assert untried_findings() == set()


def test_the_tools_figures_are_of_the_same_capture_as_the_diagnosis(workspace, monkeypatch):
    """Where a check has judged them as right: else none stands beside them."""
    shutil.copytree(workspace.captures / "0001-torch", workspace.captures / "0002-torch")
    monkeypatch.setattr(report, "judged_answers", lambda *_: {"cause": True, "evidence": True})
    shown = " ".join(CliRunner().invoke(app, ["report"]).output.split())
    assert "It is about capture 0001-torch, and so are the tool's figures beside it;" in shown


def test_the_host_of_a_cases_capture_is_modelled_and_its_report_ends_with_the_answer(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    drawn = cases.draw(tmp_path, random.Random(1))
    shown = " ".join(CliRunner().invoke(app, ["report", drawn.folder]).output.split())
    assert "emulated: its times and the host's are modelled" in shown
    assert "The host's are real" not in shown
    assert shown.endswith(f"Next: {cases.ANSWER}")
    cases.skip()
    shown = CliRunner().invoke(app, ["report", drawn.folder]).output
    assert "Findings" not in shown
    assert shown.rstrip().endswith("Next: lab case")


@pytest.mark.parametrize("change", [["--without", "31"], ["--with", "3"]])
@pytest.mark.parametrize("options", [[], ["--ask", "waits"], ["--ask", "budget", "--json"]])
def test_a_printed_budget_alone_can_be_changed(options, change):
    trace = str(CAPTURES / "synthetic-launch.json.gz")
    answer = CliRunner().invoke(app, ["report", trace, *options, *change])
    assert isinstance(answer.exception, UsageError)
    assert str(answer.exception).startswith(f"`{change[0]}` changes the answer to one question")
    assert answer.stdout == ""


@pytest.mark.parametrize("accelerated", [True, False])
def test_launches_are_counted_in_a_budget_that_has_any(tmp_path, accelerated):
    """A step of 100 µs: line 9 launches a kernel in 30, and a CPU alone launches none."""
    row = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**row, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100},
        {**row, "cat": "python_function", "name": "train.py(9): step", "ts": 10, "dur": 30},
        {**row, "cat": "cpu_op", "name": "aten::mm", "ts": 11, "dur": 20},
        {**row, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 12, "dur": 8},
        {**row, "cat": "kernel", "name": "gemm", "ts": 30, "dur": 30, "tid": 7},
    ]
    events[1]["tid"] = f"{LINES_OF}1"
    events[3]["args"] = {"correlation": 1}
    events[4]["args"] = {"device": 0, "stream": 7, "correlation": 1}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events if accelerated else events[:3]}))
    change = ["--without", "9", "--with", "2"]
    answer = CliRunner().invoke(app, ["report", str(trace), "--ask", "budget", *change])
    if accelerated:
        assert "  host    0.10 − 0.03 + 0.06 = 0.13 ms, the slower side\n" in answer.stdout
        assert "  device  0.03 − 0.03 = about 0 ms," in answer.stdout
        assert "After that, a step takes about 0.13 ms" in answer.stdout, "nothing waits here"
        assert "part  " not in answer.stdout, "the table is that of the step as it is"
    else:
        assert isinstance(answer.exception, UsageError)
        assert answer.stdout == ""
