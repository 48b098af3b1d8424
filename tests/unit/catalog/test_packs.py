"""Packs of labs: what another folder or another distribution brings joins the course."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from bottleneck_lab import catalog
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.measure.lab_rules import check_course, check_files
from bottleneck_lab.workspace.mutants import load_mutants

ROOT = Path(__file__).parents[3]
MINI, EXAMPLE = ROOT / "tests" / "integration" / "mini", ROOT / "docs" / "example"


@pytest.fixture(autouse=True)
def course(monkeypatch):
    """The course in miniature, in place of the shipped one."""
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(MINI))
    catalog.load_labs.cache_clear()
    yield
    catalog.load_labs.cache_clear()


@pytest.fixture
def beside(monkeypatch):
    """The example lab as a folder that the author is working in."""
    monkeypatch.setenv("BOTTLENECK_LAB_PACKS", str(EXAMPLE))
    catalog.load_labs.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The example lab as an installed distribution."""
    shutil.copytree(EXAMPLE, tmp_path / "some_labs" / "content")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = EntryPoints([EntryPoint("some-labs", "some_labs.content", catalog.PACKS)])
    monkeypatch.setattr(catalog, "entry_points", found.select)
    catalog.load_labs.cache_clear()
    yield tmp_path / "some_labs" / "content"
    sys.modules.pop("some_labs", None)


@pytest.mark.usefixtures("beside")
def test_a_folder_adds_its_labs_after_the_course_s_own():
    assert list(catalog.load_labs()) == [
        "slow",
        "wrong",
        "crashes",
        "endless",
        "broken",
        "running-mean",
    ]
    assert [stage.name for stage in catalog.load_course().stages] == ["only", "beginner"]


def test_an_installed_pack_adds_its_labs_and_brings_its_own_mutants(installed):
    lab = catalog.find_lab("running-mean")
    assert lab.root == installed
    assert len(load_mutants(lab, "cpu")) == 4
    assert not check_files(lab)
    assert not check_course()


def test_a_stage_of_the_same_name_is_one(installed):
    course = installed / "labs" / "course.toml"
    course.write_text(course.read_text().replace('"beginner"', '"only"'))
    catalog.load_labs.cache_clear()
    (stage,) = catalog.load_course().stages
    assert stage.labs[-1] == "running-mean"


def test_a_folder_without_a_course_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("BOTTLENECK_LAB_PACKS", str(tmp_path))
    with pytest.raises(UsageError, match=r"holds no labs/course\.toml"):
        catalog.load_labs()


def test_two_labs_of_one_name_are_refused_with_both_places(monkeypatch, tmp_path):
    shutil.copytree(MINI, tmp_path / "copy")
    monkeypatch.setenv("BOTTLENECK_LAB_PACKS", str(tmp_path / "copy"))
    with pytest.raises(LabError, match=r"Both .*mini and .*copy have a lab called 'slow'"):
        catalog.load_labs()


def test_an_entry_point_that_is_no_package_is_said(monkeypatch):
    found = EntryPoints([EntryPoint("odd", "bottleneck_lab.errors", catalog.PACKS)])
    monkeypatch.setattr(catalog, "entry_points", found.select)
    with pytest.raises(LabError, match=r"names bottleneck_lab\.errors, which is not a package"):
        catalog.load_labs()


def test_data_sets_are_shared(installed, tmp_path):
    (installed / "datasets").mkdir()
    (installed / "datasets" / "waves.py").write_text("print()\n")
    assert catalog.find_dataset("waves") == installed / "datasets" / "waves.py"
    assert catalog.find_dataset("nowhere") is None
