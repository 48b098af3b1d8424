"""What a verdict says of a diagnosis that is still open: no grade without measured work, and no
figures that answer it.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bottleneck_lab.catalog import CriterionSpec, find_lab, load_labs
from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.grading.conclusion import Conditions, Stopped
from bottleneck_lab.grading.verdict import CriterionResult, Graded, Outcome
from bottleneck_lab.measure import verifier
from bottleneck_lab.measure.context import Measured
from bottleneck_lab.measure.verifier import (
    _Ended,
    check_lab,
    measured_speedup,
    without_answers,
)

GIVEN = [
    CriterionResult("cause", "diagnosis", True, "right"),
    CriterionResult("share", "diagnosis", False, "off"),
]
RIGHT, WRONG = (CriterionResult("answers", "correctness", holds, "said") for holds in (True, False))
SLOW = CriterionResult("speedup", "target", False, "too slow")
SPECS = [
    CriterionSpec("answers", "correctness", "They are right"),
    CriterionSpec("speedup", "target", "It is fast"),
]


@pytest.mark.parametrize(
    "ended",
    [
        _Ended(stopped=Stopped("tampered", "train.py is too large.")),
        _Ended(Measured([WRONG])),
        _Ended(Measured([RIGHT]), machine=BusyMachineError("busy", "wait")),
        _Ended(),
        _Ended(Measured([SLOW])),
    ],
    ids=["stopped", "wrong", "machine", "nothing", "out of time"],
)
def test_answers_are_not_graded_without_measured_work(ended):
    graded = verifier._diagnosis_results(GIVEN, ended, SPECS, "correct but slow")
    assert [result.holds for result in graded] == [None, None]


def test_answers_are_graded_with_work_that_is_right_however_slow():
    ended = _Ended(Measured([RIGHT, SLOW]))
    assert verifier._diagnosis_results(GIVEN, ended, SPECS, "correct but slow") == GIVEN


def test_where_the_shipped_code_is_wrong_answers_are_graded_with_wrong_work_that_ends():
    def grades(ended):
        graded = verifier._diagnosis_results(GIVEN, ended, SPECS, "wrong output")
        return [result.holds for result in graded]

    assert grades(_Ended(Measured([WRONG, SLOW]))) == [True, False]
    assert grades(_Ended(Measured([SLOW]))) == [None, None]
    assert grades(_Ended(stopped=Stopped("crashed", "ValueError"))) == [None, None]


def test_a_crash_names_no_file_that_the_lab_gives():
    given = "runner.py, line 97, in run: raise TypeError(f'gate() must return {slower!r}')\n"
    theirs = "gate.py, line 9, in <lambda>: runner.run(commit)\n"
    error = "TypeError: gate() must return a list, not [1]"
    without = verifier.without_given_frames
    assert without(f"during a trial: {given}{error}", ["gate.py"]) == (
        f"during a trial: gate.py: {error}"
    )
    assert without(f"{theirs}{given}{error}", ["gate.py"]) == f"{theirs}{error}"
    assert without(f"{given}{error}", ["a.py", "b.py"]) == error
    assert without(error, ["gate.py"]) == error


@pytest.mark.parametrize(
    ("holds", "other_cores", "gain"),
    [
        (None, 1.1, None),
        (None, 0.1, 0.79),
        (False, 1.1, 0.79),
        (True, 1.1, 0.79),
        (None, None, 0.79),
    ],
)
def test_a_gain_that_stayed_open_beside_other_programs_is_not_measured(holds, other_cores, gain):
    target = replace(SLOW, holds=holds)
    measured = Measured([RIGHT, target], speedup=0.79, conditions=Conditions(None, other_cores))
    assert measured_speedup(measured) == gain


def test_a_submission_that_cannot_be_collected_learns_nothing_of_its_answers(
    lab, workspace, tmp_path
):
    (workspace / "smooth.py").write_text("#" * (2 << 20))
    verdict = check_lab(lab, workspace, "cpu", data=tmp_path, graded=Graded(GIVEN, None))
    assert verdict.outcome is Outcome.FAIL
    assert [result.holds for result in verdict.criteria if result.kind == "diagnosis"] == [
        None,
        None,
    ]


def test_a_lab_that_judges_the_diagnosis_itself_gets_no_second_opinion(lab, workspace, tmp_path):
    (workspace / "smooth.py").unlink()
    device = lab.spec.devices["cpu"]
    own = CriterionSpec("top-operators", "diagnosis", "The three are right")
    judging = replace(device, criteria=[*device.criteria, own])
    lab = replace(lab, spec=replace(lab.spec, devices={"cpu": judging}))
    verdict = check_lab(lab, workspace, "cpu", data=tmp_path, graded=Graded(GIVEN, None))
    answers = [result.id for result in verdict.criteria if result.kind == "diagnosis"]
    assert answers == ["top-operators"]


@pytest.mark.parametrize(
    ("slug", "outcome", "told"),
    [
        ("resnet-top-ops", Outcome.FAIL, False),
        ("resnet-top-ops", Outcome.INCONCLUSIVE, False),
        ("resnet-top-ops", Outcome.PASS, True),
        ("resnet-latency", Outcome.FAIL, True),
    ],
)
def test_measured_answers_are_told_with_a_pass_only(
    lab, workspace, tmp_path, monkeypatch, slug, outcome, told
):
    (workspace / "smooth.py").unlink()
    made = check_lab(lab, workspace, "cpu", data=tmp_path)
    monkeypatch.delenv("BOTTLENECK_LAB_CONTENT")
    verdict = replace(made, outcome=outcome, measurement={"captures": 4})
    shown = without_answers(_lab(slug), verdict)
    assert shown.measurement == ({"captures": 4} if told else {})


def _lab(slug):
    """A lab of the course, beside the example that the other fixtures are about."""
    load_labs.cache_clear()
    return find_lab(slug)
