"""Drawing cases: unseen ones first, the same set for everybody, and nothing given away."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path

import pytest

from bottleneck_lab.analysis.findings import FINDINGS
from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.course.cases import answer_case, draw_case, standing
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.cases import PastCase
from bottleneck_lab.workspace import cases
from bottleneck_lab.workspace.atomic import write_bytes

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
    assert cases.is_hidden_at(trace)
    assert not cases.is_hidden_at(folder)
    cases.answer({}, {}, PAST)
    assert not cases.is_hidden_at(trace)


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


def test_a_late_answer_counts_nowhere(folder: Path):
    right = dict.fromkeys(("cause", "evidence", "line", "gain"), True)
    for late in (False, True):
        cases.draw(folder, random.Random(1))
        wrong = {**right, "gain": late}
        cases.answer({}, wrong, PastCase("healthy", "healthy", 1.0, 1.0, late=late))
    now = standing()
    assert (now.answered, now.named, now.points, now.streak) == (1, 1, 3, 1)
    assert now.judged == 4
    assert now.misses == {"question": {"gain": (1, 1)}, "level": {"level 1": (1, 4)}, "cause": {}}


def test_what_rests_on_a_wrong_cause_is_not_judged(folder: Path):
    drawn = cases.draw(folder, random.Random(1))
    other = "healthy" if cases.find_case(drawn.name).cause != "healthy" else "straggler"
    answer_case(drawn, {"cause": other, "evidence": 0.0001, "line": 1, "gain": 1.0})
    (answered,) = cases.load_counted()
    assert set(answered.right) == {"cause", "line"}
    assert standing().judged == 2


def test_a_set_says_how_many_cases_it_has(folder: Path):
    draw(folder, set_name="friday:3")
    draw(folder)
    now = standing("friday:3")
    assert (now.answered, now.of_set, standing().of_set) == (1, 3, 0)


def test_a_case_put_away_leaves_no_open_one_and_stays_hidden(folder: Path):
    put_away = cases.draw(folder, random.Random(1))
    cases.skip()
    assert cases.open_case() is None
    again = draw(folder)
    assert again.name != put_away.name
    assert cases.is_hidden_at(Path(put_away.folder))
    assert not cases.is_hidden_at(Path(again.folder))


def test_a_case_put_away_is_drawn_again_after_all_others(folder: Path):
    put_away = cases.draw(folder, random.Random(1), level=1)
    cases.skip()
    others = sum(case.level == 1 for case in cases.load_library().cases) - 1
    assert put_away.name not in {draw(folder, level=1).name for _ in range(others)}


def test_an_answered_case_is_drawn_again_after_one_that_was_put_away_often(folder: Path):
    lab = find_lab("stuttering-tagger")
    fitting = [each for each in lab.spec.cases if cases.find_case(each).level == 1]
    answered = {draw(folder, level=1, lab=lab).name for _ in fitting[1:]}
    for _ in range(3):
        assert cases.draw(folder, random.Random(1), level=1, lab=lab).name not in answered
        cases.skip()


TEACHING = [lab for lab in load_labs().values() if lab.spec.taught and lab.spec.cases]
CAUSE_OF = {kind.id: kind.cause for kind in FINDINGS}


@pytest.mark.parametrize("lab", TEACHING, ids=lambda lab: lab.slug)
def test_the_first_case_for_a_lab_has_the_cause_that_it_teaches(folder: Path, lab):
    taught = CAUSE_OF[lab.spec.taught]

    def draw_cause() -> str:
        drawn, _ = draw_case(folder, level=None, lab=lab, set_name="", limit_s=0.0)
        cases.answer({}, {}, PAST)
        assert drawn.lab == lab.slug
        return cases.find_case(drawn.name).cause

    draw(folder)  # one of the whole library is not yet one for the lab
    assert draw_cause() == taught
    assert {draw_cause() for _ in lab.spec.cases[1:]} - {taught}, "never only its own cause"


def test_a_member_of_a_set_that_was_put_away_comes_last(folder: Path):
    library = cases.load_library()
    names = [case.name for case in cases.set_members("friday:3", library.cases, library.version)]
    cases.draw(folder, random.Random(1), set_name="friday:3")
    cases.skip()
    assert [draw(folder, set_name="friday:3").name for _ in range(3)] == [*names[1:], names[0]]


def is_own(drawn: cases.DrawnCase) -> bool:
    """Return True if a case's folder holds the files of that case and no others."""
    case, folder = cases.find_case(drawn.name), Path(drawn.folder)
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    return all(
        hashlib.sha256(data).hexdigest() == case.sha256[name] for name, data in found.items()
    ) and set(found) == {cases.PROGRAM, *case.traces}


def test_each_draw_has_the_files_of_its_own_case(folder: Path):
    for _ in range(4):
        assert is_own(cases.draw(folder, random.Random(1)))
        cases.skip()


def test_a_folder_that_is_there_is_left_alone(folder: Path):
    notes = folder / "cases" / "0001" / "program.py"
    notes.parent.mkdir(parents=True)
    notes.write_text("# of another home\n")
    drawn = cases.draw(folder, random.Random(1))
    assert Path(drawn.folder).name == "0002"
    assert is_own(drawn)
    assert notes.read_text() == "# of another home\n"


@pytest.mark.parametrize("after", [0, 1])
def test_a_draw_that_was_killed_goes_on_and_is_hidden(folder: Path, monkeypatch, after: int):
    done = []

    def killed(path: Path, data: bytes) -> None:
        if len(done) == after + 1:  # the record, and so many files
            raise KeyboardInterrupt
        done.append(path)
        write_bytes(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(cases, "write_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            cases.draw(folder, random.Random(1))
    drawn = cases.open_case()
    assert drawn
    assert cases.is_hidden_at(Path(drawn.folder))
    cases.copy_files(drawn)
    assert is_own(drawn)


def test_files_that_are_gone_are_copied_again(folder: Path):
    drawn = cases.draw(folder, random.Random(1))
    shutil.rmtree(drawn.folder)
    cases.copy_files(drawn)
    assert is_own(drawn)


@pytest.mark.parametrize("name", ["program.py", "trace.json.gz"])
def test_answers_about_other_files_are_refused_and_not_used_up(folder: Path, name: str):
    drawn = cases.draw(folder, random.Random(1))
    (Path(drawn.folder) / name).write_text("# another story\n")
    answers = {"cause": "healthy", "evidence": 0.1, "line": 1, "gain": 1.0}
    with pytest.raises(UsageError, match="is not the file of the case"):
        answer_case(drawn, answers)
    assert cases.open_case() == drawn
    shutil.rmtree(drawn.folder)
    answer_case(drawn, answers)
