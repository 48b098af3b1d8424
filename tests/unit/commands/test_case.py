"""`lab case`: how a level is named, and which cases come again."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.cases import PastCase
from bottleneck_lab.workspace.cases import answer, load_drawn

AGAIN = "You have answered every case that fits; this one comes again."


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def case(*words):
    return CliRunner().invoke(app, ["case", *words])


@pytest.mark.parametrize("level", ["2", "intermediate"])
def test_a_level_has_a_number_or_the_name_of_a_stage(level):
    assert "(level 2)" in case("--level", level).output


def test_a_level_that_is_neither_is_refused_with_those_that_are():
    refused = case("--level", "easy").exception
    assert isinstance(refused, UsageError)
    assert (refused.message, refused.remedy) == ("'easy' is no level.", "The levels are 1 to 3.")


def test_a_case_that_was_answered_comes_again_after_all_that_fit_and_says_so():
    fitting = ("--level", "2", "--lab", "stuttering-tagger")
    shown = []
    for _ in range(3):
        shown.append(case(*fitting).output)
        answer({}, {}, PastCase("healthy", "healthy", 1.0, 1.0))
    assert len({each.name for each in load_drawn()}) == 2
    assert [AGAIN in each for each in shown] == [False, False, True]
