"""torch.profiler and the allocator's history around any Python program."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bottleneck_lab.capture.launchers import as_python, split
from bottleneck_lab.capture.recording import Captured, CommandEnd, Request, run, typed
from bottleneck_lab.capture.script import NO_TORCH
from bottleneck_lab.errors import CaptureError, MachineError, UsageError
from bottleneck_lab.needs import install_command

TRACE, OUTCOME, SNAPSHOT = "trace.json.gz", "outcome.json", "memory.pickle"
FRAMES, FRAMES_OUTCOME = "frames.json.gz", "frames-outcome.json"
"""Files of the second run, which records Python's frames and lines and little else."""

WITH_SNAPSHOT = f"`lab report` on this capture's {SNAPSHOT} shows what holds the GPU's memory."
WITHOUT_SNAPSHOT = (
    "No GPU here: CPU allocations are in the trace, and there is no snapshot of the GPU's"
    " allocator."
)

# Above all of Kineto's levels: it otherwise prints lines of its own among the program's.
SILENT = "6"
_SCRIPT = Path(__file__).with_name("script.py")


def command(request: Request, python: str, *, frames: bool = False) -> list[str]:
    """Return the program with the profiler around it, in every rank of a launcher; with `frames`,
    for the run that records those. Raises UsageError for what is not Python.
    """
    launch, options = split(request.program, python), request.options
    split_command = None
    if launch.program:
        split_command = as_python(launch.program, python)
    if split_command is None:
        raise UsageError(
            f"torch.profiler only records Python programs, and '{request.program[0]}' is not one.",
            "Name one (`lab profile -- python train.py`), or use a tool that takes any program:"
            " `--tool nsys`.",
        )
    interpreter, target = split_command
    ours = [
        str(_SCRIPT),
        "--trace",
        str(request.out / (FRAMES if frames else TRACE)),
        "--outcome",
        str(request.out / (FRAMES_OUTCOME if frames else OUTCOME)),
    ]
    if frames:
        ours.append("--stack")
    else:
        flags = {"--shapes": options.shapes, "--memory": options.memory}
        ours += [flag for flag, wanted in flags.items() if wanted]
    if options.memory and not frames:
        ours += ["--snapshot", str(request.out / SNAPSHOT)]
    if options.schedule:
        ours += [
            "--schedule",
            json.dumps(dict(zip(("wait", "warmup", "active"), options.schedule, strict=True))),
        ]
    return [*launch.launcher, *interpreter, *ours, "--", *target]


def record(request: Request) -> Captured:
    """Run the program under torch.profiler. Raises CaptureError when it left no trace, with the
    reason.

    Where frames are asked for, it runs twice: they slow Python down, so that the times are taken
    from a run without them.
    """
    line = command(request, sys.executable)
    which = "  # the first of two runs: without frames, for the times"
    request.announce(f"{typed(line, request)}{which if request.options.stack else ''}")
    ended = run(request, line, _environment())
    outcomes = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(request.out.glob("outcome*.json"))
    ]
    files = sorted(path.name for path in request.out.glob("trace*.json.gz"))
    if not files:
        raise explain(request, ended, outcomes)
    _require_work(request, files, ended)
    if request.options.tensorboard:
        _link_for_tensorboard(request.out, files)
    snapshots = sorted(path.name for path in request.out.glob("*.pickle"))
    notes = [
        f"The program ended with {outcome['error']}." for outcome in outcomes if "error" in outcome
    ]
    if request.options.memory:
        notes.append(WITH_SNAPSHOT if snapshots else WITHOUT_SNAPSHOT)
    frames: list[str] = []
    if request.options.stack and not ended.interrupted:
        frames, second = _record_frames(request)
        if second.interrupted:
            ended = second
        if not frames:
            notes.append(f"No lines of Python: in the run with frames the program {second.why()}.")
    first = outcomes[0] if outcomes else {}
    return Captured(
        files,
        typed(line, request),
        ended,
        version=str(first.get("torch", "")),
        extra=snapshots,
        notes=notes,
        frames=frames,
        costs_ns=first.get("costs_ns", {}),
    )


def _record_frames(request: Request) -> tuple[list[str], CommandEnd]:
    """Run the program again, with frames; return the traces that it left and how it ended."""
    line = command(request, sys.executable, frames=True)
    request.announce(f"{typed(line, request)}  # the second: with frames, for the lines")
    ended = run(request, line, _environment())
    return sorted(path.name for path in request.out.glob("frames*.json.gz")), ended


def _environment() -> dict[str, str]:
    return {"KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", SILENT)}


def explain(
    request: Request, ended: CommandEnd, outcomes: list[dict[str, Any]]
) -> CaptureError | MachineError:
    """Explain why there is no trace."""
    outcome = {}
    if outcomes:
        outcome = outcomes[0]
    if outcome.get("problem") == NO_TORCH:
        return MachineError(
            "The Python that runs the program does not have torch.",
            "Activate the program's own environment, or name its Python: `lab profile --"
            f" /path/to/python …`. `{install_command('labs')}` installs torch in this one.",
        )
    if request.options.schedule and outcome.get("status") == 0:
        wanted = sum(request.options.schedule)
        return CaptureError(
            f"The program took {outcome.get('steps', 0)} optimizer steps; the schedule needs"
            f" {wanted}.",
            "Ask for fewer steps (`--schedule WAIT,WARMUP,ACTIVE`), or leave the schedule out to"
            " record everything.",
        )
    output = "."
    if ended.tail.strip():
        output = f":\n{ended.last_lines()}"
    return CaptureError(
        f"The program {ended.why()} before its trace was written{output}",
        "Run it without the profiler first.",
    )


def _require_work(request: Request, files: list[str], ended: CommandEnd) -> None:
    """Raise CaptureError if no trace holds an operator or a kernel."""
    if any(_holds_work(request.out / name) for name in files):
        return
    if ended.status:
        raise CaptureError(
            f"The program {ended.why()} before its first torch operator:\n{ended.last_lines()}",
            "Run the program without the profiler first.",
        )
    raise CaptureError(
        "The program called no torch operator in its own process, so there is nothing to show.",
        "If it starts other processes that do the work, profile those; `--tool nsys` follows"
        " every process.",
    )


def _holds_work(trace: Path) -> bool:
    """Return True if a trace holds an operator or a kernel. Read line by line: the first comes
    early.
    """
    with gzip.open(trace, "rb") as file:
        return any(b'"cpu_op"' in line or b'"kernel"' in line for line in file)


def _link_for_tensorboard(out: Path, files: list[str]) -> None:
    """Give traces the names by which TensorBoard's profiler plugin looks for them, too."""
    folder = out / "tensorboard"
    folder.mkdir()
    for worker, trace in enumerate(files):
        name = f"worker{worker}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        os.link(out / trace, folder / name)
