"""The cases at the end of the labs: one cause each, which the analysis finds and no name tells."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import Lab, SiblingSpec, load_labs
from bottleneck_lab.course import subjects
from bottleneck_lab.course.proving import sibling_problems
from bottleneck_lab.course.siblings import GradedCase
from bottleneck_lab.grading.cases import gain_by_share
from bottleneck_lab.grading.causes import CAUSES
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.grading.siblings import (
    QUESTIONS,
    grade_sibling,
    misdescribed,
    questions_about,
    removed_share,
    true_gain,
)
from bottleneck_lab.report.words import TAUGHT
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.workspace import siblings
from bottleneck_lab.workspace.cases import find_case
from bottleneck_lab.workspace.start import start_workspace

CASES = [(lab, spec) for lab in load_labs().values() for spec in siblings.specs_of(lab).values()]
IDS = [f"{lab.slug}-{spec.program}" for lab, spec in CASES]

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
NO_COPIES = summarise(load(CAPTURES / "synthetic-healthy.json.gz"))


@pytest.fixture(scope="session")
def summary_of(tmp_path_factory):
    summaries = {}

    def made(lab: Lab, spec: SiblingSpec, seed: int):
        if (key := (lab.slug, spec.program, seed)) not in summaries:
            traces = siblings.generate(lab, spec, seed, tmp_path_factory.mktemp("sibling"))
            summaries[key] = summarise(merge_ranks([load(path) for path in traces]))
        return summaries[key]

    return made


@pytest.mark.parametrize(("lab", "spec"), CASES, ids=IDS)
def test_what_holds_it_up_is_what_it_says(summary_of, lab, spec):
    summary = summary_of(lab, spec, 3)
    assert spec.cause in CAUSES
    assert misdescribed(spec, summary) == ""
    right = {"cause": spec.cause, "gain": true_gain(spec, summary)}
    assert all(result.holds for result in grade_sibling(spec, right, summary))


@pytest.mark.parametrize(("lab", "spec"), CASES, ids=IDS)
def test_no_name_and_no_story_tells_the_cause(summary_of, lab, spec):
    told = re.compile(
        "input|launch|sync|copy|communicat|straggl|bound|starv|wait|grow|leak|kept", re.IGNORECASE
    )
    assert not told.search(spec.program)
    assert not told.search(spec.story)
    text = summary_of(lab, spec, 3).source
    assert spec.cause not in text


def test_a_right_gain_says_where_the_other_figure_comes_from(summary_of):
    for name, origin in (
        ("mosaic-painter", "measured without the cause"),
        ("speech", "Amdahl's law from its share"),
    ):
        lab, spec = next(each for each in CASES if each[1].program == name)
        summary = summary_of(lab, spec, 3)
        answers = {"cause": spec.cause, "gain": true_gain(spec, summary)}
        _, gain = grade_sibling(spec, answers, summary)
        assert origin in gain.sentence


def test_a_busy_program_is_asked_for_its_largest_operator(summary_of):
    lab = load_labs()["resnet-top-ops"]
    specs = siblings.specs_of(lab)
    _, gain = questions_about(specs["plain"], [*specs.values()])
    assert gain.measure.endswith("that is busy, the cause takes the time of its largest operator.")
    # The same of each program: asked of one, it would name the cause.
    assert questions_about(specs["loop"], [*specs.values()])[1] == gain
    assert questions_about(specs["roof-tiles"], [*specs.values()]) == QUESTIONS
    share = removed_share(specs["plain"], summary_of(lab, specs["plain"], 3))
    assert share == pytest.approx(0.83, abs=0.02)
    assert true_gain(specs["plain"], summary_of(lab, specs["plain"], 3)) == 1 / (1 - share)


def test_the_two_busy_programs_of_a_lab_do_not_look_alike(summary_of):
    lab = load_labs()["resnet-top-ops"]
    specs = siblings.specs_of(lab)
    plain, lookup = (
        {row.name for row in summary_of(lab, specs[name], 3).operators}
        for name in ("plain", "lookup")
    )
    assert plain & lookup == {"aten::relu_"}


def test_a_lab_that_has_any_has_three_of_at_least_two_causes():
    for lab in (lab for lab in load_labs().values() if lab.spec.siblings):
        specs = siblings.specs_of(lab).values()
        assert len(specs) >= 3, lab.slug
        assert len({spec.cause for spec in specs}) >= 2, lab.slug
        assert any(spec.case for spec in specs), lab.slug


def test_a_case_that_this_learner_has_met_comes_last(tmp_path, monkeypatch):
    workspace, _ = start_workspace(load_labs()["idle-gpu"], tmp_path / "work", "virtual")
    names = [spec.program for spec in siblings.specs_of(workspace.lab).values()]
    met = [SimpleNamespace(name=name) for name in names if name != "mosaic-painter"]
    monkeypatch.setattr(siblings.cases, "load_drawn", lambda: met)
    drawn = siblings.draw(workspace, random.Random(1))
    assert drawn.program == "mosaic-painter"
    assert siblings.spec_of(workspace, drawn).gain == find_case("mosaic-painter").gain
    assert [path.name for path in siblings.latest_traces(workspace)] == ["trace.json.gz"]


def test_what_an_author_says_otherwise_is_told(summary_of):
    lab, spec = next(each for each in CASES if each[1].program == "speech")
    other = msgspec.structs.replace(spec, cause="copy-bound")
    assert "not copy-bound" in misdescribed(other, summary_of(lab, spec, 3))
    without = msgspec.structs.replace(spec, gain_from="exposed_communication_share")
    assert "no gain worth predicting" in misdescribed(without, summary_of(lab, spec, 3))
    library = find_case("law-library")
    told = SiblingSpec(library.name, library.story, library.cause, case=library.name)
    assert "first bar of its report" in misdescribed(
        msgspec.structs.replace(told, gain=library.gain), summary_of(lab, told, 3)
    )
    nameless = msgspec.structs.replace(spec, program="nobody")
    (said,) = sibling_problems(load_labs()["idle-gpu"], nameless)
    assert "makes no capture of 'nobody'" in said


def test_a_case_takes_one_answer_and_then_another_is_drawn(tmp_path):
    workspace, _ = start_workspace(load_labs()["idle-gpu"], tmp_path / "work", "virtual")
    rng = random.Random(1)
    first = siblings.draw(workspace, rng)
    assert siblings.draw(workspace, rng) == first, "an open case stays"
    assert siblings.latest_traces(workspace)
    siblings.answer(workspace, {"cause": "copy-bound", "gain": 2.0}, named=False)
    assert siblings.open_sibling(workspace) is None
    second = siblings.draw(workspace, rng)
    assert second.program != first.program
    assert [case.named for case in siblings.load_siblings(workspace)] == [False, None]


def test_the_reports_gain_stands_beside_a_measured_one():
    spec = SiblingSpec(cause="copy-bound", gain=1.74)
    summary = msgspec.structs.replace(
        NO_COPIES, findings=[Mock(expected_gain_ratio=1.65, share_of_wall=0.4)]
    )
    _, gain = grade_sibling(spec, {"cause": "copy-bound", "gain": 1.65}, summary)
    assert "the 1.74x measured without the cause. The report's 1.65x is" in gain.sentence
    _, exact = grade_sibling(spec, {"cause": "copy-bound", "gain": 1.75}, summary)
    assert exact.sentence == "gain: 1.75x is right, measured without the cause."


@pytest.mark.parametrize(("lab", "spec"), CASES, ids=IDS)
def test_the_rule_that_the_question_states_gives_a_right_gain(summary_of, lab, spec):
    """Whatever was measured, and whatever the report works out: 1 / (1 - share) counts."""
    summary = summary_of(lab, spec, 3)
    by_share = gain_by_share(spec.cause, figures_of(summary))
    if by_share:
        _, gain = grade_sibling(spec, {"cause": spec.cause, "gain": by_share}, summary)
        assert gain.holds, gain


def test_a_cause_is_named_whatever_gain_goes_with_it():
    spec = SiblingSpec(cause="copy-bound", gain=2.0)
    for answers, named in (
        ({"cause": "copy-bound", "gain": 9.0}, True),
        ({"cause": "input-bound", "gain": 2.0}, False),
    ):
        results = grade_sibling(spec, answers, NO_COPIES)
        assert results[1].holds is (False if named else None), "a gain rests on the cause"
        assert GradedCase(results, spec.cause, 2.0, measured=True).named is named


def test_the_report_of_an_answered_program_keeps_back_only_what_a_lab_asks_for(monkeypatch):
    summary = summarise(load(CAPTURES / "synthetic-input.json.gz"))
    first, *rest = summary.findings
    for name, result in (
        ("latest_traces", [CAPTURES]),
        ("open_sibling", None),
        ("latest_name", ""),
    ):
        monkeypatch.setattr(subjects, name, lambda _workspace, result=result: result)
    monkeypatch.setattr(subjects, "untried_findings", lambda: {first.id})
    seen = subjects.sibling_subject(Mock()).visible(summary)
    assert not seen.remedies_later
    assert [each.advice for each in seen.findings] == [TAUGHT, *(each.advice for each in rest)]
