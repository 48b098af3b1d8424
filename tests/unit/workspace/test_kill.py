"""`kill -9` at any moment: whatever was acknowledged is there afterwards, and everything that is
there can be read.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bottleneck_lab import catalog
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.folder import open_workspace
from bottleneck_lab.workspace.hints import load_hints
from bottleneck_lab.workspace.progress import load_progress, note_hint
from bottleneck_lab.workspace.start import edited

from ...processes import running

MINI = Path(__file__).parents[2] / "integration" / "mini"
ROUNDS = 14
LINES = 5
"""That a writer says in its first turn: it is killed in the middle of each kind of work, however
slow the machine is.
"""

WRITER = """
import sys
from pathlib import Path
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.grading.verdict import Outcome, Verdict
from bottleneck_lab.workspace.attempts import record, submission
from bottleneck_lab.workspace.captures import make_capture
from bottleneck_lab.workspace.diagnosis_file import save_answers
from bottleneck_lab.workspace.hints import take_hint
from bottleneck_lab.workspace.progress import note_attempt
from bottleneck_lab.workspace.start import reset_workspace, start_workspace

root = Path(sys.argv[1])
workspace, _ = start_workspace(find_lab("slow"), root, "cpu")
verdict = Verdict(
    outcome=Outcome.FAIL, reason="correct but slow", summary="", lab="slow", lab_hash="",
    submission_hash="", device="cpu", criteria=[], environment={}, isolation={},
    started_at="2026-11-21T09:00:00Z", duration_s=1.0,
)
print("started", flush=True)
for turn in range(10_000):
    (root / "work.py").write_text(f"# {turn}\\n" * 100)
    with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
        print("attempt", record(workspace, verdict, folder).number, flush=True)
    note_attempt("slow", str(root), "FAIL")
    print("noted", flush=True)
    make_capture(workspace, "torch", lambda out: (out / "capture.json").write_text("{}" * 1000))
    print("captured", flush=True)
    take_hint(workspace)
    save_answers(workspace, {"cause": "memory bandwidth", "gain": 1.0 + turn})
    kept = reset_workspace(workspace)
    print("kept", kept, flush=True)
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(MINI))
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    catalog.load_labs.cache_clear()
    yield
    catalog.load_labs.cache_clear()


def kill_at(root: Path, count: int, after_s: float) -> list[str]:
    """What a writer had acknowledged when it was killed `after_s` after so many lines (or at once,
    for 0).
    """
    command = [sys.executable, "-c", WRITER, str(root)]
    with running(command, stdout=subprocess.PIPE, text=True) as writer:
        first = [writer.stdout.readline() for _ in range(count)]
        time.sleep(after_s)
        os.kill(writer.pid, signal.SIGKILL)
        rest, _ = writer.communicate()
    assert writer.returncode == -signal.SIGKILL, "the writer failed by itself"
    return [line.strip() for line in [*first, *rest.splitlines()]]


def test_nothing_recorded_is_ever_lost(environment, tmp_path):
    root, lines = tmp_path / "work", []
    for round_ in range(ROUNDS):
        lines += kill_at(root, 1 + round_ % LINES, random.Random(round_).uniform(0, 0.1))
        check(root, lines)
    assert {"started", "noted", "captured"} <= set(lines)
    assert any(line.startswith("kept ") for line in lines)
    note_hint("slow", str(root))
    assert not [path for path in (tmp_path / "home").iterdir() if path.name.startswith(".writing-")]


def check(root: Path, lines: list[str]) -> None:
    workspace = open_workspace(root)
    numbers = [attempt.number for attempt in load_attempts(workspace)]
    acknowledged = [int(line.split()[1]) for line in lines if line.startswith("attempt ")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert set(acknowledged) <= set(numbers)
    assert len(acknowledged) == len(set(acknowledged)), "a number was given twice"
    assert all((workspace.attempts / f"{number:04}" / "work.py").is_file() for number in numbers)
    captures = sorted(workspace.captures.glob("[0-9]*"))
    assert lines.count("captured") <= len(captures)
    assert all((path / "capture.json").stat().st_size == 2000 for path in captures)
    for line in lines:
        if line.startswith("kept ") and line != "kept None":
            assert any(Path(line.removeprefix("kept ")).iterdir())
    entry = load_progress().labs.get("slow")
    assert lines.count("noted") <= (entry.attempts if entry else 0)
    load_hints(workspace)
    edited(workspace)
