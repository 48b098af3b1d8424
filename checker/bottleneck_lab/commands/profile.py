"""`lab profile`: capture the lab's workload, or any program, then show where the time went."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from bottleneck_lab.analysis.counters.kernel_counters import compare_kernels
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.capture.devices import choose_device, require_torch
from bottleneck_lab.capture.recording import Captured, Options, Request
from bottleneck_lab.capture.sanitizer import CHECKS
from bottleneck_lab.capture.tools import (
    WITHOUT_TIMELINE,
    describe,
    locate_tool,
    profile_workload,
    record,
    require_device,
)
from bottleneck_lab.capture.workload import Workload
from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.ui import (
    DeviceName,
    Json,
    NoWait,
    here,
    note,
    print_json,
    say,
    say_next,
    waiting,
)
from bottleneck_lab.commands.where import say_next_step
from bottleneck_lab.course.captures import (
    ceilings_for,
    read_capture,
    read_timeline,
    visible_summary,
)
from bottleneck_lab.course.limits import missed_limits
from bottleneck_lab.errors import CaptureError, ExitCode, UsageError, WorkloadError
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.quiet import describe_others
from bottleneck_lab.report.console.counters import render_counters
from bottleneck_lab.report.console.summary import render_top
from bottleneck_lab.report.evidence_only import counters_only, counters_without_remedies
from bottleneck_lab.trace import Timeline, load
from bottleneck_lab.workspace.atomic import publish
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import (
    keep_code,
    locked_folder,
    make_capture,
    new_folder,
    readable,
)
from bottleneck_lab.workspace.commitments import hides_remedies_at, is_blind_at, load_record
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.folder import UNFINISHED, open_workspace, read_json
from bottleneck_lab.workspace.looks import has_run, note_run
from bottleneck_lab.workspace.start import describe_given

EXAMPLE = "lab profile --tool nsys -- python train.py --epochs 1"

_Program = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- PROGRAM ARGS…]", help="Any program (default: this folder's lab)."),
]
_Tool = Annotated[
    str, typer.Option("--tool", "-t", metavar="NAME", help="torch, nsys, ncu, sanitizer or memory.")
]
_Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FOLDER",
        help="Folder to create (default: the next NNNN-TOOL among the captures).",
    ),
]
_Limit = Annotated[
    float,
    typer.Option(
        "--limit-s", metavar="SECONDS", min=1, help="Stop the program after this many seconds."
    ),
]
_Shapes = Annotated[
    bool, typer.Option("--shapes/--no-shapes", help="torch: record the operators' input shapes.")
]
_Memory = Annotated[bool, typer.Option("--memory", help="torch: record every allocation.")]
_Stack = Annotated[bool, typer.Option("--stack", help="torch, nsys: record lines of Python code.")]
_Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="torch: also write a folder for TensorBoard.")
]
_Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule", metavar="WAIT,WARMUP,ACTIVE", help="Record only this many optimizer steps."
    ),
]
_Kernel = Annotated[
    str,
    typer.Option(
        "--kernel",
        metavar="REGEX",
        help="ncu: only kernels whose name matches this regular expression.",
    ),
]
_Launches = Annotated[
    int, typer.Option("--launches", metavar="N", min=1, help="ncu: how many kernels to measure.")
]
_Skip = Annotated[
    int, typer.Option("--skip", metavar="N", min=0, help="ncu: skip this many kernels first.")
]
_LockClocks = Annotated[bool, typer.Option("--lock-clocks", help="ncu: measure at the base clock.")]
_Metrics = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="NAMES",
        help="ncu: measure these metrics (comma-separated) instead of its full set.",
    ),
]
_Check = Annotated[
    str,
    typer.Option(
        "--check",
        metavar="NAMES",
        help=(
            "sanitizer: memcheck, racecheck, initcheck, synccheck, or several of them"
            " (comma-separated)."
        ),
    ),
]


def command(
    program: _Program = None,
    tool: _Tool = "torch",
    device: DeviceName = None,
    no_wait: NoWait = False,
    out: _Out = None,
    limit_s: _Limit = 3600.0,
    shapes: _Shapes = True,
    memory: _Memory = False,
    stack: _Stack = False,
    schedule: _Schedule = None,
    tensorboard: _Tensorboard = False,
    kernel: _Kernel = "",
    launches: _Launches = 5,
    skip: _Skip = 0,
    metrics: _Metrics = "",
    lock_clocks: _LockClocks = False,
    check: _Check = "memcheck",
    json: Json = False,
) -> None:
    """Capture the lab's workload, or any program after `--`, and show where the time went; `lab
    report` shows the rest.

    For a program, prints the profiler's own command line, so you can copy it and run it by hand.
    """
    for name in check.split(","):
        if name not in CHECKS:
            raise UsageError(
                f"compute-sanitizer has no check called '{name}'.",
                f"Choose from {', '.join(CHECKS)}.",
            )
    options = Options(
        shapes=shapes,
        memory=memory or tool == "memory",
        stack=stack,
        schedule=_schedule(schedule),
        tensorboard=tensorboard,
        kernel=kernel,
        launches=launches,
        skip=skip,
        metrics=tuple(name for name in metrics.split(",") if name),
        lock_clocks=lock_clocks,
        check=check,
    )
    if program and device:
        raise UsageError(
            "--device is for a lab's own workload; a program runs where its code says.",
            "Leave it out. A program that needs CUDA needs an NVIDIA GPU here.",
        )
    if program:
        _profile_program(tuple(program), tool, options, out, limit_s, json=json)
        return
    if out or options != Options(memory=tool == "memory"):
        raise UsageError(
            "A lab's captures are always made the same way; you can only choose --tool and"
            " --device.",
            "To use other options, name the program and its arguments: `lab profile --stack --"
            " python PROGRAM ARGUMENTS`.",
        )
    _profile_lab(tool, device, no_wait=no_wait, json=json)


def _schedule(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    parts = [int(part) for part in text.split(",") if part.strip().isdecimal()]
    if len(parts) != 3 or text.count(",") != 2 or not parts[2]:
        raise UsageError(
            f"'{text}' is not a schedule.",
            "Give three numbers: `--schedule 5,2,10` waits 5 steps, warms up 2, records 10.",
        )
    return parts[0], parts[1], parts[2]


def _profile_program(
    program: tuple[str, ...],
    tool: str,
    options: Options,
    out: Path | None,
    limit_s: float,
    *,
    json: bool,
) -> None:
    """Capture a program from any folder, with or without a lab in it."""
    locate_tool(tool)
    pipe = (sys.stderr if json else sys.stdout).buffer

    def forward(output: bytes) -> None:
        pipe.write(output)
        pipe.flush()

    with _folders(out, tool) as (final, unfinished):
        request = Request(
            program,
            Path.cwd(),
            unfinished,
            limit_s=limit_s,
            options=options,
            sink=forward,
            announce=lambda line: note(f"$ {line}"),
        )
        captured, timeline = _fill(request, tool, final)
    _show(captured, timeline, tool, final, json=json)
    if captured.ended.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if captured.ended.status:
        raise typer.Exit(ExitCode.FAIL)


@contextmanager
def _folders(out: Path | None, tool: str) -> Iterator[tuple[Path, Path]]:
    """Yield the capture's final name, and the unfinished folder in which it is made.

    A failure leaves nothing behind.
    """
    final = out.expanduser().absolute() if out else None
    parent = final.parent if final else Path.cwd() / "captures"
    made_parent = not parent.exists()
    try:
        if final is None:
            with new_folder(parent, tool) as folders:
                yield folders
            return
        with locked_folder(parent / f"{UNFINISHED}{final.name}") as unfinished:
            if unfinished is None or final.exists():
                state = "already exists" if unfinished else "is being written by another command"
                raise UsageError(
                    f"{final} {state}.", "Use --out with a folder that does not exist yet."
                )
            yield final, unfinished
    finally:
        if made_parent:
            with suppress(OSError):  # it is not empty: there is a capture in it
                parent.rmdir()


def _fill(request: Request, tool: str, final: Path) -> tuple[Captured, Timeline | None]:
    """Make the capture in its unfinished folder, read it, and only then give it its name."""
    meter = LoadMeter(own_cpu_s)
    captured = record(tool, request)
    facts = captured.facts() | {"other_cores": round(meter.cores(), 2)}
    describe(request.out, tool, captured.files, **facts, program=list(request.program))
    note(
        f"The program ran for {captured.ended.seconds:.1f} s, including recording and writing."
        " Reading the capture…"
    )
    timeline = None
    if tool not in WITHOUT_TIMELINE:
        try:
            timeline = read_timeline(request.out)
        except CaptureError as error:
            if tool != "nsys":
                raise
            # Of a program without CUDA and NVTX, nsys records data that only nsys-ui shows.
            captured.notes.append(
                f"{error.message} Open the report in nsys-ui, or mark the program's parts with"
                " NVTX."
            )
    publish(request.out, final)
    return captured, timeline


def _show(
    captured: Captured, timeline: Timeline | None, tool: str, folder: Path, *, json: bool
) -> None:
    summary = None
    if timeline is not None:
        summary = visible_summary(
            summarise(timeline, ceilings_for(timeline, folder)),
            folder,
            blind=is_blind_at(folder),
            remedies_later=hides_remedies_at(folder),
        )
    if json:
        files = sorted(path.name for path in folder.iterdir())
        print_json(
            {
                "capture": str(folder),
                "command": captured.command,
                "status": captured.ended.status,
                "files": files,
                "summary": summary,
            }
        )
        return
    if summary:
        render_top(summary, f"lab report {shlex.quote(str(folder))}", console())
    elif tool == "ncu":
        _show_kernels(folder, captured.files)
    for remark in captured.notes:
        say(remark)
    failed = captured.ended.status or captured.ended.timed_out or captured.ended.interrupted
    if failed:
        say(
            f"The program {captured.ended.why()}; this is what was recorded before that.",
            style="yellow",
        )
    note(f"The capture is in {folder}")
    if summary and not failed:
        say_next(f"lab report {shlex.quote(str(folder))} --html report.html")


def _show_kernels(folder: Path, files: list[str]) -> None:
    """Show the kernels' counters, the learner's own next to the library's."""
    blind = is_blind_at(folder)
    for name in files:
        timeline = load(folder / name)
        pairs = compare_kernels(timeline.counters)
        if blind:
            pairs = counters_only(pairs)
        elif hides_remedies_at(folder):
            pairs = counters_without_remedies(pairs)
        render_counters(pairs, timeline.notes, console(), blind=blind)


def _profile_lab(tool: str, device: str | None, *, no_wait: bool, json: bool) -> None:
    workspace = here()
    began, code = time.monotonic(), workspace.lab.code_hash(workspace.root)
    if given := describe_given(workspace, "this capture is with yours, a check uses the lab's"):
        note(given)
    try:
        folder = capture(workspace.root, tool, device, no_wait=no_wait)
    except WorkloadError:
        note_run(workspace, code, ended=False)
        raise
    if has_run(workspace) is False:
        note_run(workspace, code, ended=True)
    recorded = time.monotonic()
    summary = None
    if folder in readable(workspace):
        summary = visible_summary(
            read_capture(folder),
            folder,
            blind=is_blind_at(folder),
            remedies_later=hides_remedies_at(folder),
        )
    if json:
        print_json(
            {
                "capture": str(folder),
                "files": sorted(path.name for path in folder.iterdir()),
                "summary": summary,
            }
        )
        return
    missed: list[str] = []
    if summary:
        render_top(summary, "lab report", console())
        missed = missed_limits(workspace, summary)
    # The rest of `capture.json`: kernels, remarks, and how to repeat the capture by hand.
    described = read_json(folder / "capture.json", dict[str, Any])
    if tool == "ncu":
        _show_kernels(folder, described["files"])
    for remark in described.get("notes", []):
        say(remark)
    if "command" in described:
        note(f"By hand, in this folder: {described['command']}")
    note(f"Captured in {recorded - began:.1f} s: {folder}")
    say_next_step(workspace, load_attempts(workspace), load_record(workspace), missed)


def capture(workspace_root: Path, tool: str, device: str | None, *, no_wait: bool) -> Path:
    """Make one capture of the workspace's workload and return its folder.

    A failure leaves nothing behind.
    """
    workspace = open_workspace(workspace_root)
    workspace.require_current()
    require_torch("`lab profile`")
    lab = workspace.lab
    chosen = choose_device(lab, device or workspace.info.device)
    require_device(tool, lab, chosen)
    locate_tool(tool)
    workload = Workload(lab, workspace.root, chosen, data_folder(lab))
    if others := describe_others(kind_of(lab).cores(lab, chosen)):
        note(f"{others}: the capture's times will be too long.")

    def fill(out: Path) -> None:
        with progress() as show:
            profile_workload(workload, tool, out, show)
        keep_code(lab, workspace.root, out)

    with workspace.working("lab profile", wait=not no_wait, on_wait=waiting):
        return make_capture(workspace, tool, fill)
