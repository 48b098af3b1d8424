"""`lab compare` on any two captures, in a lab or not."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from typer.testing import CliRunner

from bottleneck_lab.analysis.comparing.compare import compare
from bottleneck_lab.analysis.comparing.comparison import without_judgement
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.course.captures import code_of, is_of_memory
from bottleneck_lab.trace import load
from bottleneck_lab.workspace.start import start_workspace

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
BEFORE, AFTER = (CAPTURES / f"synthetic-{name}.json.gz" for name in ("input", "healthy"))


def lab(*arguments, at):
    environment = {**os.environ, "BOTTLENECK_LAB_HOME": str(at / "home")}
    command = [sys.executable, "-m", "bottleneck_lab", "compare", *map(str, arguments)]
    return subprocess.run(
        command, cwd=at, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def _captures(folder: Path, trace: Path, count: int) -> Path:
    for number in range(count):
        one = folder / f"{number + 1:04}-torch"
        one.mkdir(parents=True)
        (one / trace.name).symlink_to(trace)
        (one / "capture.json").write_text(json.dumps({"files": [trace.name]}))
    return folder


def test_any_two_files_are_compared(tmp_path):
    done = lab(BEFORE, AFTER, at=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Faster in these two captures: " in done.stdout
    assert "The device waits for data" in done.stdout


def test_captures_of_this_folder_are_compared_by_number(tmp_path):
    for number, trace in ((1, BEFORE), (2, AFTER)):
        (folder,) = _captures(tmp_path / f"made{number}", trace, 1).iterdir()
        folder.rename(
            (tmp_path / "captures" / f"{number:04}-torch").parent.mkdir(exist_ok=True)
            or tmp_path / "captures" / f"{number:04}-torch"
        )
    for arguments in ((), ("1", "2")):
        found = json.loads(lab(*arguments, "--json", at=tmp_path).stdout)
        assert (found["before"], found["after"]) == ("0001-torch", "0002-torch")
        assert found["comparison"]["outcome"] == "better"


@pytest.mark.long
def test_folders_of_repeated_captures_are_compared_pair_by_pair(tmp_path):
    before, after = (
        _captures(tmp_path / "before", BEFORE, 16),
        _captures(tmp_path / "after", AFTER, 16),
    )
    found = json.loads(lab(before, after, "--json", at=tmp_path).stdout)
    assert (found["before"], found["after"], found["comparison"]["pairs"]) == (
        "before",
        "after",
        16,
    )
    assert found["comparison"]["outcome"] == "better"
    again = _captures(tmp_path / "again", BEFORE, 16)
    done = lab(before, after, "--control", again, at=tmp_path)
    assert "against itself came out at 1.00x" in " ".join(done.stdout.split())
    uneven = lab(before, _captures(tmp_path / "fewer", AFTER, 3), at=tmp_path)
    assert uneven.returncode == 2
    assert "16 in before and 3 in fewer" in uneven.stderr
    short = lab(before, after, "--control", tmp_path / "fewer", at=tmp_path)
    assert short.returncode == 2
    assert "3 in fewer and 16 in before" in " ".join(short.stderr.split())


def test_the_page_has_both_timelines_aligned(tmp_path):
    done = lab(BEFORE, AFTER, "--html", "changes.html", at=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "changes.html").read_text()
    assert "before · Device 0" in page
    assert "after · Device 0" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((BEFORE, BEFORE), "the same capture"), (("no.json", AFTER), "does not exist"), ((), "")],
)
def test_what_cannot_be_compared_says_why(tmp_path, arguments, message):
    done = lab(*arguments, at=tmp_path)
    assert done.returncode in (2, 4)
    assert message in done.stderr


def test_it_says_which_captures_it_compares_and_that_the_code_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("stuttering-tagger"), tmp_path / "lab", "virtual")
    code = workspace.lab.code_hash(workspace.root)
    for number, trace in ((1, BEFORE), (2, AFTER)):
        (folder,) = _captures(tmp_path / f"made{number}", trace, 1).iterdir()
        made = {"files": [trace.name], "code": code, "made_at": f"2026-11-2{number}T02:31:10+00:00"}
        (folder / "capture.json").write_text(json.dumps(made))
        workspace.captures.mkdir(exist_ok=True)
        folder.rename(workspace.captures / f"{number:04}-torch")
    monkeypatch.chdir(workspace.root)
    shown = " ".join(CliRunner().invoke(app, ["compare"]).output.split())
    assert "Before: 0001-torch, made 2026-11-21 02:31:10 UTC; after: 0002-torch, made" in shown
    assert "changed after" not in shown
    (workspace.root / "train.py").write_text("raise SystemExit")
    shown = " ".join(CliRunner().invoke(app, ["compare"]).output.split())
    assert "train.py changed after 0002-torch, the latest capture" in shown
    reported = CliRunner().invoke(app, ["report", "--ask", "waits"]).stderr
    assert "train.py changed after 0002-torch, the latest capture" in " ".join(reported.split())
    named = CliRunner().invoke(app, ["report", "2", "--ask", "waits"]).stderr
    assert "changed after" not in named


def test_a_single_capture_of_code_that_has_changed_since_asks_for_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("stuttering-tagger"), tmp_path / "lab", "virtual")
    folder = workspace.captures / "0001-torch"
    folder.mkdir(parents=True)
    (folder / "trace.json.gz").symlink_to(BEFORE)
    code = workspace.lab.code_hash(workspace.root)
    made = {"files": ["trace.json.gz"], "code": code, "made_at": "2026-11-21T02:31:10+00:00"}
    (folder / "capture.json").write_text(json.dumps(made))
    monkeypatch.chdir(workspace.root)
    assert "Once the code is changed" in lab(at=workspace.root).stderr
    (workspace.root / "train.py").write_text("raise SystemExit")
    assert "The code has changed since: run `lab profile`." in (lab(at=workspace.root).stderr)


def test_the_latest_capture_is_set_against_the_code_before_its_edit(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("stuttering-tagger"), tmp_path / "lab", "virtual")
    codes = "shipped", "first edit", "second edit", "second edit"
    for number, code in enumerate(codes, start=1):
        folder = workspace.captures / f"{number:04}-torch"
        folder.mkdir(parents=True)
        (folder / "trace.json.gz").symlink_to(BEFORE if number < 3 else AFTER)
        made = {"files": ["trace.json.gz"], "code": code, "made_at": "2026-11-21T02:31:10+00:00"}
        (folder / "capture.json").write_text(json.dumps(made))
    monkeypatch.chdir(workspace.root)
    shown = " ".join(CliRunner().invoke(app, ["compare"]).output.split())
    assert "Before: 0002-torch" in shown
    assert "after: 0004-torch" in shown
    assert "These are the latest capture from before the last edit, and the latest one." in shown
    assert "`lab compare 1` starts from the first." in shown
    assert "Next: lab report" in shown
    named = CliRunner().invoke(app, ["compare", "1"]).output
    assert "Before: 0001-torch" in named
    assert "These are" not in named
    shutil.rmtree(workspace.captures / "0001-torch")
    shutil.rmtree(workspace.captures / "0002-torch")
    shown = " ".join(CliRunner().invoke(app, ["compare"]).output.split())
    assert "Before: 0003-torch" in shown
    assert "These are the two latest captures, of the same code." in shown


def test_in_a_lab_about_memory_lines_have_their_source_and_memory_comes_first(
    tmp_path, monkeypatch
):
    """The shipped script's lines are those of the lab; elsewhere no source is at hand."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    memory, speed = (
        start_workspace(find_lab(name), tmp_path / name, "virtual")[0]
        for name in ("forecaster-out-of-memory", "busy-ensemble")
    )
    assert is_of_memory(memory.captures / "0001-torch")
    assert not is_of_memory(speed.captures / "0001-torch")
    assert not is_of_memory(BEFORE)
    capture = memory.captures / "0001-torch"
    capture.mkdir(parents=True)
    code = memory.lab.code_hash(memory.root)
    (capture / "capture.json").write_text(json.dumps({"files": [], "lab": "x", "code": code}))
    text = (memory.root / "train.py").read_text().splitlines()
    number = next(n for n, each in enumerate(text, 1) if "loss.backward()" in each)
    line = f"train.py({number}): train"
    assert code_of(capture, [line, "aten::mm"]) == {line: "loss.backward()"}
    assert code_of(BEFORE, [line]) == {}


def test_an_unchanged_modelled_time_is_the_same_where_a_program_measures_others():
    timeline = load(BEFORE)
    comparison = compare(timeline, timeline)
    other = msgspec.structs.replace(
        comparison,
        repeats=True,
        differences=[Mock(kind="program")],
        changes=[msgspec.structs.replace(e, outcome="cannot tell") for e in comparison.changes],
    )
    assert {each.outcome for each in without_judgement(other).changes} == {"same"}
    settings = msgspec.structs.replace(other, differences=[Mock(kind="settings")])
    assert {each.outcome for each in without_judgement(settings).changes} == {"cannot tell"}


def test_a_benchmark_that_measures_more_is_not_slower(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("timing-pitfalls"), tmp_path / "lab", "virtual")
    for number, trace in ((1, AFTER), (2, BEFORE)):
        folder = workspace.captures / f"{number:04}-torch"
        folder.mkdir(parents=True)
        (folder / "trace.json.gz").symlink_to(trace)
        (folder / "capture.json").write_text(json.dumps({"files": ["trace.json.gz"], "lab": "x"}))
    monkeypatch.chdir(workspace.root)
    shown = " ".join(CliRunner().invoke(app, ["compare"]).output.split())
    assert "Neither faster nor slower: this program measures others" in shown
    assert not re.search(r"Slower|worse|better|two programs|finding|differs|gone|new", shown)
    made = json.loads(CliRunner().invoke(app, ["compare", "--json"]).output)["comparison"]
    assert made["outcome"] == "differs"
    page = tmp_path / "page.html"
    written = CliRunner().invoke(app, ["compare", "--html", str(page)])
    assert written.exit_code == 0
    headline, file = written.stdout.split("The comparison is in ")
    assert "Neither faster nor slower" in headline, "what it comes to stands beside its page"
    assert Path("".join(file.split())) == page
    assert "Neither faster nor slower" in page.read_text()


@pytest.mark.parametrize("command", ["compare", "report"])
def test_a_program_is_no_damaged_capture(tmp_path, command):
    programs = [tmp_path / "program.py", tmp_path / "fixed.py"]
    for program in programs:
        program.write_text('"""A program."""\n')
    names = [str(each) for each in programs][: 2 if command == "compare" else 1]
    error = CliRunner().invoke(app, [command, *names]).exception
    assert "program.py is a program, not a capture" in str(error)
    assert "`diff OLD NEW`" in error.remedy


def test_lines_of_a_second_run_are_compared(tmp_path, monkeypatch):
    """As `lab profile --stack` records them: operators in one run, lines in another."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    for side, us in (("before", 800), ("after", 300)):
        shared = {"ph": "X", "pid": 1, "tid": 1}
        rows = [
            shared | {"cat": category, "name": name, "ts": 1000 * step, "dur": dur}
            for step in range(8)
            for category, name, dur in (
                ("user_annotation", f"ProfilerStep#{step}", 1000),
                ("cpu_op", "aten::mm", us),
            )
        ]
        lines = [
            {**row, "cat": "python_function", "tid": "lines of 1", "name": "train.py(7): step"}
            for row in rows
            if row["cat"] == "cpu_op"
        ]
        folder = tmp_path / side
        folder.mkdir()
        for file, events in (("trace.json", rows), ("frames.json", rows + lines)):
            (folder / file).write_text(json.dumps({"traceEvents": events}))
        described = {"files": ["trace.json"], "frames": ["frames.json"]}
        (folder / "capture.json").write_text(json.dumps(described))
    sides = [str(tmp_path / side) for side in ("before", "after")]
    done = CliRunner().invoke(app, ["compare", *sides, "--json"])
    assert done.exit_code == 0, done.output
    changes = json.loads(done.stdout)["comparison"]["changes"]
    (line,) = [each for each in changes if each["group"] == "line"]
    assert (line["what"], line["before"], line["after"]) == ("train.py: step", 800_000, 300_000)
