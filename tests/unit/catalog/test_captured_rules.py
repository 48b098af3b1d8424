"""What a capture of the starter must show: judged on made-up captures whose findings are known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import HintSpec, QuestionSpec, find_lab
from bottleneck_lab.course import proving
from bottleneck_lab.grading.causes import CAUSES
from bottleneck_lab.grading.figures import FIGURES, figures_of
from bottleneck_lab.measure.lab_rules.captured import captured
from bottleneck_lab.trace import load

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"


@pytest.fixture(scope="module")
def starved():
    return summarise(load(CAPTURES / "synthetic-input.json.gz"))


def lab(**changes):
    found = find_lab("idle-gpu")
    plain = {"hints": [], "questions": [], **changes}
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, **plain))


def test_the_costliest_finding_is_the_one_that_is_taught(starved):
    assert captured(lab(taught="input-starved"), starved) == []
    (said,) = captured(lab(taught="launch-bound"), starved)
    assert "the costliest finding of the capture is `input-starved`" in said
    assert "not `launch-bound`" in said


def test_a_lab_that_teaches_no_finding_must_show_none(starved):
    (said,) = captured(lab(taught=""), starved)
    assert "`taught` names none" in said


def test_a_hint_s_evidence_must_be_there(starved):
    hints = [HintSpec("{evidence}", "input-starved"), HintSpec("{evidence}", "sync-stalls")]
    (said,) = captured(lab(taught="input-starved", hints=hints), starved)
    assert "no finding `sync-stalls` for its evidence; it shows input-starved" in said


def test_a_figure_that_a_question_is_held_against_must_be_there(starved):
    asked = [
        QuestionSpec("a", "share", "?", from_capture="idle_input_share"),
        QuestionSpec("b", "share", "?", from_capture="dta_share"),
        QuestionSpec("c", "interval", "?", shows="nowhere_share"),
    ]
    found = captured(lab(taught="input-starved", questions=asked), starved)
    assert len(found) == 2
    assert "no figure `dta_share`. Did you mean `data_share`?" in found[0]
    assert "no figure `nowhere_share`" in found[1]


@pytest.mark.parametrize("file", sorted(CAPTURES.glob("*.json.gz")), ids=lambda file: file.name)
def test_every_figure_of_a_capture_is_one_that_an_author_may_name(file):
    summary = summarise(load(file))
    ranges = {f"{name}_share" for name in summary.range_shares}
    assert set(figures_of(summary)) <= {*FIGURES, *ranges}


@pytest.mark.parametrize(
    ("slug", "recorded"), [("resnet-top-ops", "solution"), ("resnet-latency", "path")]
)
def test_where_recording_is_the_task_the_solution_records(monkeypatch, slug, recorded):
    lab, seen = find_lab(slug), {}

    def profile_workload(workload, *_):
        seen.update({name: (workload.folder / name).read_bytes() for name in lab.spec.files})

    monkeypatch.setattr(proving, "data_folder", lambda _: None)
    monkeypatch.setattr(proving, "profile_workload", profile_workload)
    monkeypatch.setattr(proving, "read_capture", lambda _: None)
    monkeypatch.setattr(proving, "captured", lambda *_: [])
    assert proving.capture_problems(lab, "cpu") == []
    (entry,) = lab.spec.editable
    assert seen[entry] == (getattr(lab, recorded) / entry).read_bytes()
    assert all(
        seen[name] == (lab.path / name).read_bytes() for name in lab.spec.files if name != entry
    )


@pytest.mark.parametrize(
    ("slug", "changes", "captured_"),
    [
        ("perf-gate", {}, False),
        ("perf-gate", {"taught": "sync-stalls"}, True),
        ("resnet-latency", {"taught": ""}, True),
    ],
)
def test_a_lab_without_a_timeline_is_captured_only_for_what_it_says_of_one(
    monkeypatch, slug, changes, captured_
):
    found = find_lab(slug)
    changed = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, **changes))
    monkeypatch.setattr(proving, "capture_problems", lambda *_: [])
    assert bool(list(proving.prove(changed, None, "capture", None))) == captured_


def test_authors_read_of_every_figure():
    page = (Path(__file__).parents[3] / "docs" / "authors" / "lab-toml.md").read_text()
    assert [
        name for name in FIGURES if not name.startswith("idle_") and f"`{name}`" not in page
    ] == []
    assert [cause for cause in CAUSES if f"`{cause}`" not in page] == []
