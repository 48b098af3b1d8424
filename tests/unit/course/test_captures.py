"""A lab's captures, and the source of the lines that they name."""

from __future__ import annotations

import json

import pytest

from bottleneck_lab.course import captures
from bottleneck_lab.workspace.captures import CODE, keep_code, make_capture


@pytest.fixture
def first_line(monkeypatch):
    """The first line of train.py when a capture was made, as far as that is known."""

    def first(_summary, texts):
        return {"": texts["train.py"][0]}

    monkeypatch.setattr(captures, "_named_lines", first)
    return lambda folder: captures.code_of(folder, None).get("")


@pytest.mark.parametrize("edited", [False, True], ids=["not edited", "edited meanwhile"])
def test_lines_have_the_source_that_was_captured(start, first_line, edited):
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
    assert first_line(folder) == (None if edited else "captured = 1")
