"""The `lab` program: every command's entry, and the one place where an error becomes a message and an exit code.

Commands import what they need when they run, so that `lab --help` loads neither torch nor NumPy. Help is plain text
in sections: Typer's boxed help imports Rich's Markdown and takes twice as long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from bottleneck_lab.commands import (
    check,
    compare,
    data,
    dev,
    diagnose,
    doctor,
    hint,
    history,
    list_labs,
    monitor,
    profile,
    report,
    reset,
    run,
    solution,
    start,
    verify,
    watch,
    where,
)
from bottleneck_lab.errors import ExitCode, LabError

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter


class _Sections(TyperGroup):
    """A group whose help lists its commands under the panels that they were registered with."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write one definition list a panel, in order of registration."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            panels.setdefault(panel, []).append((name, command.get_short_help_str(limit=200)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_Sections,
    help="Hunt GPU performance bottlenecks in real PyTorch workloads, and get a verdict you can trust.",
    epilog="Example: lab start dataloader",
    invoke_without_command=True,
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _register(group: typer.Typer, panel: str | None, name: str, function: Callable[..., Any], example: str) -> None:
    group.command(name, epilog=f"Example: {example}", rich_help_panel=panel)(function)


app.callback()(where.command)
for _name, _module in {"list": list_labs, "doctor": doctor, "data": data, "monitor": monitor}.items():
    _register(app, "Look around", _name, _module.command, _module.EXAMPLE)
for _name, _module in {
    "start": start,
    "run": run,
    "profile": profile,
    "report": report,
    "compare": compare,
    "diagnose": diagnose,
    "check": check,
    "watch": watch,
}.items():
    _register(app, "Work on a lab", _name, _module.command, _module.EXAMPLE)
for _name, _module in {
    "hint": hint,
    "reset": reset,
    "solution": solution,
    "history": history,
    "verify": verify,
}.items():
    _register(app, "Help and history", _name, _module.command, _module.EXAMPLE)
_authors = typer.Typer(
    cls=_Sections, help="Write labs: begin one, and prove that it works.", no_args_is_help=True, rich_markup_mode=None
)
_register(_authors, None, "check", dev.check, dev.CHECK_EXAMPLE)
_register(_authors, None, "new", dev.new, dev.NEW_EXAMPLE)
_register(_authors, None, "key", dev.key, dev.KEY_EXAMPLE)
app.add_typer(_authors, name="dev", rich_help_panel="For authors")


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
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, _stop)
    sys.exit(_finish(int(_invoke())))
