"""Programs that start one process per rank: where the launcher's own arguments end and the
program's start.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

_PYTHON = re.compile(r"^(python|pypy)[\d.]*$")
_MPI = {"mpirun", "mpiexec", "orterun"}
_TORCH_MODULES = (("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch"))
_FLAGS_WITH_VALUE = {"-X", "-W"}


@dataclass(frozen=True)
class Launch:
    """`launcher` is empty if the program is started directly; `rank` is the variable that numbers
    the processes.
    """

    launcher: tuple[str, ...]
    program: tuple[str, ...]
    rank: str = ""
    mpi: bool = False

    def around(self, *tool: str) -> list[str]:
        """Return the command line with the tool's put before the program, inside the launcher: one
        report per rank.
        """
        return [*self.launcher, *tool, *self.program]


def split(program: tuple[str, ...], python: str) -> Launch:
    """Tell `torchrun OPTIONS train.py …` and `mpirun OPTIONS program …` from a program started
    directly. `python` runs what torchrun would.
    """
    name = Path(program[0]).name
    if name in _MPI:
        first = next(
            (
                index
                for index, word in enumerate(program)
                if index
                and (
                    not word.startswith("-")
                    and (shutil.which(word) is not None or word.endswith(".py"))
                )
            ),
            len(program),
        )
        return Launch(program[:first], program[first:], "OMPI_COMM_WORLD_RANK", mpi=True)
    start = 0
    if name == "torchrun":
        start = 1
    elif is_python(program[0]) and program[1:3] in _TORCH_MODULES:
        start = 3
    if not start:
        return Launch((), program)
    at = next(
        (
            i
            for i, word in enumerate(program)
            if i >= start and (word.endswith(".py") or word == "-m")
        ),
        None,
    )
    if at is None:
        return Launch((), program)
    # torchrun would start Python itself; with --no-python the tool comes first.
    options = tuple(word for word in program[:at] if word not in ("--no-python", "--no_python"))
    if options[-1:] and is_python(options[-1]):
        options, python = options[:-1], options[-1]
    return Launch((*options, "--no-python"), (python, *program[at:]), "RANK")


def is_python(word: str) -> bool:
    """Return True if a program is a Python interpreter, by its name."""
    return bool(_PYTHON.match(Path(word).name))


def as_python(program: tuple[str, ...], python: str) -> tuple[list[str], list[str]] | None:
    """Return (interpreter with its flags, what it runs with its arguments) for anything that is
    Python; None for anything else.

    Takes `python [flags] x.py …`, `python -m module …`, `python -c code …`, `x.py …`, and an
    installed script such as `pytest`.
    """
    if is_python(program[0]):
        at = 1
        while at < len(program) and program[at].startswith("-") and program[at] not in ("-m", "-c"):
            at += 2 if program[at] in _FLAGS_WITH_VALUE else 1
        interpreter = shutil.which(program[0]) or python
        if at < len(program):
            return ([interpreter, *program[1:at]], list(program[at:]))
        return None
    if program[0].endswith(".py"):
        return [python], list(program)
    installed = shutil.which(program[0])
    if installed is None:
        return None
    with Path(installed).open("rb") as file:
        shebang = file.readline(256).decode("utf-8", "replace").removeprefix("#!").split()
    if len(shebang) == 1 and is_python(shebang[0]):
        return [shebang[0]], [installed, *program[1:]]
    return None
