"""Every profiler behind `lab profile`: which there are, where they are, and one way to make a
capture with any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bottleneck_lab.capture import ncu, nsys, program, sanitizer
from bottleneck_lab.capture.recording import Captured, Options, Request
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import CaptureError, MachineError, UsageError
from bottleneck_lab.measure.context import Progress
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.machine import fingerprint
from bottleneck_lab.programs import find_program, how_to_get
from bottleneck_lab.trace import load

TOOLS = ("torch", "nsys", "ncu", "sanitizer", "memory")
WITHOUT_TIMELINE = ("ncu", "sanitizer")
"""Tools whose captures do not show where a program's overall time went."""

LAB_LAUNCHES = 6
_KERNEL = re.compile(r"(?:__global__\s[^;{]*?|@triton\.jit\s+def )\b(?!__)(\w+)\s*\(")

LAB_LIMIT_S = 240.0
"""A lab's workload, alone, takes seconds; under ncu every kernel is run many times.
compute-sanitizer has this for each of its checks.
"""

OUTPUT = "output.txt"
_EXECUTABLES: dict[str, tuple[str, Callable[[str, Request], Captured]]] = {
    "nsys": ("nsys", nsys.record),
    "ncu": ("ncu", ncu.record),
    "sanitizer": ("compute-sanitizer", sanitizer.record),
}


def locate(executable: str) -> str:
    """Return the path of NVIDIA's tool. Raises MachineError that says how to get it and what works
    without.
    """
    path = find_program(executable)
    if path is None:
        raise MachineError(
            f"{executable} is not installed: it is neither on PATH nor where CUDA puts it.",
            f"{how_to_get(executable)} Without it, `lab profile --tool torch` and `--tool memory`"
            " work.",
        )
    return str(path)


def record(tool: str, request: Request) -> Captured:
    """Make one capture with `tool` in the request's empty folder, and describes it in
    `capture.json`.

    Raises UsageError for an unknown tool, MachineError for one that is missing, CaptureError when
    nothing usable was recorded.
    """
    executable = locate_tool(tool)
    captured = _EXECUTABLES[tool][1](executable, request) if executable else program.record(request)
    (request.out / OUTPUT).write_text(captured.ended.tail, encoding="utf-8")
    return captured


def locate_tool(tool: str) -> str | None:
    """Return the path of the program behind `tool`; None for those that are part of torch. Raises
    UsageError for an unknown tool.
    """
    if tool not in TOOLS:
        raise UsageError(f"There is no tool called '{tool}'.", f"Choose one of {', '.join(TOOLS)}.")
    if tool in _EXECUTABLES:
        return locate(_EXECUTABLES[tool][0])
    return None


def describe(captured: Captured, tool: str, out: Path, **more: object) -> None:
    """Write `capture.json`: what was recorded, how, and where. No host name, no environment
    variables.
    """
    description = {
        "tool": tool,
        "version": captured.version,
        "command": captured.command,
        "files": captured.files,
        "frames": captured.frames,
        "extra": captured.extra,
        "costs_ns": captured.costs_ns,
        "status": captured.ended.status,
        "seconds": round(captured.ended.seconds, 3),
        "notes": captured.notes,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": fingerprint(),
        **more,
    }
    (out / "capture.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


def profile_with(
    lab: Lab,
    workspace: Path,
    device: Device,
    tool: str,
    *,
    data: Path,
    out: Path,
    progress: Progress,
) -> Path:
    """Capture a lab's workload as it runs alone (`python <entry>`), so that the same command can be
    copied and run by hand.

    Returns the first file of the capture. Raises as `record` does.
    """
    request = Request(
        program=kind_of(lab).program(lab, device, tool),
        folder=workspace,
        out=out,
        environment={"LAB_PHOTOS": str(data), "LAB_DEVICE": device},
        limit_s=LAB_LIMIT_S,
        options=Options(
            memory=tool == "memory",
            kernel=_kernels(lab, workspace),
            launches=LAB_LAUNCHES,
            check="memcheck,racecheck",
        ),
        announce=lambda line: progress(f"$ {line}", 0.2),
    )
    code = lab.code_hash(workspace)  # of what is run: it may be edited meanwhile
    captured = record(tool, request)
    if tool not in WITHOUT_TIMELINE:
        _require_timeline(out / captured.files[0], tool)
    describe(
        captured, tool, out, lab=lab.slug, device=device, emulated=device == "virtual", code=code
    )
    return out / captured.files[0]


def _kernels(lab: Lab, workspace: Path) -> str:
    """ncu's regular expression for the lab's own kernels, by their names in its sources, and the
    library's attention; empty if it has none.
    """
    names: set[str] = set()
    for name in lab.spec.editable:
        if (workspace / name).is_file():
            text = (workspace / name).read_text(encoding="utf-8", errors="replace")
        else:
            text = ""
        names.update(_KERNEL.findall(text))
    if names:
        return "|".join([*sorted(names), "flash_fwd", "fmha", "cudnn"])
    return ""


def _require_timeline(trace: Path, tool: str) -> None:
    """Hints and the diagnosis read a lab's captures: one that shows nothing must not become one."""
    try:
        load(trace)
    except CaptureError as error:
        raise CaptureError(
            f"{tool} recorded nothing to make a timeline from: {error.message}",
            "Without a GPU nsys sees only NVTX ranges. `lab profile --tool torch` shows this"
            " workload's operators.",
        ) from error
