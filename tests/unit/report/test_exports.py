"""A report is written in the format that its ending names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.report.exports import ENDINGS, EXPORTS, Report, find_export

from . import made_up
from .made_up_capture import capture


@pytest.fixture
def report():
    return Report(title="A capture", capture=analyse(capture()), attempts=[made_up.passed()])


@pytest.mark.parametrize(
    ("ending", "begins"), [(".html", "<!doctype html>"), (".json", "{"), (".md", "## PASS")]
)
def test_the_ending_chooses_the_format(report, tmp_path, ending, begins):
    target = tmp_path / "deep" / f"report{ending}"
    find_export(target).write(report, target)
    assert target.read_text(encoding="utf-8").lower().startswith(begins.lower())


def test_json_holds_the_summary(report, tmp_path):
    target = tmp_path / "summary.json"
    find_export(target).write(report, target)
    assert json.loads(target.read_text())["events"] == report.capture.summary.events


def test_there_is_no_verdict_before_a_check(report, tmp_path):
    with pytest.raises(UsageError, match="Nothing was checked"):
        find_export(Path("x.md")).write(Report("x", report.capture), tmp_path / "x.md")


def test_parquet_needs_pyarrow(report, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MachineError, match="pyarrow"):
        find_export(Path("x.parquet")).write(report, tmp_path / "x.parquet")


def test_another_ending_names_all():
    with pytest.raises(UsageError) as refusal:
        find_export(Path("report.docx"))
    assert ENDINGS in refusal.value.remedy
    assert all(export.ending in ENDINGS for export in EXPORTS)
