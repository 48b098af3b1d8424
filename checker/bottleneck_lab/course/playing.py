"""Going through a lab as its learners will: the same commands, in a folder and a home of their own
that are removed afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.home import home

_MARKED = "0-1 ms"
"""Placeholder for a stretch, which only a reader of the capture can mark."""


def play(
    lab: Lab,
    device: Device,
    *,
    measure: bool,
    solve: bool,
    announce: Callable[[str], None],
    show: Callable[[str], None],
) -> int:
    """Play a lab from `lab start` to the verdict on the shipped files.

    Returns the last command's status. `announce` is called with each command line before it runs,
    `show` with the brief; the commands write to this process's own streams. The diagnosis is the
    solution's. Without `measure` there is no verdict; with `solve` there is a second one, on the
    solution's files.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-") as scratch:
        own_home, folder = Path(scratch) / "home", Path(scratch) / lab.slug
        own_home.mkdir()
        # The data sets are shared: some take minutes to make.
        (home() / "datasets").mkdir(parents=True, exist_ok=True)
        (own_home / "datasets").symlink_to(home() / "datasets")
        environment = {**os.environ, **_absolute_content(), "BOTTLENECK_LAB_HOME": str(own_home)}

        def run(arguments: list[str], at: Path) -> int:
            announce(f"lab {' '.join(arguments)}")
            return subprocess.run(
                [sys.executable, "-m", "bottleneck_lab", *arguments],
                cwd=at,
                env=environment,
                stdin=subprocess.DEVNULL,
                check=False,
            ).returncode

        announce(f"cat {lab.slug}/README.md")
        show(lab.brief().read_text(encoding="utf-8"))
        status = run(["start", lab.slug, str(folder), "--device", device], Path(scratch))
        if status:
            return status
        for arguments in _commands(lab, measure=measure):
            status = run(arguments, folder)
        if solve and status in (ExitCode.OK, ExitCode.FAIL, ExitCode.INCONCLUSIVE):
            for name in lab.spec.editable:
                announce(f"cp solutions/{lab.slug}/{name} {name}")
                shutil.copyfile(lab.solution / name, folder / name)
            status = run(["check"], folder)
        return status


def _absolute_content() -> dict[str, str]:
    """Return the variables that name folders of labs, with absolute paths.

    The commands run in another folder than ours.
    """
    variables = {}
    for name in ("BOTTLENECK_LAB_CONTENT", "BOTTLENECK_LAB_PACKS"):
        if name in os.environ:
            folders = os.environ[name].split(os.pathsep)
            variables[name] = os.pathsep.join(map(os.path.abspath, folders))
    return variables


def _commands(lab: Lab, *, measure: bool) -> Iterator[list[str]]:
    """Yield the commands that a learner types, in order.

    They show the evidence without causes, every hint, the questions, take the answers, and show the
    causes and the verdict.
    """
    yield [lab.spec.evidence]
    if lab.spec.evidence == "profile":
        yield ["report"]
    for _ in lab.spec.hints:
        yield ["hint"]
    if lab.spec.questions:
        yield ["diagnose"]
        answers = load_answers(lab.solution)
        typed = ["diagnose"]
        for question in lab.spec.questions:
            answer = answers.get(question.id)
            if question.type == "choice" and answer in question.choices:
                answer = question.choices.index(answer) + 1
            typed += ["-a", f"{question.id}={answer if is_given(answer) else _MARKED}"]
        yield typed
        if lab.spec.evidence == "profile":
            yield ["report"]
    if measure:
        yield ["check"]
