"""Going through a lab as its learners will: the same commands, in a folder and their own home, that
are gone afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.catalog import Device, Lab, QuestionSpec
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.home import home

_MARKED = "0-1 ms"
"""Placeholder for a stretch, which only a reader of the capture can mark."""


def play(lab: Lab, device: Device, *, measure: bool, solve: bool) -> int:
    """Print the brief and each command's output, from `lab start` to the verdict on the shipped
    files. Returns the last command's status.

    The diagnosis is the solution's. Without `measure` there is no verdict; with `solve` there is a
    second one, on the solution's files.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
        own, place = Path(scratch) / "home", Path(scratch) / lab.slug
        own.mkdir()
        (home() / "datasets").mkdir(parents=True, exist_ok=True)
        (own / "datasets").symlink_to(home() / "datasets")
        _say_command(f"cat {lab.slug}/README.md")
        say(lab.brief().read_text(encoding="utf-8"))
        status = _run(["start", lab.slug, str(place), "--device", device], Path(scratch), own)
        for arguments in () if status else _commands(lab, measure=measure):
            status = _run(arguments, place, own)
        if solve and status in (ExitCode.OK, ExitCode.FAIL, ExitCode.INCONCLUSIVE):
            _put_solution(lab, place)
            status = _run(["check"], place, own)
        return status


def _commands(lab: Lab, *, measure: bool) -> Iterator[list[str]]:
    """The commands a learner types, in order: blind evidence, every hint, the questions, the
    answers, then causes and verdict.
    """
    yield ["profile"] if lab.spec.evidence == "profile" else ["run"]
    yield from (["hint"] for _ in lab.spec.hints)
    if lab.spec.questions:
        yield ["diagnose"]
        yield ["diagnose", *_answers(lab)]
        yield from ([["report"]] if lab.spec.evidence == "profile" else [])
    if measure:
        yield ["check"]


def _put_solution(lab: Lab, place: Path) -> None:
    """The solution's files over the shipped ones."""
    for name in lab.spec.editable:
        _say_command(f"cp solutions/{lab.slug}/{name} {name}")
        shutil.copyfile(lab.solution / name, place / name)


def _answers(lab: Lab) -> list[str]:
    """The solution's diagnosis as it is typed."""
    solved = load_answers(lab.solution)
    return [
        part
        for question in lab.spec.questions
        for part in ("-a", f"{question.id}={_answer(question, solved)}")
    ]


def _answer(question: QuestionSpec, solved: dict[str, object]) -> object:
    given = solved.get(question.id)
    if question.type == "choice" and given in question.choices:
        return question.choices.index(str(given)) + 1
    return given if is_given(given) else _MARKED


def _run(arguments: list[str], folder: Path, own: Path) -> int:
    _say_command(f"lab {' '.join(arguments)}")
    command = [sys.executable, "-m", "bottleneck_lab", *arguments]
    environment = {**os.environ, **_content(), "BOTTLENECK_LAB_HOME": str(own)}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False
    ).returncode


def _content() -> dict[str, str]:
    """The lab folders given on the command line, as absolute paths."""
    named = {
        name: os.environ[name]
        for name in ("BOTTLENECK_LAB_CONTENT", "BOTTLENECK_LAB_PACKS")
        if name in os.environ
    }
    return {
        name: os.pathsep.join(map(os.path.abspath, text.split(os.pathsep)))
        for name, text in named.items()
    }


def _say_command(text: str) -> None:
    say(f"\n$ {text}", style="bold")
    sys.stdout.flush()
