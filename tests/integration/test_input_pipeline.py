"""A lab of the `input_pipeline` kind, as `lab dev new --kind input_pipeline` makes it: windows of
tables, with a data set and a judge of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..tools import NO_SANDBOX
from ..weather import asked_again
from .test_cli import Learner

FED = Path(__file__).parents[2] / "docs" / "example-input-pipeline"


@pytest.fixture
def author(tmp_path) -> Learner:
    author = Learner(tmp_path, FED)
    made = author.lab("data", "pumps")
    assert made.returncode == 0, made.stderr
    return author


def problems(author: Learner, part: str) -> list[Any]:
    """What is wrong with the files and with each piece of a part of the lab; a busy machine is
    asked again.
    """
    rows = asked_again(
        lambda: author.json("dev", "check", "pump-watch", "--only", part),
        lambda rows: "\n".join(problem for row in rows for problem in row["problems"]),
    )
    return [row["problems"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "pieces"), [("capture", 1), ("starter", 1), ("solution", 1), ("variants", 3)]
)
def test_every_part_of_the_lab_holds(author, part, pieces):
    assert problems(author, part) == [[]] * (1 + pieces)


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
def test_each_wrong_script_fails_for_its_reason(author):
    assert problems(author, "mutants") == [[]] * 5
