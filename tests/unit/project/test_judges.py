"""The page that says what judges what: every mutant and every variant has its place in it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.measure.lab_rules.mutants import load_mutants

ROOT = Path(__file__).parents[3]
TABLES = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["_judges"]()


@pytest.mark.parametrize("slug", sorted(load_labs()))
def test_every_mutant_and_variant_of_a_lab_is_in_its_table(slug):
    lab = load_labs()[slug]
    section = TABLES.split(f"## {slug}\n")[1].split("\n## ")[0]
    for mutant in load_mutants(lab):
        assert f"`{mutant.id}`" in section
        assert f"| {mutant.breaks} |" in section
        assert f"*{mutant.fails_with}*" in section
    for variant in (ROOT / "tests" / "variants" / slug).glob("*/"):
        assert f"`{variant.name}`" in section


LEAST_MUTANTS, LEAST_UNUSUAL = 12, 5


@pytest.mark.parametrize("slug", sorted(load_labs()))
def test_a_lab_of_the_course_has_wrong_fixes_enough_and_unusual_right_answers(slug):
    assert len(load_mutants(load_labs()[slug])) >= LEAST_MUTANTS
    assert len(list((ROOT / "tests" / "variants" / slug).glob("*/"))) >= LEAST_UNUSUAL


@pytest.mark.parametrize("slug", sorted(load_labs()))
def test_every_criterion_is_shown_to_fail_by_a_mutant(slug):
    lab = load_labs()[slug]
    measured = [spec for device, spec in lab.spec.devices.items() if device != "cuda"]
    asked = {criterion.id for spec in measured for criterion in spec.criteria}
    assert asked - {mutant.criterion for mutant in load_mutants(lab)} == set()
