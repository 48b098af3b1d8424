"""Captures that real GPUs have recorded of shipped workloads show what lab.toml says of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bottleneck_lab.analysis.summary import Summary, summarise
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.lab_rules.captured import captured
from bottleneck_lab.trace import load

FOLDER = Path(__file__).parents[3] / "datasets" / "captures" / "h200-labs"
CAPTURES = json.loads((FOLDER / "manifest.json").read_text("utf-8"))["captures"]


def summary_of(entry: dict) -> Summary:
    content = (FOLDER / entry["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    return summarise(load(FOLDER / entry["file"]))


@pytest.mark.parametrize("entry", CAPTURES, ids=lambda entry: entry["lab"])
def test_a_recorded_capture_shows_what_its_lab_teaches(entry: dict) -> None:
    summary = summary_of(entry)
    assert not summary.emulated
    assert captured(find_lab(entry["lab"]), summary) == []


def test_a_capture_of_another_cause_is_refused() -> None:
    problems = captured(find_lab("stuttering-tagger"), summary_of(CAPTURES[0]))
    assert any("not `sync-stalls`" in problem for problem in problems)
