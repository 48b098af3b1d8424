"""The `lab` program: every command's entry, and the one place where an error becomes a message and an exit code.

Most runs need one command of twenty: each is imported and made when it is asked for. Commands import what they need when they run, so that `lab --help`
loads neither torch nor NumPy. Help is plain text in sections: Typer's boxed help imports Rich's Markdown and takes twice as long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from bottleneck_lab.commands import where
from bottleneck_lab.errors import ExitCode, LabError

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

_SECTIONS = {
    "Look around": ("list", "doctor", "data", "monitor"),
    "Work on a lab": ("start", "run", "profile", "report", "compare", "diagnose", "check", "watch"),
    "Help and history": ("hint", "reset", "solution", "history", "verify"),
    "For authors": ("dev",),
}
_MODULES = {"list": "list_labs"}
"""Of commands whose module has another name, as `list` is Python's."""


class _OnDemand(TyperGroup):
    """All commands, by name; each is imported and made when it is asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        names = [name for section in _SECTIONS.values() for name in section]
        self.commands = dict.fromkeys(names)  # type: ignore[assignment]  # Typer lists and suggests names; the rest is made below

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002 - Click's signature
        """The command of this name, or None."""
        if cmd_name not in self.commands:
            return None
        module = _module(cmd_name)
        return _authors(module) if cmd_name == "dev" else _single(cmd_name, module.command, module.EXAMPLE)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:  # noqa: ARG002 - Click's signature
        """Write one definition list a section, from the first paragraph of what each command says of itself."""
        for section, names in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, _first_paragraph(_module(name))) for name in names])


def _module(name: str) -> ModuleType:
    return import_module(f"bottleneck_lab.commands.{_MODULES.get(name, name)}")


def _first_paragraph(module: ModuleType) -> str:
    told = getattr(module, "command", module).__doc__ or ""  # `dev` is a group: its module speaks for it
    return " ".join(told.split("\n\n")[0].split())


_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def _single(name: str, function: Callable[..., Any], example: str) -> Command:
    app = typer.Typer(**_PLAIN)
    app.command(name, epilog=f"Example: {example}")(function)
    return typer.main.get_command(app)


def _authors(dev: ModuleType) -> Command:
    app = typer.Typer(help=_first_paragraph(dev), no_args_is_help=True, **_PLAIN)
    for name, example in (("check", dev.CHECK_EXAMPLE), ("new", dev.NEW_EXAMPLE), ("key", dev.KEY_EXAMPLE)):
        app.command(name, epilog=f"Example: {example}")(getattr(dev, name))
    return typer.main.get_command(app)


app = typer.Typer(
    cls=_OnDemand,
    help="Hunt GPU performance bottlenecks in real PyTorch workloads, and get a verdict you can trust.",
    epilog="Example: lab start dataloader",
    invoke_without_command=True,
    no_args_is_help=False,
    **_PLAIN,
)
app.callback()(where.command)


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    """A polite kill unwinds like Ctrl-C does, so that workers end and unfinished folders go."""
    raise SystemExit(128 + signum)


def _tell(message: str, remedy: str) -> None:
    """The form of every error: what is wrong, then what to do. A terminal that is gone is told nothing."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.write(f"{message}\n→ {remedy}\n" if remedy else f"{message}\n")


def _unexpected(error: Exception) -> ExitCode:
    """An error nobody foresaw is ours, never a FAIL: exit code 4, and the traceback only for whoever asks."""
    if os.environ.get("BOTTLENECK_LAB_DEBUG"):
        raise error
    where = ""
    trace = error.__traceback__
    while trace:
        where, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    _tell(
        f"bottleneck-lab itself failed: {type(error).__name__}: {error} ({where}).",
        "Your work is untouched. Set BOTTLENECK_LAB_DEBUG=1 to see the traceback, and report it.",
    )
    return ExitCode.ERROR


_PIPE_CLOSED = 141
"""What a shell reports for a program that SIGPIPE ended. The signal itself stays off: a worker that dies must not take the verifier along."""


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
        from bottleneck_lab.workspace.atomic import explain

        if os.environ.get("BOTTLENECK_LAB_DEBUG"):
            raise
        explained = explain(error, Path("a file"))
        _tell(explained.message, explained.remedy)
        return explained.exit_code
    except Exception as error:
        return _unexpected(error)
    return ExitCode.OK


def _status(end: SystemExit) -> int:
    """The exit status that Typer or Rich chose, save for their 1 where nothing failed: it would read as FAIL."""
    status = end.code if isinstance(end.code, int) else 0
    if isinstance(end.__context__, BrokenPipeError):
        return _PIPE_CLOSED
    if isinstance(end.__context__, typer.Abort):
        status = ExitCode.INTERRUPTED
    if status == ExitCode.INTERRUPTED:
        _tell("Interrupted. Everything recorded before is intact.", "")
    return status


def _finish(status: int) -> int:
    """The status once everything was written; the reader may have gone meanwhile."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _PIPE_CLOSED
    if status == _PIPE_CLOSED:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def main() -> NoReturn:
    """Entry of the `lab` program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _stop)
    sys.exit(_finish(int(_invoke())))
