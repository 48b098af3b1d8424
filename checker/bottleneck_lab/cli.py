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
from importlib import import_module, metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from bottleneck_lab.commands.plain import PlainLines
from bottleneck_lab.errors import ExitCode, LabError
from bottleneck_lab.needs import EXTRAS, missing_package, require_linux, require_packages
from bottleneck_lab.workspace.atomic import explain

SECTIONS = {
    "Look around": {
        "list": (
            "List the course's labs, with your progress and results, and which are of your"
            " workshop."
        ),
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
            "Capture the lab's workload, or any program after `--`, and show where the time went;"
            " `lab report` shows the rest."
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
        "case": (
            "Diagnose an unseen program: its cause, the evidence, the line, and what a fix brings."
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
        "history": (
            "List your checks of this lab, with their figures, your diagnoses and the help you"
            " took."
        ),
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
        "cohort": "Run a cohort: learners who hand in work, and machines that measure it.",
    },
    "For authors": {
        "dev": "Write labs: create one and prove that it works.",
    },
}
"""Every command by section, with the first paragraph of its docstring; a test compares the two."""

_ANYWHERE = ("list", "doctor", "report", "compare", "verify")
"""Commands that also run on Windows. macOS runs more; commands that need Linux report it
themselves.
"""

_MODULES = {"list": "list_labs"}
"""The modules of commands that cannot be called like their command: `list` is Python's."""
_GROUPS = ("cohort", "dev")
"""Commands with subcommands, listed in their module's COMMANDS."""

_PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def module_of(name: str) -> ModuleType:
    """Return the module of the command called `name`, imported now."""
    return import_module(f"bottleneck_lab.commands.{_MODULES.get(name, name)}")


# Typer's own base classes in these signatures are private (`typer._click`): Any stands for them.


class _QuickFlags:
    """Sets unset flags to False, and leaves out the types of arguments in help.

    Since version 0.29, Typer loads pydantic (60 ms) to convert None to bool, and prints `lab <str>`
    for an argument.
    """

    def get_params(self, ctx: Any) -> Any:
        """Return the command's parameters, with its help option."""
        parameters = super().get_params(ctx)  # type: ignore[misc]  # of the command that this is mixed into
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda **_: None
        return parameters


class _Command(_QuickFlags, TyperCommand):
    """A command whose module has been imported.

    `--html` without a file name writes `default_page`, if the command has one.
    """

    default_page: str | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with the default file name where `--html` has none."""
        # Typer has no options with an optional value.
        if self.default_page:
            args = with_default_page(args, self.default_page)
        return super().parse_args(ctx, args)


class _Group(_QuickFlags, TyperGroup):
    """A command with commands of its own, whose module has been imported."""


class _Deferred(TyperCommand):
    """A command known by its name and help.

    Its module is imported when it is run, or when its own arguments are completed.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the real command."""
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

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a question that was not answered ends it as Ctrl-C does."""
        try:
            return super().invoke(ctx)
        except typer.Abort:  # Typer would print "Aborted!" and exit with a FAIL's status
            typer.echo(err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - Click's signature
        """Write one definition list for each section."""
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))


def _loaded(name: str) -> Any:
    """Return the command called `name`, built by Typer from its function.

    Raises MachineError for one that does not run on Windows, or whose module needs an extra that is
    not installed.
    """
    if sys.platform == "win32" and name not in _ANYWHERE:
        require_linux(f"`lab {name}`")
    if name == "cohort":
        require_packages("cohort", **EXTRAS["cohort"])
    module = module_of(name)
    if name not in _GROUPS:
        app = typer.Typer(add_completion=False, **_PLAIN)
        app.command(name, cls=_Command, epilog=f"Example: {module.EXAMPLE}")(module.command)
        command = typer.main.get_command(app)
        command.default_page = getattr(module, "DEFAULT_PAGE", None)  # type: ignore[attr-defined]  # of `_Command`
        return command
    summary = (module.__doc__ or "").split("\n\n")[0]
    app = typer.Typer(
        cls=_Group, help=summary, no_args_is_help=True, add_completion=False, **_PLAIN
    )
    for subcommand, (function, example) in module.COMMANDS.items():
        app.command(subcommand, cls=_Command, epilog=f"Example: {example}")(function)
    return typer.main.get_command(app)


def with_default_page(args: list[str], page: str) -> list[str]:
    """Return the arguments with `page` after an `--html` that no file name follows."""
    completed: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return [*completed, *args[index:]]
        completed.append(arg)
        if arg == "--html" and (index + 1 == len(args) or args[index + 1].startswith("-")):
            completed.append(page)
    return completed


app = typer.Typer(
    cls=_Lab, epilog="Example: lab start stuttering-tagger", invoke_without_command=True, **_PLAIN
)


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Unwind the stack as Ctrl-C does, so that workers end and unfinished folders are removed."""
    raise SystemExit(128 + signum)


def _print_error(message: str, remedy: str) -> None:
    """Print what is wrong, then what to do about it."""
    from bottleneck_lab.commands.ui import say  # noqa: PLC0415 - most commands meet no error

    with contextlib.suppress(OSError):  # the terminal may be closed
        sys.stdout.flush()
        say(message, err=True)
        if remedy:
            say(f"→ {remedy}", err=True)


def _report_bug(error: Exception) -> ExitCode:
    """Report an unexpected error, with the traceback only on request.

    It is our fault, never a FAIL of the learner's work.
    """
    if os.environ.get("BOTTLENECK_LAB_DEBUG"):
        raise error
    if isinstance(error, ModuleNotFoundError):
        # A lab's own files, too, may need a package of an extra that is not installed.
        missing = missing_package(error)
        if missing:
            _print_error(missing.message, missing.remedy)
            return missing.exit_code
    where = ""
    trace = error.__traceback__
    while trace:
        where, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    _print_error(
        f"bottleneck-lab itself failed: {type(error).__name__}: {error} ({where}).",
        "Your work is safe. To report this, run it again with BOTTLENECK_LAB_DEBUG=1 and include"
        " the traceback.",
    )
    return ExitCode.ERROR


_PIPE_CLOSED = 141
"""The status a shell reports for a program killed by SIGPIPE.

The signal itself stays ignored: a dying worker must not take the verifier with it.
"""


def _invoke() -> int:
    """Run the command line, and return the exit status."""
    try:
        app(prog_name="lab")
    except SystemExit as end:
        return _status(end)
    except LabError as error:
        _print_error(error.message, error.remedy)
        return error.exit_code
    except BrokenPipeError:
        return _PIPE_CLOSED
    except OSError as error:
        if os.environ.get("BOTTLENECK_LAB_DEBUG"):
            raise
        explained = explain(error, Path("a file"))
        _print_error(explained.message, explained.remedy)
        return explained.exit_code
    except Exception as error:
        return _report_bug(error)
    return ExitCode.OK


def _status(end: SystemExit) -> int:
    """Return the exit status that Typer or Rich chose, except where it would read as FAIL."""
    status = end.code if isinstance(end.code, int) else 0
    if isinstance(end.__context__, BrokenPipeError):
        return _PIPE_CLOSED
    if status == ExitCode.INTERRUPTED:
        _print_error("Interrupted. Everything recorded so far is safe.", "")
    return status


def main() -> NoReturn:
    """Run the `lab` program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # the encoding may lack our signs
    # JSON is for programs, and stays unchanged.
    if os.environ.get("BOTTLENECK_LAB_PLAIN") and "--json" not in sys.argv:
        sys.stdout, sys.stderr = PlainLines(sys.stdout), PlainLines(sys.stderr)
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _stop)
    status = int(_invoke())
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _PIPE_CLOSED
    if status == _PIPE_CLOSED:
        # The interpreter flushes again at its end, and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status)
