"""Drawing cases: unseen ones first, the same set for everybody, and nothing given away."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.cases import PastCase
from bottleneck_lab.workspace import cases

PAST = PastCase("healthy", "healthy", 1.0, 1.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    return tmp_path


def draw(folder: Path, **options) -> cases.DrawnCase:
    drawn = cases.draw(folder, random.Random(1), **options)
    cases.answer({}, {}, PAST)
    return drawn


def test_every_case_is_drawn_once_before_any_comes_again(folder: Path):
    count = len(cases.load_library().cases)
    assert len({draw(folder).name for _ in range(count)}) == count
    assert draw(folder).name in {case.name for case in cases.load_library().cases}


def test_the_first_case_is_of_the_easiest_level_unless_another_is_asked_for(tmp_path, monkeypatch):
    for seed in range(5):
        monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / f"home{seed}"))
        drawn = cases.draw(tmp_path, random.Random(seed), **({"level": 3} if seed == 4 else {}))
        assert cases.find_case(drawn.name).level == (3 if seed == 4 else 1)


def test_a_case_has_program_and_capture_and_no_name(folder: Path):
    drawn = cases.draw(folder, random.Random(1))
    files = sorted(path.name for path in Path(drawn.folder).iterdir())
    assert Path(drawn.folder) == folder / "cases" / "0001"
    assert files[0] == "program.py"
    assert all(name.startswith("trace") for name in files[1:])
    assert drawn.name not in "".join(files)


def test_causes_are_hidden_until_the_answer(folder: Path):
    drawn = cases.draw(folder, random.Random(1))
    trace = Path(drawn.folder) / "trace.json.gz"
    assert cases.is_open_at(trace)
    assert not cases.is_open_at(folder)
    cases.answer({}, {}, PAST)
    assert not cases.is_open_at(trace)


def test_a_level_that_is_not_there_is_refused_with_those_that_are(folder: Path):
    with pytest.raises(UsageError, match="no cases of level 9"):
        cases.draw(folder, random.Random(1), level=9)


def test_a_set_is_the_same_for_everybody_and_ends(folder: Path):
    library = cases.load_library()
    names = [case.name for case in cases.set_members("friday:3", library.cases, library.version)]
    assert [draw(folder, set_name="friday:3").name for _ in range(3)] == names
    with pytest.raises(UsageError, match="every case of the set"):
        draw(folder, set_name="friday:3")
    other = cases.set_members("monday:3", library.cases, library.version)
    assert names != [case.name for case in other]


def test_a_file_is_a_set(folder: Path):
    exam = folder / "exam.txt"
    exam.write_text("ticket-router\nbird-calls\n")
    assert [draw(folder, set_name=str(exam)).name for _ in range(2)] == [
        "ticket-router",
        "bird-calls",
    ]
    exam.write_text("nothing-like-it\n")
    with pytest.raises(UsageError, match="nothing-like-it"):
        draw(folder, set_name=str(exam))


def test_a_set_of_a_file_that_is_not_there_is_refused(folder: Path):
    with pytest.raises(UsageError, match="no file"):
        draw(folder, set_name="exam.txt")


@pytest.mark.parametrize("name", ["friday:0", "friday:x", "friday:999"])
def test_a_set_of_an_impossible_size_is_refused(folder: Path, name: str):
    with pytest.raises(UsageError, match="not a set"):
        draw(folder, set_name=name)


def test_a_case_put_away_leaves_no_open_one(folder: Path):
    cases.draw(folder, random.Random(1))
    cases.skip()
    assert cases.open_case() is None
    assert cases.load_drawn() == []
    draw(folder)


def test_files_that_are_gone_are_copied_again(folder: Path):
    drawn = cases.draw(folder, random.Random(1))
    target = Path(drawn.folder)
    for path in target.iterdir():
        path.unlink()
    target.rmdir()
    cases.copy_case(cases.find_case(drawn.name), target)
    assert (target / "program.py").is_file()
