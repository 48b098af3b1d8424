"""Going through a lab: which commands are typed, on which files, and when it ends. The commands
themselves are stood in for.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.course import playing

MINI = Path(__file__).parents[2] / "integration" / "mini"


@pytest.fixture
def lab(monkeypatch, tmp_path):
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(MINI))
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    load_labs.cache_clear()
    yield find_lab("slow")
    load_labs.cache_clear()


@pytest.fixture
def typed(monkeypatch, lab):
    """What was typed: each command's name, and for a check the file that it found; `statuses` are
    what checks give, in order.
    """
    seen = SimpleNamespace(commands=[], checked=[], statuses=[1, 0])

    def run(command, cwd, **_):
        module, name, *rest = command[2:]
        assert module == "bottleneck_lab"
        seen.commands.append(name)
        if name == "start":
            shutil.copytree(lab.path, rest[1])
        if name != "check":
            return SimpleNamespace(returncode=0)
        seen.checked.append((cwd / "work.py").read_bytes())
        return SimpleNamespace(returncode=seen.statuses[len(seen.checked) - 1])

    monkeypatch.setattr(playing.subprocess, "run", run)
    return seen


def play(lab, *, measure, solve):
    """The status of going through the lab, with nothing printed."""
    return playing.play(lab, "cpu", measure=measure, solve=solve, announce=str, show=str)


BEFORE = ["start", "profile", "report", "hint", "hint", "diagnose", "diagnose", "report"]


def test_a_check_of_the_shipped_files_is_followed_by_one_of_the_solutions(lab, typed):
    assert play(lab, measure=True, solve=True) == 0
    assert typed.commands == [*BEFORE, "check", "check"]
    assert typed.checked == [
        (folder / "work.py").read_bytes() for folder in (lab.path, lab.solution)
    ]


@pytest.mark.parametrize(("measure", "checks"), [(True, ["check"]), (False, [])])
def test_the_solution_is_handed_in_only_when_it_is_asked_for(lab, typed, measure, checks):
    assert play(lab, measure=measure, solve=False) == len(checks)
    assert typed.commands == [*BEFORE, *checks]


@pytest.mark.parametrize(("status", "checks"), [(3, 2), (4, 1), (2, 1)])
def test_what_decides_nothing_does_not_stop_it_and_what_fails_to_run_does(
    lab, typed, status, checks
):
    typed.statuses = [status, 0]
    assert play(lab, measure=True, solve=True) == (0 if checks == 2 else status)
    assert len(typed.checked) == checks
