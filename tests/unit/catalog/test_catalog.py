"""The labs as data: read strictly, and every mistake named with its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bottleneck_lab import catalog
from bottleneck_lab.errors import LabError, UsageError

MINI = Path(__file__).parents[2] / "integration" / "mini"


@pytest.fixture
def content(tmp_path, monkeypatch):
    copy = tmp_path / "content"
    shutil.copytree(MINI, copy)
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(copy))
    catalog.load_labs.cache_clear()
    yield copy
    catalog.load_labs.cache_clear()


def change(content: Path, old: str, new: str) -> None:
    file = content / "labs" / "slow" / "lab.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_labs_come_in_the_courses_order(content):
    assert list(catalog.load_labs()) == ["slow", "wrong", "crashes", "endless", "broken"]
    assert catalog.find_lab("slow").stage == "only"


def test_an_unknown_lab_suggests_the_nearest(content):
    with pytest.raises(UsageError) as caught:
        catalog.find_lab("endles")
    assert caught.value.remedy == "Did you mean 'endless'?"


def test_a_lab_like_none_points_to_the_list(content):
    with pytest.raises(UsageError) as caught:
        catalog.find_lab("qqqq")
    assert "lab list" in caught.value.remedy


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("minutes = 1", "minutes = 1\ntargets = 2", "line 4: there is no `targets` here"),
        ("minutes = 1", 'minutes = "one"', "line 3: `minutes`: expected a whole number, got text"),
        (
            'kind = "target"',
            'kind = "goal"',
            "line 22: `kind` cannot be `goal`. Valid: correctness, diagnosis, mechanism, target",
        ),
        ("[devices.cpu]", "[devices.tpu]", "tpu"),
        ('title = "Sum', '# title = "Sum', "title"),
    ],
)
def test_a_mistake_in_a_specification_is_named(content, old, new, complaint):
    change(content, old, new)
    with pytest.raises(LabError, match=r"lab\.toml") as caught:
        catalog.load_labs()
    assert complaint in caught.value.message


def test_broken_toml_is_told_with_line_and_column(content):
    change(content, "minutes = 1", "minutes = ")
    with pytest.raises(UsageError, match="line 3, column 11"):
        catalog.load_labs()


def test_an_installation_without_labs_says_so(content, monkeypatch, tmp_path):
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(tmp_path / "nowhere"))
    with pytest.raises(LabError, match="labs are missing"):
        catalog.content_root()


def test_the_hash_follows_every_file_of_lab_and_solution(content):
    lab = catalog.find_lab("slow")
    seen = {lab.content_hash()}
    files = [*catalog.files_below(lab.path), *catalog.files_below(lab.solution)]
    for file in files:
        file.write_text(file.read_text() + "\n")
        seen.add(lab.content_hash())
    (lab.path / "work.py").rename(lab.path / "other.py")
    seen.add(lab.content_hash())
    assert len(seen) == 2 + len(files)


def test_the_hash_leaves_caches_out(content):
    lab = catalog.find_lab("slow")
    before = lab.content_hash()
    for name in ("__pycache__", ".cache"):
        (lab.path / name).mkdir(exist_ok=True)
        (lab.path / name / "file").write_text("x")
    assert lab.content_hash() == before


def test_the_labs_of_this_checkout_are_in_order():
    """The cheap part of `lab dev check`, for every lab of the course."""
    from bottleneck_lab.measure.lab_rules import check_files

    catalog.load_labs.cache_clear()
    problems = {slug: check_files(lab) for slug, lab in catalog.load_labs().items()}
    assert not {slug: found for slug, found in problems.items() if found}
