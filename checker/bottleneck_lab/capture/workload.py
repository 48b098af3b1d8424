"""`lab run` and `lab profile` for a lab: runs the learner's code as its kind does, and leaves a
capture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bottleneck_lab.analysis.ranks.scaling import Sweep
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.measure.context import Context, Progress
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.machine import fingerprint
from bottleneck_lab.measure.sandbox.children import OnLine
from bottleneck_lab.measure.sandbox.janitor import Janitor

TRACE = "trace.json.gz"


def run_workload(
    lab: Lab,
    workspace: Path,
    device: Device,
    *,
    data: Path,
    on_line: OnLine,
) -> int:
    """Run the workload as it stands, line by line to `on_line`; its exit status."""
    with _context(lab, device, workspace, data) as context:
        return kind_of(lab).run(context, on_line)


@contextmanager
def _context(lab: Lab, device: Device, workspace: Path, data: Path) -> Iterator[Context[Any]]:
    """Yield what a kind needs to run the learner's code in its own folder; whatever it starts or
    writes is gone afterwards.
    """
    settings = kind_of(lab).settings(lab, device)
    with Janitor() as janitor:
        yield Context(
            lab, device, settings, workspace, workspace, data, janitor, lambda _doing, _share: None
        )


def scale_workload(
    lab: Lab,
    workspace: Path,
    device: Device,
    ranks: list[int],
    *,
    data: Path,
    progress: Progress,
) -> list[Sweep]:
    """Return a distributed lab's script on emulated ranks, its modelled scaling carried on to
    `ranks`. Raises CaptureError when the script fails.
    """
    with _context(lab, device, workspace, data) as context:
        context.progress = progress
        try:
            return kind_of(lab).scale(context, ranks)
        except LearnerFault as fault:
            raise CaptureError(
                fault.detail, "Fix `train.py`, or restore the original with `lab reset`."
            ) from fault


def profile(
    lab: Lab,
    workspace: Path,
    device: Device,
    tool: str,
    *,
    data: Path,
    out: Path,
    progress: Progress,
) -> Path:
    """Capture the workload with `tool` into the folder `out`; returns the trace file. Raises
    CaptureError, UsageError or MachineError.
    """
    if tool != "torch":
        from bottleneck_lab.capture.tools import profile_with

        return profile_with(lab, workspace, device, tool, data=data, out=out, progress=progress)
    code = lab.code_hash(workspace)  # of what is run: it may be edited meanwhile
    lines: list[str] = []
    with _context(lab, device, workspace, data) as context:
        progress("running the workload under torch.profiler", 0.1)
        status = kind_of(lab).profile(context, out / TRACE, lines.append)
    if status or not (out / TRACE).is_file():
        last = "\n".join(line.rstrip() for line in lines[-12:])
        raise CaptureError(
            f"The workload exited with status {status} before its trace was written:\n{last}",
            "Fix the error above; `lab run` runs the workload without a profiler.",
        )
    (out / "output.txt").write_text("".join(lines)[-(1 << 20) :], encoding="utf-8")
    write_description(
        lab, code, device, tool, out, sorted(path.name for path in out.glob("trace*.json.gz"))
    )
    return out / TRACE


def write_description(
    lab: Lab, code: str, device: Device, tool: str, out: Path, files: list[str]
) -> None:
    """State in `capture.json` what was captured, of which code, where and when. No host name, no
    environment variables.
    """
    description = {
        "lab": lab.slug,
        "device": device,
        "emulated": device == "virtual",
        "tool": tool,
        "files": files,
        "code": code,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": fingerprint(),
    }
    (out / "capture.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
