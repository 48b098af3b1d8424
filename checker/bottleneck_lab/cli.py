"""The `lab` program: the entry of every command, and the one place where an error becomes a message
and an exit code.

A run needs one command of twenty, so a command's module is imported when the command is run; the
help of all of them is the table below. That keeps `lab --help` and `lab list` free of torch, NumPy
and Rich. Help is plain text: Typer's boxed help imports Rich.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from bottleneck_lab.commands.plain import PlainLines
from bottleneck_lab.errors import ExitCode, LabError
from bottleneck_lab.needs import require_linux, require_packages
from bottleneck_lab.workspace.atomic import explain

SECTIONS = {
    "Look around": {
        "list": "List the course's labs, with your progress and results.",
        "doctor": (
            "Check this machine: what works, what is missing, what that would unlock, and how to"
            " get it."
        ),
        "data": "Create the labs' data set, or verify and complete an existing one.",
        "monitor": (
            "Show live GPU utilisation, memory, power and clocks, the machine's load, and the"
            " workload's step rate."
        ),
    },
    "Work on a lab": {
        "start": (
            "Start a lab: copy its files into a folder, and create its data set if it is missing."
        ),
        "run": "Run this lab's workload as it is now, and show its output.",
        "profile": (
            "Capture the lab's workload, or any program after `--`, and show where the time went."
        ),
        "report": (
            "Read a capture top-down: where the time went, the largest block, what is inside it;"
            " then the last verdict."
        ),
        "compare": (
            "Compare two versions: better, worse, the same or cannot tell, for the whole step and"
            " for each part of it."
        ),
        "diagnose": (
            "Commit to a diagnosis: the cause, the evidence in your capture, and the gain you"
            " predict."
        ),
        "check": "Measure your work and get a verdict.",
        "watch": (
            "Run a check every time you save one of the lab's editable files. Stop with Ctrl-C."
        ),
    },
    "Help and history": {
        "hint": "Show the next hint. Each one gives away a little more.",
        "reset": "Restore the lab's original files. Your edited files are saved first.",
        "solution": "Copy the reference solution into this folder. Your own files are saved first.",
        "history": "List your checks of this lab, with the predicted and the measured gain.",
        "verify": "Verify a verdict's signature, offline, and see whose verdict it is.",
    },
    "In a cohort": {
        "join": "Join a cohort. No account is needed: a name or pseudonym will do.",
        "submit": "Submit your work to your cohort.",
        "status": (
            "Show your standing in the cohort: submissions, how many are left, announcements."
        ),
    },
    "For instructors": {
        "cohort": (
            "Run a cohort: a room of learners, and the runner that measures their submissions."
        ),
    },
    "For authors": {
        "dev": "Write labs: create one and prove that it works.",
    },
}
"""Every command by section, with the first paragraph of its docstring, which a test keeps in step.
"""

_COHORT = {
    "alembic": "alembic",
    "argon2": "argon2-cffi",
    "fastapi": "fastapi",
    "jinja2": "jinja2",
    "multipart": "python-multipart",
    "segno": "segno",
    "sqlalchemy": "sqlalchemy",
    "uvicorn": "uvicorn",
}
"""Modules of the extra `cohort`, which only instructors need, and their packages."""

_ANYWHERE = ("list", "doctor", "report", "compare", "verify")
"""Commands that also run on Windows. macOS runs more; commands that need Linux report it
themselves.
"""

_MODULES = {"list": "list_labs"}
"""Of commands whose module has another name, as `list` is Python's."""
_GROUPS = ("cohort", "dev")
"""Commands with subcommands, listed in their module's COMMANDS."""

_PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def module_of(name: str) -> ModuleType:
    """The module of the command called `name`, imported now."""
    return import_module(f"bottleneck_lab.commands.{_MODULES.get(name, name)}")


# Typer's own base classes in these signatures are private (`typer._click`): Any stands for them.


class _QuickFlags:
    """Sets unset flags to False: since version 0.29, Typer loads pydantic (60 ms) to convert None
    to bool.
    """

    def get_params(self, ctx: Any) -> Any:
        """The command's parameters, with its help option."""
        parameters = super().get_params(ctx)  # type: ignore[misc]  # of the command that this is mixed into
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters


class _Command(_QuickFlags, TyperCommand):
    """A command whose module has been imported."""


class _Group(_QuickFlags, TyperGroup):
    """A command with commands of its own, whose module has been imported."""


class _Deferred(TyperCommand):
    """A command known by its name and help; its module is imported when it is run or its own
    arguments are completed.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the real command."""
        return _loaded(self.name or "").make_context(info_name, args, parent, **extra)


class _Lab(_QuickFlags, TyperGroup):
    """All commands, by name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {
            name: _Deferred(name, help=summary)
            for section in SECTIONS.values()
            for name, summary in section.items()
        }

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - Click's signature
        """Write one definition list for each section."""
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))


def _loaded(name: str) -> Any:
    """The command called `name`, built by Typer from its function.

    Raises MachineError for one that does not run on Windows, or whose module needs an extra that is
    not installed.
    """
    if sys.platform == "win32" and name not in _ANYWHERE:
        require_linux(f"`lab {name}`")
    if name == "cohort":
        require_packages("cohort", **_COHORT)
    module = module_of(name)
    if name in _GROUPS:
        return _group(module)
    return _single(name, module.command, module.EXAMPLE)


def _single(name: str, function: Callable[..., Any], example: str) -> Any:
    app = typer.Typer(add_completion=False, **_PLAIN)
    app.command(name, cls=_Command, epilog=f"Example: {example}")(function)
    return typer.main.get_command(app)


def _group(module: ModuleType) -> Any:
    summary = (module.__doc__ or "").split("\n\n")[0]
    app = typer.Typer(
        cls=_Group, help=summary, no_args_is_help=True, add_completion=False, **_PLAIN
    )
    for name, (function, example) in module.COMMANDS.items():
        app.command(name, cls=_Command, epilog=f"Example: {example}")(function)
    return typer.main.get_command(app)


app = typer.Typer(
    cls=_Lab, epilog="Example: lab start resnet-latency", invoke_without_command=True, **_PLAIN
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(metadata.version("bottleneck-lab"))
        raise typer.Exit


@app.callback()
def _lab(
    context: typer.Context,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hunt GPU performance bottlenecks in real PyTorch workloads, and get a verdict you can trust.

    On its own, `lab` shows where you are and what to do next.
    """
    if context.invoked_subcommand is None:
        module_of("where").command()


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds the stack as Ctrl-C does, so that workers end and unfinished folders are
    removed.
    """
    raise SystemExit(128 + signum)


def _tell(message: str, remedy: str) -> None:
    """Prints an error: what is wrong, then what to do. A closed terminal is ignored."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.write(f"{message}\n→ {remedy}\n" if remedy else f"{message}\n")


def _unexpected(error: Exception) -> ExitCode:
    """An unexpected error is our fault, never a FAIL: exit code 4, with the traceback only on
    request.
    """
    if os.environ.get("BOTTLENECK_LAB_DEBUG"):
        raise error
    where = ""
    trace = error.__traceback__
    while trace:
        where, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    _tell(
        f"bottleneck-lab itself failed: {type(error).__name__}: {error} ({where}).",
        "Your work is safe. To report this, run it again with BOTTLENECK_LAB_DEBUG=1 and include"
        " the traceback.",
    )
    return ExitCode.ERROR


_PIPE_CLOSED = 141
"""The status a shell reports for a program killed by SIGPIPE. The signal itself stays ignored: a
dying worker must not take the verifier with it.
"""


def _invoke() -> int:
    """Run the command line; the exit status."""
    try:
        app(prog_name="lab")
    except SystemExit as end:
        return _status(end)
    except LabError as error:
        _tell(error.message, error.remedy)
        return error.exit_code
    except BrokenPipeError:
        return _PIPE_CLOSED
    except OSError as error:
        if os.environ.get("BOTTLENECK_LAB_DEBUG"):
            raise
        explained = explain(error, Path("a file"))
        _tell(explained.message, explained.remedy)
        return explained.exit_code
    except Exception as error:
        return _unexpected(error)
    return ExitCode.OK


def _status(end: SystemExit) -> int:
    """The exit status that Typer or Rich chose, except for their 1, which would read as FAIL."""
    status = end.code if isinstance(end.code, int) else 0
    if isinstance(end.__context__, BrokenPipeError):
        return _PIPE_CLOSED
    if isinstance(end.__context__, typer.Abort):
        status = ExitCode.INTERRUPTED
    if status == ExitCode.INTERRUPTED:
        _tell("Interrupted. Everything recorded so far is safe.", "")
    return status


def _finish(status: int) -> int:
    """The exit status once all output is flushed; the reader may have closed the pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _PIPE_CLOSED
    if status == _PIPE_CLOSED:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def _plain_lines() -> None:
    """Writes everything as plain lines from now on. JSON is for programs and stays unchanged."""
    if "--json" not in sys.argv:
        sys.stdout, sys.stderr = PlainLines(sys.stdout), PlainLines(sys.stderr)


def main() -> NoReturn:
    """Entry point of the `lab` program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if os.environ.get("BOTTLENECK_LAB_PLAIN"):
        _plain_lines()
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _stop)
    sys.exit(_finish(int(_invoke())))
