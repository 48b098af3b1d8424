"""A lab of the `data_parallel` kind, as `lab dev new --kind data_parallel` makes it: a model of
windows of readings, with a cost table of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..tools import NO_SANDBOX
from .test_cli import Learner

RANKED = Path(__file__).parents[2] / "docs" / "example-data-parallel"


@pytest.mark.long
@pytest.mark.parametrize("part", ["starter", pytest.param("solution", marks=pytest.mark.slow)])
def test_the_shipped_script_scales_too_little_and_the_solution_enough(tmp_path, part):
    """On a modelled clock: no other program can spoil it."""
    rows = Learner(tmp_path, RANKED).json("dev", "check", "pump-fleet", "--only", part)
    assert [row["problems"] for row in rows] == [[]] * 2


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
@pytest.mark.parametrize(("part", "pieces"), [("capture", 1), ("variants", 3), ("mutants", 4)])
def test_every_other_part_of_the_lab_holds(tmp_path, part, pieces):
    rows = Learner(tmp_path, RANKED).json("dev", "check", "pump-fleet", "--only", part)
    assert [row["problems"] for row in rows] == [[]] * (1 + pieces)
