"""The worth of a first diagnosis, where a check judges the answers by captures of its own."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict
from bottleneck_lab.workspace.commitments import Commitment, Help, Record
from bottleneck_lab.workspace.standing import standing_of

RIGHT = {"genuine-capture", "top-operators", "share", "bounds", "ceiling"}
AT = "2026-01-02T00:00:00+00:00"


@pytest.fixture
def lab():
    return load_labs()["resnet-top-ops"]


def standing(lab, holds: dict[str, bool], *, corrections: int = 0, before: bool | None = None):
    """Return the worth after a check with these results, of lab.toml's criteria."""
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
    commitments = [Commitment(AT, {"first": "aten::conv2d"}, "")] * (1 + corrections)
    record = Record(commitments, Help(), 0)
    return standing_of(lab, record, verdict, lab.path, lambda _: None, before)


def test_a_check_that_judged_nothing_says_nothing_of_the_answers(lab):
    unjudged = standing(lab, {})
    assert (unjudged.named, unjudged.measured, unjudged.missed) == (None, UNSET, UNSET)


def test_a_first_diagnosis_that_was_wrong_stays_so_whatever_is_corrected(lab):
    holds = dict.fromkeys(RIGHT, True) | {"top-operators": False, "ceiling": False}
    first = standing(lab, holds)
    assert (first.named, first.measured, first.missed) == (False, False, ["ceiling"])
    corrected = standing(lab, dict.fromkeys(RIGHT, True), corrections=1, before=first.named)
    assert corrected.named is False
