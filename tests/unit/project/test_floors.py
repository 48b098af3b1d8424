"""`make floors`: what it installs, and which checks it makes. The CI runs it, not a test."""

import tomllib
from pathlib import Path

import pytest

from bottleneck_lab.measure.kinds.registry import built_in

from ...modules import load_file

ROOT = Path(__file__).parents[3]
floors = load_file(ROOT / "scripts" / "floors.py", "floors_script")


def test_every_requirement_of_core_labs_and_cohort_has_a_floor_to_prove():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = floors.requirements(project)
    assert set(project["dependencies"]) <= set(required)
    assert set(project["optional-dependencies"]["labs"]) <= set(required)
    assert {line.split(">=")[0] for line in required} >= set(floors.TEST_TOOLS)


def test_a_requirement_without_a_floor_is_an_error():
    project = {
        "dependencies": ["rich"],
        "optional-dependencies": {"labs": [], "cohort": [], "sign-in": [], "test": []},
    }
    with pytest.raises(ValueError, match="'rich' has no lowest version"):
        floors.requirements(project)


def test_a_solution_of_every_kind_is_checked():
    checked = floors.one_of_each_kind()
    assert {each.kind for each in checked} == built_in()
