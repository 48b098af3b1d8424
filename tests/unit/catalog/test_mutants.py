"""Mutants as they are declared: read, written out, and held against a verdict."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict
from bottleneck_lab.measure.lab_rules import check_files
from bottleneck_lab.measure.lab_rules.mutants import (
    Mutant,
    load_mutants,
    mutant_problems,
    mutants_folder,
    write_mutant,
)

EXAMPLE = Path(__file__).parents[3] / "docs" / "example"
SHORT = Mutant(
    id="short", breaks="all of them", fails_with="wrong output", criterion="right-answers"
)


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Lab:
    """A copy of the example, to be spoilt."""
    shutil.copytree(EXAMPLE, tmp_path / "content")
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(tmp_path / "content"))
    load_labs.cache_clear()
    yield find_lab("running-mean")
    load_labs.cache_clear()


def declare(lab: Lab, text: str) -> None:
    head = '[[mutant]]\nid = "m"\nbreaks = "something"\nfails_with = "wrong output"\n'
    (mutants_folder(lab) / "mutants.toml").write_text(head + text)


def verdict(lab: Lab, outcome: str, reason: str | None, *, right: bool = True) -> Verdict:
    result = CriterionResult("right-answers", "correctness", right, "as it says")
    return Verdict(
        outcome=Outcome(outcome),
        reason=reason,
        summary="said",
        lab=lab.slug,
        lab_hash="",
        submission_hash="",
        device="cpu",
        criteria=[result],
        environment={},
        isolation={},
        started_at="",
        duration_s=0.0,
    )


def test_each_mutant_of_the_example_is_another_wrong_solution(lab, tmp_path):
    texts = {(lab.solution / "smooth.py").read_text()}
    found = load_mutants(lab, "cpu")
    for mutant in found:
        write_mutant(lab, mutant, tmp_path / mutant.id)
        texts.add((tmp_path / mutant.id / "smooth.py").read_text())
    assert len(found) == 4
    assert len(texts) == 5


def test_only_what_a_device_uses_says_something_about_it(lab):
    assert not load_mutants(lab, "cuda")
    declare(lab, 'files = { "diagnosis.toml" = "other.toml" }')
    assert [mutant.id for mutant in load_mutants(lab, "cpu")] == ["m"]
    declare(lab, 'files = { "smooth.py" = "still_a_loop.py" }\ndevices = ["cuda"]')
    assert not load_mutants(lab, "cpu")


def test_edits_are_made_to_the_file_that_replaces_the_solutions(lab, tmp_path):
    edits = '[{ file = "smooth.py", old = "in range(", new = "in reversed(range(" }]'
    declare(lab, f'files = {{ "smooth.py" = "still_a_loop.py" }}\nedits = {edits}')
    write_mutant(lab, load_mutants(lab)[0], tmp_path / "out")
    assert "for start in reversed(range(" in (tmp_path / "out" / "smooth.py").read_text()


def test_code_is_put_at_the_end_of_the_solution(lab, tmp_path):
    declare(lab, 'append = { "smooth.py" = "running_mean = None" }')
    write_mutant(lab, load_mutants(lab)[0], tmp_path / "out")
    solution = (lab.solution / "smooth.py").read_text()
    assert (tmp_path / "out" / "smooth.py").read_text() == f"{solution}\n\nrunning_mean = None"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            'edits = [{ file = "smooth.py", old = "no such text", new = "" }]',
            "occurs 0 times in smooth.py",
        ),
        (
            'edits = [{ file = "smooth.py", old = "import", new = "" }]',
            "occurs 2 times in smooth.py",
        ),
        ('files = { "smooth.py" = "gone.py" }', "gone.py cannot be read"),
        (
            'files = { "judge.py" = "still_a_loop.py" }',
            "changes judge.py, which is not an editable file",
        ),
        ("", "changes nothing"),
        (
            'files = { "smooth.py" = "still_a_loop.py" }\ndevices = ["cuda"]',
            "names cuda, which is not a device",
        ),
        ('criterion = "beauty"', "names beauty, which is not a criterion"),
        ('colour = "red"', "there is no `colour` here"),
        (
            '[[mutant]]\nid = "m"\nbreaks = "the same"\nfails_with = "crashed"',
            "Two mutants are called m",
        ),
        (
            '[[mutant]]\nid = "n"\nbreaks = "other"\nfails_with = "ugly"',
            "`fails_with` cannot be `ugly`. Valid: correct but slow, crashed",
        ),
    ],
)
def test_a_misdeclared_mutant_is_named(lab, text, complaint):
    declare(lab, text)
    assert complaint in " ".join(check_files(lab))


def test_an_edit_that_does_not_apply_is_not_measured(lab, tmp_path):
    declare(lab, 'edits = [{ file = "smooth.py", old = "no such text", new = "" }]')
    with pytest.raises(LabError, match="no such text"):
        write_mutant(lab, load_mutants(lab)[0], tmp_path / "out")


@pytest.mark.parametrize(
    ("outcome", "reason", "right", "fault"),
    [
        ("FAIL", "wrong output", False, None),
        ("PASS", None, True, "It should FAIL (wrong output), but: PASS"),
        ("INCONCLUSIVE", None, True, "but: INCONCLUSIVE"),
        ("FAIL", "crashed", False, "but: FAIL (crashed)"),
        ("FAIL", "wrong output", True, "It should fail right-answers"),
    ],
)
def test_a_judge_is_at_fault_unless_it_fails_the_mutant_for_its_reason(
    lab, outcome, reason, right, fault
):
    found = mutant_problems(SHORT, verdict(lab, outcome, reason, right=right))
    assert (fault in found[0]) if fault else found == []


def test_a_wrong_fix_may_start_from_the_shipped_code(lab, tmp_path):
    starter = (lab.path / "smooth.py").read_text()
    last = starter.rstrip("\n").splitlines()[-1]
    declare(
        lab,
        f'base = "starter"\nedits = [{{ file = "smooth.py", old = \'{last}\', new = \'{last}  # as'
        " before' }]",
    )
    write_mutant(lab, load_mutants(lab)[0], tmp_path / "out")
    assert (tmp_path / "out" / "smooth.py").read_text() == starter.replace(
        last, f"{last}  # as before"
    )
