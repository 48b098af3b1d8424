"""Credit begins where work beats the shipped code, and never for the reference's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.cohort.grading.credit import basis_of, credit, split
from bottleneck_lab.cohort.grading.grades import Scored, counting
from bottleneck_lab.cohort.settings import Weights
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict
from bottleneck_lab.grading.verdict import CriterionResult, Outcome

ANSWERS = ("cause", "evidence", "where")


@pytest.fixture(autouse=True)
def course(monkeypatch, mini):
    """The real course in place of the miniature one."""
    monkeypatch.delenv("BOTTLENECK_LAB_CONTENT")
    load_labs.cache_clear()


def judged(lab: str, device: str, holds: dict[str, bool], answers: str = "", **fields):
    """A FAIL with these criteria met or missed, and those of ANSWERS right that are named."""
    kinds = {spec.id: spec.kind for spec in find_lab(lab).spec.devices[device].criteria}
    criteria = [CriterionResult(id_, kinds[id_], held, "") for id_, held in holds.items()]
    criteria += [CriterionResult(id_, "diagnosis", id_ in answers, "") for id_ in ANSWERS]
    verdict = CheckedVerdict("s", 1, lab, 0, 0.0, 0.0, "", outcome=Outcome.FAIL, device=device)
    return replace(verdict, **{"criteria": criteria, "reason": "correct but slow", **fields})


def training(fast: bool, waits: bool, right: bool = True) -> dict[str, bool]:
    correct = {"right-reports": True, "right-parameters": right}
    return correct | {"step-speedup": fast, "waits-per-interval": waits}


def share(verdict: CheckedVerdict, **weights: float) -> float:
    return credit(verdict, basis_of(find_lab(verdict.lab)), Weights(**weights))


def undecided(held: dict[str, bool], answers: str = "cause evidence where") -> CheckedVerdict:
    """Return work whose wait is gone and whose target the measurement could not decide."""
    work = judged("stuttering-tagger", "virtual", held, answers)
    criteria = [
        replace(one, holds=None if one.id == "step-speedup" else one.holds) for one in work.criteria
    ]
    return replace(work, outcome=Outcome.INCONCLUSIVE, reason=None, criteria=criteria)


SHIPPED = training(False, False)


def test_the_shipped_code_earns_nothing_whatever_is_answered():
    assert share(judged("stuttering-tagger", "virtual", SHIPPED, "evidence where")) == 0
    assert share(judged("stuttering-tagger", "virtual", SHIPPED, "cause evidence where")) == 0


def test_an_answer_corrected_once_the_figures_were_shown_earns_nothing():
    works = judged("stuttering-tagger", "virtual", training(True, False), "cause evidence")
    criteria = [replace(one, corrected=True) for one in works.criteria if one.id == "evidence"]
    others = [one for one in works.criteria if one.id != "evidence"]
    unaided, aided = share(works), share(replace(works, criteria=[*others, *criteria]))
    assert unaided - aided == pytest.approx(1 / 5)


def test_a_corrected_answer_costs_its_part_even_with_a_pass():
    solved = judged("stuttering-tagger", "virtual", training(True, True), "cause evidence where")
    solved = replace(solved, outcome=Outcome.PASS, reason=None)
    criteria = [replace(one, corrected=one.id == "evidence") for one in solved.criteria]
    corrected = replace(solved, criteria=criteria)
    assert share(solved) == 1
    assert share(corrected) == pytest.approx(4 / 5)
    assert share(corrected, diagnosis=0) == 1
    assert share(corrected, target=0, mechanism=0, diagnosis=0) == 1, "nothing has a weight"


def test_right_answers_alone_earn_where_an_instructor_says_so():
    answered = judged("stuttering-tagger", "virtual", SHIPPED, "cause evidence where")
    assert share(answered, answers_alone=True) == pytest.approx(3 / 5)
    assert share(answered, answers_alone=True, diagnosis=0) == 0


def test_the_references_code_earns_nothing_even_with_wrong_answers():
    works = training(True, True)
    for answers in ("", "cause evidence where"):
        copied = judged("stuttering-tagger", "virtual", works, answers, copied=True)
        assert share(replace(copied, reason="wrong diagnosis")) == 0
    assert share(replace(copied, outcome=Outcome.PASS, reason=None)) == 0


def test_a_mechanism_that_is_gone_earns_its_weight():
    better = judged("stuttering-tagger", "virtual", training(False, True), "cause")
    assert share(better) == pytest.approx(2 / 5)
    assert share(better, mechanism=4) == pytest.approx(5 / 8)
    assert share(better, target=0, mechanism=0, diagnosis=0) == 0
    assert share(replace(better, outcome=Outcome.PASS)) == 1


def test_the_split_of_a_labs_points_is_that_of_its_credit():
    lab = find_lab("stuttering-tagger")
    shares = split(lab, Weights())
    assert shares == pytest.approx({"target": 0.2, "mechanism": 0.2, "diagnosis": 0.6})
    better = judged("stuttering-tagger", "virtual", training(False, True))
    assert share(better) == pytest.approx(shares["mechanism"])
    assert split(lab, Weights(target=0, mechanism=0, diagnosis=0)) == {}


@pytest.mark.parametrize("reason", ["wrong output", "crashed", "timed out", "tampered"])
def test_wrong_and_stopped_work_earns_nothing(reason):
    wrong = judged("stuttering-tagger", "virtual", training(True, True, right=False), "cause")
    assert share(replace(wrong, reason=reason)) == 0


def test_what_the_shipped_code_meets_earns_nothing_and_costs_if_it_is_lost():
    lab = "forecaster-out-of-memory"
    held = {"right-reports": True, "right-parameters": True, "peak-mib": False}
    held |= {"growth-kib-per-step": False, "step-speedup": True}
    shipped = judged(lab, "virtual", held, "cause", reason="the mechanism is still there")
    assert share(shipped) == 0
    slow = judged(lab, "virtual", held | {"peak-mib": True, "step-speedup": False})
    assert share(slow) == pytest.approx(1 / 6)


@pytest.mark.parametrize(("low", "part"), [(0.9, 0.0), (1.0, 0.0), (1.5, 0.5), (1.9, 0.9)])
def test_a_target_counts_from_the_shipped_servers_rate_on(low, part):
    held = {"right-answers": True, "right-pixels": True, "bad-requests": True}
    slow = judged("past-the-plateau", "virtual", held)
    rate = CriterionResult("throughput", "target", False, "", low + 0.05, low, low + 0.1)
    assert share(replace(slow, criteria=[*slow.criteria, rate])) == pytest.approx(part / 4)


def test_undecided_work_earns_what_is_sure_as_it_would_with_a_wrong_answer():
    work = undecided(training(False, True))
    assert share(work) == 4 / 5
    missed = [replace(one, holds=False) if one.id == "where" else one for one in work.criteria]
    failed = replace(work, outcome=Outcome.FAIL, reason="wrong diagnosis", criteria=missed)
    assert share(failed) == 3 / 5
    assert share(undecided(training(False, True, right=False))) == 0
    assert share(replace(work, copied=True)) == 0


@pytest.mark.parametrize("outcome", [Outcome.INCONCLUSIVE, Outcome.ERROR])
def test_the_latest_that_counts_was_decided(outcome):
    works = [
        Scored(replace(undecided(SHIPPED), outcome=each), 0.0, 0.0, 0.0, 0.0)
        for each in (Outcome.FAIL, Outcome.PASS, outcome)
    ]
    assert counting(works, "latest") is works[1]
    assert counting(works[2:], "latest") is works[2]
