"""The record of judged work: which code a verdict depends on, and what its tables count."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.grading.margins import Margin, Proof, Row

from ...modules import load_file

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def judged():
    yield load_file(ROOT / "benchmarks" / "judged_work.py", "judged_work")
    del sys.modules["judged_work"]


def hash_of(judged, source: str) -> str:
    return judged.hash_code([("check.py", source.encode())])


CODE = 'def limit(x):\n    """Half."""\n    return x / 2\n'


@pytest.mark.parametrize(
    "same",
    [
        "def limit( x ):\n\n    return (x/2)\n",
        '"""A module."""\ndef limit(x):\n    """Any\n    text."""\n    # why\n    return x / 2\n',
    ],
)
def test_formatting_comments_and_docstrings_are_not_code(judged, same):
    assert hash_of(judged, same) == hash_of(judged, CODE)


@pytest.mark.parametrize(
    "other", [CODE.replace("2", "3"), CODE.replace("limit", "bound"), CODE.replace("/", "//")]
)
def test_a_change_of_code_is_noticed(judged, other):
    assert hash_of(judged, other) != hash_of(judged, CODE)


def test_other_files_count_byte_by_byte_and_by_name(judged):
    kernel = judged.hash_code([("a.cpp", b"int x;")])
    assert kernel != judged.hash_code([("a.cpp", b"int  x;")])
    assert kernel != judged.hash_code([("b.cpp", b"int x;")])


@pytest.mark.parametrize("slug", load_labs())
def test_a_check_depends_on_its_own_kind_and_what_that_imports(judged, slug):
    measure = load_labs()[slug].spec.measure
    files = {
        path.relative_to(ROOT / "checker" / "bottleneck_lab").as_posix()
        for path in judged.checker_files(measure)
    }
    kind = ROOT / "checker" / "bottleneck_lab" / "measure" / "kinds" / measure
    own = {f"measure/kinds/{measure}/{path.relative_to(kind)}" for path in kind.rglob("*.py")}
    assert own <= files
    assert {"measure/verifier.py", "grading/criteria.py"} <= files
    assert not [path for path in files if path.startswith(("cohort/", "report/", "commands/"))]
    if measure == "speedup":
        assert not [path for path in files if path.startswith("measure/kinds/data_parallel/")]


@pytest.mark.parametrize(
    ("measure", "program"),
    [
        ("training", "measure/virtual_gpu/engine.py"),
        ("training", "measure/virtual_gpu/lineage.py"),  # which the engine imports
        ("operator_profile", "measure/worker.py"),
    ],
)
def test_a_check_depends_on_the_programs_that_it_starts_by_name(judged, measure, program):
    assert ROOT / "checker" / "bottleneck_lab" / program in judged.checker_files(measure)


def test_a_change_of_the_checker_takes_its_lines_out_of_the_count(judged, tmp_path, monkeypatch):
    lab = find_lab("timing-pitfalls")
    work = judged.Work(lab.slug, "virtual", "solution")
    monkeypatch.setattr(judged, "RECORD", tmp_path / "record.jsonl")
    monkeypatch.setattr(judged, "all_work", lambda labs: [(lab, work)])
    tally = judged.tally_of(lab, work, {})
    tally.right, tally.seconds = 3, [2.0, 3.0, 4.0]
    judged.save({work: tally})
    assert judged.tables([lab]).splitlines()[2].endswith("| 1 right | 1 | 1 | 0 | 0 | 3 | 0 |")

    monkeypatch.setattr(judged, "checker_of", lambda _measure: "changed")
    assert judged.tables([lab]).splitlines()[2].endswith("| 1 right | 0 | 0 | 0 | 0 | – | 1 |")
    assert not judged.tally_of(lab, work, judged.read()).done


def row(outcome: str, *problems: str) -> Row:
    margin = Margin("speedup", 2.5, 2.4, 2.6, 2.0, at_least=True, unit="x")
    proof = Proof("solution", "", "cpu", outcome, [margin], "a machine", right=True)
    return Row("lab", "solution on cpu", list(problems), proof)


def test_only_a_verdict_decides(judged):
    tally = judged.Tally(judged.Work("lab", "cpu", "solution"), "files", "checker")
    judged.count(tally, row("INCONCLUSIVE", "It should PASS."), 9.0, 1.5)
    assert (tally.right, tally.wrong, tally.undecided) == (0, 0, 1)
    assert (tally.outcome, tally.loads, tally.done) == ("", [1.5], False)
    for _ in range(3):
        judged.count(tally, row("PASS"), 10.0, 0.1)
    assert (tally.right, tally.done, tally.outcome) == (3, True, "PASS")
    assert tally.figures == {"speedup": "2.5x"}
    judged.count(tally, row("FAIL", "It should PASS."), 11.0, 0.1)
    assert tally.wrong == 1
    assert tally.seconds == [9.0, 10.0, 10.0, 10.0, 11.0]


def test_the_record_has_a_line_for_each_work_that_there_is(judged):
    lines = judged.RECORD.read_bytes().splitlines()
    works = [msgspec.json.decode(line, type=judged.Tally).work for line in lines]
    assert len(works) == len(set(works))
    there_are = {work for _, work in judged.all_work(load_labs().values())}
    assert not [work for work in works if work not in there_are]
