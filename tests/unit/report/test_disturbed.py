"""A capture that was recorded beside other programs says so, before its figures are used."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.course.captures import read_capture, visible_summary
from bottleneck_lab.report.console.summary import render_summary, render_top
from bottleneck_lab.report.page.summary import time_section
from bottleneck_lab.workspace.start import start_workspace

CAPTURE = Path(__file__).parents[3] / "datasets" / "captures" / "synthetic-input.json.gz"


@pytest.mark.parametrize("blind", [True, False])
@pytest.mark.parametrize("others", [None, 0.2, 1.6])
def test_a_capture_beside_other_programs_warns_at_its_top(tmp_path, draw, others, blind):
    shutil.copy(CAPTURE, tmp_path / "trace.json.gz")
    described = {"files": ["trace.json.gz"], "environment": {"cores": "2"}}
    if others is not None:
        described["other_cores"] = others
    (tmp_path / "capture.json").write_text(json.dumps(described))
    made = read_capture(tmp_path)
    summary = visible_summary(made, tmp_path, blind=blind, remedies_later=False)
    warning = "Other programs kept 1.6 of 2 cores busy while this was recorded"
    page = str(time_section(summary, []))
    for text in (draw(render_summary, summary), render_top_text(draw, summary), page):
        assert (warning in " ".join(text.split())) == (others == 1.6)
    modelled = replace(made, modelled_host=True)
    assert not visible_summary(modelled, tmp_path, blind=blind, remedies_later=False).disturbed


@pytest.mark.parametrize(
    ("slug", "ceiling"),
    [("idle-gpu", 2.5), ("past-the-plateau", 3.0), ("stuttering-tagger", None)],
)
def test_a_lab_s_capture_knows_what_its_check_can_measure(tmp_path, monkeypatch, slug, ceiling):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab(slug), tmp_path / "work", "virtual")
    folder = workspace.captures / "0001-torch"
    folder.mkdir(parents=True)
    shutil.copy(CAPTURE, folder / "trace.json.gz")
    described = {"files": ["trace.json.gz"], "lab": slug, "code": ""}
    (folder / "capture.json").write_text(json.dumps(described))
    summary = visible_summary(read_capture(folder), folder, blind=False, remedies_later=False)
    assert summary.check_ceiling == ceiling


def render_top_text(draw, summary) -> str:
    return draw(lambda console: render_top(summary, "lab report", console))
