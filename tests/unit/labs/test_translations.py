"""A lab in another language: the brief that is handed out, and the words of hints, questions and
criteria.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.answers import question_about
from bottleneck_lab.measure.lab_rules import check_files
from bottleneck_lab.workspace.start import reset_workspace, start_workspace

EXAMPLE = Path(__file__).parents[3] / "docs" / "example"
WORDS = """
title = "Ein gleitendes Mittel, das kriecht"
hints = ["Wie oft wird jeder Wert addiert?", "Die Summe ist eine Differenz."]
[questions.cause]
ask = "Was begrenzt es?"
[criteria]
speedup = "Tempo"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The example lab with a German brief and German words."""
    shutil.copytree(EXAMPLE, tmp_path / "content")
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(tmp_path / "content"))
    found = tmp_path / "content" / "labs" / "running-mean"
    (found / "README.de.md").write_text("# Ein gleitendes Mittel\n")
    (found / "lab.de.toml").write_text(WORDS)
    load_labs.cache_clear()
    yield found
    load_labs.cache_clear()


@pytest.fixture
def german(folder, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_LANGUAGE", "de")
    load_labs.cache_clear()
    return find_lab("running-mean")


def test_the_originals_stand_where_no_language_is_asked_for(folder):
    lab = find_lab("running-mean")
    assert lab.spec.title == "A running mean that crawls"
    assert lab.brief().name == "README.md"
    assert not check_files(lab)


def test_what_is_translated_is_read_and_the_rest_stays(german):
    assert german.spec.title.startswith("Ein gleitendes")
    assert german.spec.symptom == "Smoothing one sensor trace takes longer than recording it."
    assert german.spec.hints[1].text == "Die Summe ist eine Differenz."
    cause = german.spec.questions[0]
    assert (cause.ask, cause.choices[0]) == ("Was begrenzt es?", "python-overhead")
    texts = [criterion.text for criterion in german.spec.devices["cpu"].criteria]
    assert texts == ["every mean agrees with the shipped code's", "Tempo"]


def test_rules_stay_as_the_choices_do_that_they_are_about(folder, monkeypatch):
    toml = folder / "lab.toml"
    question = """[[questions]]
id = "evidence"
type = "share"
ask = "How much?"
follows = "cause"
measure = "Look it up."
[questions.rules]
"memory-bound" = "Count the bytes."
"""
    toml.write_text(f"{toml.read_text()}\n{question}")
    (folder / "lab.de.toml").write_text(f'{WORDS}\n[questions.evidence]\nmeasure = "Nachsehen."\n')
    monkeypatch.setenv("BOTTLENECK_LAB_LANGUAGE", "de")
    load_labs.cache_clear()
    evidence = find_lab("running-mean").spec.questions[-1]
    assert question_about(evidence, {}).measure == "Nachsehen."
    assert question_about(evidence, {"cause": "memory-bound"}).measure == "Count the bytes."


def test_the_brief_is_handed_out_in_that_language_and_reset_to_it(german, tmp_path):
    workspace, _ = start_workspace(german, tmp_path / "work", "cpu")
    brief = tmp_path / "work" / "README.md"
    assert brief.read_text() == "# Ein gleitendes Mittel\n"
    workspace.require_current()
    brief.write_text("mine")
    reset_workspace(workspace)
    assert brief.read_text() == "# Ein gleitendes Mittel\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (', "Die Summe ist eine Differenz."', "", "line 3: 1 of the lab's 2 hints are translated"),
        ("Wie oft", "{evidence} Wie oft", "other placeholders"),
        ("[questions.cause]", "[questions.cuase]", "`cuase` is not asked. Did you mean `cause`?"),
        ("speedup =", "spedup =", "line 7: `spedup` is no criterion. Did you mean `speedup`?"),
        ("Tempo", "Tempo {target}", "`speedup` has other placeholders"),
        ("title =", "titel =", "there is no `titel` here. Did you mean `title`?"),
    ],
)
def test_a_translation_that_does_not_fit_is_told(folder, old, new, said):
    assert WORDS.count(old) == 1
    (folder / "lab.de.toml").write_text(WORDS.replace(old, new))
    assert said in " ".join(check_files(find_lab("running-mean")))


def test_a_learner_is_told_of_hints_that_are_missing(folder, monkeypatch):
    (folder / "lab.de.toml").write_text('hints = ["Nur einer"]')
    monkeypatch.setenv("BOTTLENECK_LAB_LANGUAGE", "de")
    load_labs.cache_clear()
    with pytest.raises(LabError, match="translates 1 of the lab's 2 hints"):
        load_labs()


@pytest.mark.parametrize("asked", ["../../etc", "de/x", "fr", ""])
def test_a_language_that_there_is_not_leaves_the_originals(folder, monkeypatch, asked):
    monkeypatch.setenv("BOTTLENECK_LAB_LANGUAGE", asked)
    load_labs.cache_clear()
    assert find_lab("running-mean").spec.title == "A running mean that crawls"
