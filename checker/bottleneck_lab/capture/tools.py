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
from bottleneck_lab.capture.workload import Workload, context_of, show_nothing
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import CaptureError, MachineError, UsageError, WorkloadError
from bottleneck_lab.measure.context import Progress
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.machine import LoadMeter, fingerprint, own_cpu_s
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

TRACE, OUTPUT = "trace.json.gz", "output.txt"
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
            f"{how_to_get(executable)} Without it, `lab profile --tool torch` works.",
        )
    return str(path)


def record(tool: str, request: Request) -> Captured:
    """Make one capture with `tool` in the request's empty folder, and keep what the
    program printed beside it.

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


def require_device(tool: str, lab: Lab, device: Device) -> None:
    """Raise UsageError for a tool that can't record what a lab's workload does on a device."""
    if device == "cuda" or tool not in ("ncu", "sanitizer", "memory"):
        return
    where = "the emulated device" if device == "virtual" else f"`{device}`"
    remedy = f"`lab profile` without `--tool` records what runs on {where}."
    if tool != "memory":
        reason = f"`--tool {tool}` looks at CUDA kernels, and none run on {where}."
        if "cuda" in lab.spec.devices and kind_of(lab).captured_work(tool):
            remedy += " With an NVIDIA GPU, add `--device cuda`."
    elif device == "virtual":
        reason = f"`--tool memory` records PyTorch's own allocators, and {where} has another."
        remedy = (
            f"`lab profile` without `--tool` records {where}, and its allocations where the lab"
            " counts memory."
        )
    else:
        return
    raise UsageError(reason, remedy)


def describe(out: Path, tool: str, files: list[str], **more: object) -> None:
    """Write `capture.json`: what was recorded, how, and where. No host name, no environment
    variables.
    """
    description = {
        "tool": tool,
        "files": files,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": fingerprint(),
        **more,
    }
    (out / "capture.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


def profile_workload(
    workload: Workload, tool: str, out: Path, progress: Progress = show_nothing
) -> Path:
    """Capture a lab's code with `tool` into the folder `out`; return the first file of the capture.
    Raises CaptureError, UsageError or MachineError.
    """
    lab, folder, device, _ = workload
    code = lab.code_hash(folder)  # of what is run: it may be edited meanwhile
    facts: dict[str, object] = {}
    meter = LoadMeter(own_cpu_s)
    if tool == "torch":
        files = _record_as_its_kind(workload, out, progress)
        facts = {"notes": kind_of(lab).missing_parts(lab, device, out / TRACE)}
    else:
        captured = _record_around(workload, tool, out, progress)
        files, facts = captured.files, captured.facts()
    facts["other_cores"] = round(meter.cores(), 2)
    emulated = device == "virtual"
    describe(out, tool, files, **facts, lab=lab.slug, device=device, emulated=emulated, code=code)
    return out / files[0]


def _record_as_its_kind(workload: Workload, out: Path, progress: Progress) -> list[str]:
    """Run the code under torch.profiler as its kind does; return the traces, the first rank's
    first.
    """
    lines: list[str] = []
    with context_of(workload, progress) as context:
        progress("running the workload under torch.profiler", 0.1)
        status = kind_of(workload.lab).profile(context, out / TRACE, lines.append)
    if status or not (out / TRACE).is_file():
        last = "\n".join(line.rstrip() for line in lines[-12:])
        mend = "the error above"
        if blamed := _blamed_line("".join(lines), workload.lab.spec.editable):
            mend = f"{blamed}: the error above"
        raise WorkloadError(
            f"The workload exited with status {status} before its trace was written:\n{last}",
            f"Mend {mend}; `lab run` runs the workload without a profiler.",
        )
    (out / OUTPUT).write_text("".join(lines)[-(1 << 20) :], encoding="utf-8")
    return sorted(path.name for path in out.glob("trace*.json.gz"))


def _blamed_line(output: str, files: list[str]) -> str:
    """Return the last line of these files that a traceback names, as `train.py, line 42`; empty if
    it names none.
    """
    named = [
        (Path(path).name, line) for path, line in re.findall(r'File "([^"]+)", line (\d+)', output)
    ]
    mine = [f"{name}, line {line}" for name, line in named if name in files]
    return mine[-1] if mine else ""


def _record_around(workload: Workload, tool: str, out: Path, progress: Progress) -> Captured:
    """Record the code as it runs alone (`python <entry>`), so that the same command can be copied
    and run by hand.
    """
    lab, folder, device, data = workload
    request = Request(
        program=kind_of(lab).program(lab, device, tool),
        folder=folder,
        out=out,
        environment={"LAB_PHOTOS": str(data), "LAB_DEVICE": device},
        limit_s=LAB_LIMIT_S,
        options=Options(
            memory=tool == "memory",
            kernel=_kernels(lab, folder),
            launches=LAB_LAUNCHES,
            check="memcheck,racecheck",
        ),
        announce=lambda line: progress(f"$ {line}", 0.2),
    )
    captured = record(tool, request)
    if tool not in WITHOUT_TIMELINE:
        _require_timeline(out / captured.files[0], tool)
    return captured


def _kernels(lab: Lab, workspace: Path) -> str:
    """Return ncu's regular expression for the lab's own kernels, by their names in its sources, and
    the library's attention; empty if it has none.
    """
    names: set[str] = set()
    for name in lab.spec.editable:
        if (workspace / name).is_file():
            source = (workspace / name).read_text(encoding="utf-8", errors="replace")
            names.update(_KERNEL.findall(source))
    return "|".join([*sorted(names), "flash_fwd", "fmha", "cudnn"]) if names else ""


def _require_timeline(trace: Path, tool: str) -> None:
    """Raise CaptureError for a trace that shows nothing: hints and the diagnosis would read it."""
    try:
        load(trace)
    except CaptureError as error:
        raise CaptureError(
            f"{tool} recorded nothing to make a timeline from: {error.message}",
            "Without a GPU nsys sees only NVTX ranges. `lab profile --tool torch` shows this"
            " workload's operators.",
        ) from error
