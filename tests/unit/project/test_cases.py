"""The library of cases agrees with its programs and declarations, and one recording comes out the
same again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab import load
from bottleneck_lab.grading.cases import CAUSES, Case
from bottleneck_lab.workspace.cases import load_library

ROOT = Path(__file__).parents[3]
CASES = ROOT / "datasets" / "cases"
LIBRARY = {case.name: case for case in load_library().cases}
TELLING = ("slow", "bottleneck", "todo", "fixme", "inefficien", "wasteful", "unnecessar")


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield
    for name in [name for name in sys.modules if name.startswith("scripts.cases")]:
        del sys.modules[name]


def test_the_manifest_lists_every_folder():
    assert set(LIBRARY) == {path.parent.name for path in CASES.glob("*/case.toml")}


@pytest.mark.parametrize("name", ["bird-choirs", "rail-cracks"])
def test_recorded_memory_says_which_block_is_freed(name: str):
    memory = load(CASES / name / "trace.json.gz").memory
    blocks = memory.address[memory.bytes > 0]
    assert len(blocks) > 100
    assert len(np.unique(blocks)) == len(blocks)


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_a_case_agrees_with_its_program_and_declaration(name: str):
    from scripts.cases.__main__ import digests, problems
    from scripts.cases.record import PROGRAM, apply, lines_of, load_spec

    case, folder = LIBRARY[name], CASES / name
    spec, program = load_spec(folder), (folder / PROGRAM).read_text()
    assert case.sha256 == digests(folder), f"record it again: python -m scripts.cases {name}"
    assert problems(case) == []
    assert (case.title, case.level, case.cause) == (spec.title, spec.level, spec.cause)
    for declared, listed in ((spec.switch, case.switches), (spec.decoy, case.decoys)):
        assert {each.name for each in declared} == {each.name for each in listed}
        for each in declared:
            compile(apply(program, each), PROGRAM, "exec")
            assert lines_of(program, each) == next(
                other.lines for other in listed if other.name == each.name
            )


@pytest.mark.parametrize("case", LIBRARY.values(), ids=sorted(LIBRARY))
def test_nothing_gives_a_case_away(case: Case):
    program = (CASES / case.name / "program.py").read_text()
    assert 40 <= program.count("\n") <= 150
    text = f"{program} {case.story} {case.title}".lower()
    assert not [word for word in (*TELLING, *CAUSES[:-1]) if word in text]


def test_the_library_has_every_level_and_every_cause():
    assert len(LIBRARY) >= 30
    assert {case.level for case in LIBRARY.values()} == {1, 2, 3}
    assert {case.cause for case in LIBRARY.values()} == set(CAUSES)


def test_a_recording_comes_out_the_same_again():
    from scripts.cases.__main__ import traces
    from scripts.cases.record import PROGRAM, load_spec, run

    folder = CASES / "roof-tiles"
    runs = run((folder / PROGRAM).read_text(), load_spec(folder))
    assert dict(traces(runs)) == {path.name: path.read_bytes() for path in folder.glob("*.json.gz")}
