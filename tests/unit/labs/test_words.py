"""What learners read of every lab: labels of criteria, and the questions in diagnosis.toml."""

from __future__ import annotations

import re

import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.commands.solution import COMMENT

LABS = list(load_labs().values())


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_every_criterion_has_a_label_for_people(lab):
    for device, spec in lab.spec.devices.items():
        labels = [criterion.label for criterion in spec.criteria]
        assert all(3 < len(label) <= 48 for label in labels), (device, labels)
        assert len({*labels}) == len(labels)
        assert not {*labels} & {criterion.id for criterion in spec.criteria if "-" in criterion.id}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_the_file_for_the_answers_asks_what_the_lab_asks(lab):
    text = (lab.path / "diagnosis.toml").read_text()
    for question in lab.spec.questions:
        assert f"# {question.ask}\n" in text, question.id
        assert all(choice in text for choice in question.choices), question.id


NOT_INSTALLED = re.compile(
    r"\blab dev\b|\bmutants?\b|tests/|docs/\w|python benchmarks/(?!parse|sort)", re.IGNORECASE
)
"""What learners do not have: the project's own tests, pages and benchmarks. The two benchmarks are
an example's.
"""


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_briefs_and_write_ups_name_nothing_that_a_learner_lacks(lab):
    pages = [*lab.path.glob("*.md"), *lab.solution.glob("*.md")]
    for page in pages:
        text = COMMENT.sub("", page.read_text())
        assert not NOT_INSTALLED.search(text), (page, NOT_INSTALLED.search(text))
    spoken = [*(hint.text for hint in lab.spec.hints), *(each.ask for each in lab.spec.questions)]
    assert not NOT_INSTALLED.search(" ".join(spoken))
