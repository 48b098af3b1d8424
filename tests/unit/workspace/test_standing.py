"""The worth of a first diagnosis, where a check judges the answers by captures of its own."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict
from bottleneck_lab.workspace.commitments import Commitment, Help, Record
from bottleneck_lab.workspace.standing import _count_corrections, standing_of

RIGHT = {"genuine-capture", "top-operators", "share", "bounds", "ceiling"}
AT = "2026-01-02T00:00:00+00:00"


@pytest.fixture
def lab():
    return load_labs()["resnet-top-ops"]


def standing(lab, holds: dict[str, bool], *, firsts=("aten::conv2d",), before: bool | None = None):
    """Return the worth after a check with these results, of lab.toml's criteria. `firsts`: the
    operators that were named, one a diagnosis.
    """
    kinds = {each.id: each.kind for each in lab.spec.devices["cpu"].criteria}
    verdict = Verdict(
        outcome=Outcome.FAIL if holds else Outcome.INCONCLUSIVE,
        reason=None,
        summary="",
        lab=lab.slug,
        lab_hash="",
        submission_hash="",
        device="cpu",
        criteria=[CriterionResult(id_, kinds[id_], held, "") for id_, held in holds.items()],
        environment={},
        isolation={},
        started_at=AT,
        duration_s=1.0,
    )
    commitments = [Commitment(AT, {"first": first}, "") for first in firsts]
    record = Record(commitments, Help(), 0)
    return standing_of(lab, record, verdict, lab.path, lambda _: None, before)


def test_a_check_that_judged_nothing_says_nothing_of_the_answers(lab):
    unjudged = standing(lab, {})
    assert (unjudged.named, unjudged.measured, unjudged.missed) == (None, UNSET, UNSET)


def test_a_first_diagnosis_that_was_wrong_stays_so_whatever_is_corrected(lab):
    holds = dict.fromkeys(RIGHT, True) | {"top-operators": False, "ceiling": False}
    first = standing(lab, holds)
    assert (first.named, first.measured, first.missed) == (False, False, ["ceiling"])
    both = ("aten::conv2d", "aten::addmm")
    corrected = standing(lab, dict.fromkeys(RIGHT, True), firsts=both, before=first.named)
    assert (corrected.named, corrected.corrections) == (False, 1)


def test_an_answer_that_was_given_before_is_no_correction(lab):
    firsts = ("aten::conv2d", "aten::addmm", "aten::conv2d")
    assert standing(lab, {}, firsts=firsts).corrections == 1


def test_another_prediction_is_no_correction():
    lab = load_labs()["stuttering-tagger"]
    gains = [question.id for question in lab.spec.questions if question.predicts_gain]
    assert gains
    commitments = [Commitment(AT, {"cause": "x", gains[0]: gain}, "") for gain in (2.0, 3.0)]
    assert _count_corrections(lab, Record(commitments, Help(), 0)) == 0
