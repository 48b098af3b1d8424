"""The cases at the end of the labs: one cause each, which the analysis finds and no name tells."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import load_labs
from bottleneck_lab.course.proving import sibling_problems
from bottleneck_lab.grading.siblings import CAUSES, grade_sibling, misdescribed, true_gain
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.workspace import siblings
from bottleneck_lab.workspace.start import start_workspace

SCRIPT = Path(__file__).parents[3] / "datasets" / "siblings.py"
CASES = [(lab.slug, spec) for lab in load_labs().values() for spec in lab.spec.siblings]


@pytest.fixture(scope="session")
def summary_of(tmp_path_factory):
    @cache
    def made(program: str, seed: int):
        out = tmp_path_factory.mktemp("sibling")
        command = [
            sys.executable,
            str(SCRIPT),
            "--program",
            program,
            "--seed",
            str(seed),
            "--out",
            str(out),
        ]
        subprocess.run(command, check=True, timeout=120)
        return summarise(merge_ranks([load(path) for path in sorted(out.glob("*.gz"))]))

    return made


@pytest.mark.parametrize(("slug", "spec"), CASES, ids=lambda case: getattr(case, "program", case))
@pytest.mark.parametrize("seed", [3])
def test_what_holds_it_up_is_what_it_says(summary_of, slug, spec, seed):
    summary = summary_of(spec.program, seed)
    assert spec.cause in CAUSES
    assert misdescribed(spec, summary) == "", slug
    right = {"cause": spec.cause, "gain": true_gain(spec, summary)}
    assert all(result.holds for result in grade_sibling(spec, right, summary))


@pytest.mark.parametrize(("slug", "spec"), CASES, ids=lambda case: getattr(case, "program", case))
def test_no_name_and_no_story_tells_the_cause(summary_of, slug, spec):
    told = re.compile(
        "input|launch|sync|copy|communicat|straggl|bound|starv|wait|grow|leak|kept", re.IGNORECASE
    )
    assert not told.search(spec.program)
    assert not told.search(spec.story)
    text = summary_of(spec.program, 3).source
    assert spec.cause not in text


def test_a_lab_that_has_any_has_three_of_at_least_two_causes():
    for lab in (lab for lab in load_labs().values() if lab.spec.siblings):
        causes = {spec.cause for spec in lab.spec.siblings}
        assert len(lab.spec.siblings) >= 3, lab.slug
        assert len(causes) >= 2, lab.slug


def test_what_an_author_says_otherwise_is_told(summary_of):
    spec = next(spec for _, spec in CASES if spec.program == "speech")
    other = msgspec.structs.replace(spec, cause="copy-bound")
    assert "not copy-bound" in misdescribed(other, summary_of("speech", 3))
    without = msgspec.structs.replace(spec, gain_from="exposed_communication_share")
    assert "no gain worth predicting" in misdescribed(without, summary_of("speech", 3))
    nameless = msgspec.structs.replace(spec, program="nobody")
    (said,) = sibling_problems(load_labs()["idle-gpu"], nameless)
    assert "makes no capture of 'nobody'" in said


def test_one_answer_and_then_another_case(tmp_path):
    workspace, _ = start_workspace(load_labs()["idle-gpu"], tmp_path / "work", "virtual")
    rng = random.Random(1)
    first = siblings.draw(workspace, rng)
    assert siblings.draw(workspace, rng) == first, "an open case stays"
    assert siblings.traces_of(workspace)
    siblings.answer(workspace, {"cause": "copy-bound", "gain": 2.0}, named=False)
    assert siblings.open_case(workspace) is None
    second = siblings.draw(workspace, rng)
    assert second.program != first.program
    assert [case.named for case in siblings.load_drawn(workspace)] == [False, None]
