"""A lab's captures, and the source of the lines that they name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from bottleneck_lab.analysis.memory.holders import Holder, StepBlocks
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.course import captures
from bottleneck_lab.trace.load import load
from bottleneck_lab.workspace.captures import CODE, keep_code, make_capture

TRACES = Path(__file__).parents[3] / "datasets" / "captures"


@pytest.mark.parametrize("edited", [False, True], ids=["not edited", "edited meanwhile"])
def test_lines_have_the_source_that_was_captured(start, edited):
    workspace = start("stuttering-tagger")
    train = workspace.root / "train.py"
    train.write_text("captured = 1\n")

    def fill(out):
        facts = {"files": [], "code": workspace.lab.code_hash(workspace.root), "made_at": ""}
        (out / "capture.json").write_text(json.dumps(facts))
        if edited:
            train.write_text("edited = 1\n")
        keep_code(workspace.lab, workspace.root, out)

    folder = make_capture(workspace, "torch", fill)
    train.write_text("later = 1\n")
    assert (folder / CODE / "train.py").is_file()
    first = "train.py(1): train"
    assert captures.code_of(folder, [first]) == ({} if edited else {first: "captured = 1"})


@pytest.mark.parametrize(
    ("trace", "edited", "number"),
    [("sync", False, 1), ("sync", True, None), ("healthy", False, None)],
    ids=["shipped code", "edited code", "nothing found"],
)
def test_what_helps_is_in_the_report_of_the_shipped_code(start, trace, edited, number):
    workspace = start("stuttering-tagger")
    assert captures.shipped_remedies(workspace) is None
    if edited:
        (workspace.root / "train.py").write_text("edited = 1\n")

    def fill(out):
        shutil.copy(TRACES / f"synthetic-{trace}.json.gz", out / "trace.json.gz")
        code = workspace.lab.code_hash(workspace.root)
        described = {"files": ["trace.json.gz"], "code": code, "made_at": "2026-01-01"}
        (out / "capture.json").write_text(json.dumps(described))

    make_capture(workspace, "torch", fill)
    assert captures.shipped_remedies(workspace) == number


def test_a_line_during_which_memory_is_freed_has_its_source_too():
    """It may allocate nothing itself, such as a call over several lines."""
    summary = summarise(load(TRACES / "synthetic-growth.json.gz"))
    frees = StepBlocks(late_freed_at="train.py(54): train")
    holder = Holder("train.py(46): train", 0, 0, 0, 0, 0, False, 9, 1.0, "", a_step=frees)
    memory = [replace(summary.memory[0], holders=[holder])]
    assert {holder.line, "train.py(54): train"} <= captures.lines_named(
        replace(summary, memory=memory)
    )
