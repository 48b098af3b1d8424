"""Packs of labs: what another folder or another distribution brings joins the course."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from bottleneck_lab import catalog
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.measure.lab_rules import check_files
from bottleneck_lab.measure.lab_rules.course import check_course
from bottleneck_lab.measure.lab_rules.mutants import load_mutants

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
    monkeypatch.setattr("bottleneck_lab.catalog.content.entry_points", found.select)
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
    monkeypatch.setattr("bottleneck_lab.catalog.content.entry_points", found.select)
    with pytest.raises(LabError, match=r"names bottleneck_lab\.errors, which is not a package"):
        catalog.load_labs()


def test_data_sets_are_shared(installed, tmp_path):
    (installed / "datasets").mkdir()
    (installed / "datasets" / "waves.py").write_text("print()\n")
    assert catalog.find_dataset("waves") == installed / "datasets" / "waves.py"
    assert catalog.find_dataset("nowhere") is None


def _with_aliases(content: Path, slug: str, *aliases: str) -> None:
    spec = content / "labs" / slug / "lab.toml"
    spec.write_text(f"aliases = {list(aliases)}\n".replace("'", '"') + spec.read_text())


@pytest.fixture
def content(tmp_path, monkeypatch):
    """A copy of the miniature course, which a test may change."""
    shutil.copytree(MINI, tmp_path / "content")
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(tmp_path / "content"))
    catalog.load_labs.cache_clear()
    return tmp_path / "content"


def test_an_older_name_finds_the_lab(content):
    _with_aliases(content, "slow", "sluggish")
    assert catalog.find_lab("sluggish").slug == "slow"
    assert catalog.current_name("sluggish") == "slow"
    assert catalog.current_name("of-another-installation") == "of-another-installation"


def test_an_unknown_name_suggests_the_present_one_only(content):
    _with_aliases(content, "slow", "sluggish")
    with pytest.raises(UsageError) as caught:
        catalog.find_lab("sluggis")
    assert "sluggish" not in caught.value.remedy


@pytest.mark.parametrize(("slug", "alias"), [("wrong", "sluggish"), ("wrong", "slow")])
def test_two_labs_cannot_share_an_older_name(content, slug, alias):
    _with_aliases(content, "slow", "sluggish")
    _with_aliases(content, slug, alias)
    with pytest.raises(LabError, match=f"alias '{alias}', which also names the lab"):
        catalog.load_labs()


def test_a_packs_alias_cannot_take_the_name_of_a_lab(content, tmp_path, monkeypatch):
    pack = tmp_path / "pack"
    shutil.copytree(EXAMPLE, pack)
    _with_aliases(pack, "running-mean", "slow")
    monkeypatch.setenv("BOTTLENECK_LAB_PACKS", str(pack))
    with pytest.raises(LabError, match="alias 'slow', which also names the lab"):
        catalog.load_labs()
