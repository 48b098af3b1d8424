"""The map of the code: its layers are the enforced ones, and what it points to is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "checker" / "bottleneck_lab"
MAP = (ROOT / "docs" / "map.md").read_text()
DECLARED = ("lab.toml", "course.toml")
WALKS = (
    "A new lab",
    "A new finding",
    "A new cause of idle time",
    "A new kind of lab",
    "A new export of grades",
    "A new executor for checks",
)


def test_the_table_of_layers_is_the_contract():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    contract = next(one for one in contracts if one["name"].startswith("Layers:"))
    enforced = [layer.replace("bottleneck_lab.", "") for layer in contract["layers"]]
    table = MAP.partition("<!-- layers: begin -->")[2].partition("<!-- layers: end -->")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert [cell.replace("`, `", " | ").strip("`") for cell in cells] == enforced


def test_every_top_level_module_is_in_a_layer():
    inside = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    names = set(re.findall(r"`(\w+)`", MAP))
    # What is not a layer: ways in from outside, and data.
    elsewhere = {"__init__", "__main__", "__pycache__", "py", "content", "judging", "pytest_gate"}
    assert inside - elsewhere <= names


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w.-]+/[\w./-]*|\w+\.\w+)`", MAP))))
def test_what_the_map_names_is_there(name):
    assert (ROOT / name).exists() or (PACKAGE / name).exists() or name in DECLARED


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z_]{3,})`, `([\w./]+)`", MAP))))
def test_a_list_that_takes_a_row_is_in_the_file_named(name):
    variable, file = name
    assert re.search(rf"^{variable}\b.*=", (PACKAGE / file).read_text(), re.MULTILINE)


def test_the_map_walks_through_the_six_additions():
    assert tuple(re.findall(r"^### (.*)$", MAP, re.MULTILINE)) == WALKS
