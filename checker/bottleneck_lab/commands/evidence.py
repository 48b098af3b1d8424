"""What the learner's captures show: read once, for diagnosis, hints and reports."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bottleneck_lab.analysis.counters.roofline import Machine
from bottleneck_lab.analysis.selection import figures_within
from bottleneck_lab.analysis.summary import Analysis, Summary, analyse, summarise
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.grading.diagnosis import CaptureFigures, figures_of
from bottleneck_lab.measure.ceilings import stored_ceilings
from bottleneck_lab.measure.machine import cpu_model
from bottleneck_lab.report.words import format_moment
from bottleneck_lab.trace import Timeline, load, merge_ranks
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.folder import Workspace, numbered, read_json


def read_timeline(folder: Path) -> Timeline:
    """The timeline of one capture, all its ranks together. Raises CaptureError when it cannot be
    read.
    """
    return merge_ranks([load(path) for path in trace_files(folder)])


def read_capture(folder: Path) -> Summary:
    """The summary of one capture. Raises CaptureError when it cannot be read."""
    timeline = read_timeline(folder)
    return summarise(timeline, ceilings_for(timeline, folder))


def ceilings_for(timeline: Timeline, folder: Path | None) -> Machine | None:
    """The ceilings that `lab doctor --measure` found, if the capture is from this GPU, or (by
    `capture.json`) this CPU; else None.
    """
    if timeline.emulated:
        return None
    if len(timeline.device):
        found = stored_ceilings("cuda")
        return (
            found
            if found and any(device.name == found.name for device in timeline.devices)
            else None
        )
    made_on = _description(folder).get("environment", {}).get("cpu") if folder else None
    return stored_ceilings("cpu") if made_on == cpu_model() else None


def trace_files(folder: Path) -> list[Path]:
    """The trace files that `capture.json` names. Raises CaptureError if none of them exists."""
    files = [
        folder / name for name in _description(folder).get("files", []) if (folder / name).is_file()
    ]
    if not files:
        raise CaptureError(
            f"The capture {folder.name} holds no trace.", "Make another with `lab profile`."
        )
    return files


def _description(folder: Path) -> dict[str, Any]:
    return read_json(folder / "capture.json", dict[str, Any])


def circumstances(folder: Path) -> dict[str, str]:
    """When, with what and on which machine a capture was made, as `capture.json` says."""
    description = _description(folder)
    told = {
        name: format_moment(str(description[key]))
        for name, key in _TOLD.items()
        if description.get(key)
    }
    return {
        name: str(value) for name, value in {**told, **description.get("environment", {})}.items()
    }


_TOLD = {"made": "made_at", "tool": "tool", "device": "device"}


def mismatch(workspace: Workspace, folder: Path) -> str | None:
    """One sentence when the capture and the latest check are about different code; None when they
    are not, or there was no check.
    """
    attempts, description = load_attempts(workspace), _description(folder)
    checked = attempts[-1].verdict if attempts else None
    if (
        checked is None
        or description.get("code", "") in ("", checked.submission_hash)
        or not checked.submission_hash
    ):
        return None
    if description["made_at"] > checked.started_at:
        return f"{folder.name} shows newer code than the last check; `lab check` measures it."
    return f"{folder.name} shows older code than the last check; `lab profile` makes a new capture."


def readable(workspace: Workspace) -> list[Path]:
    """The captures that hold a timeline, oldest first. An ncu capture, of single kernels, does not."""
    return [
        path
        for _, path in numbered(workspace.captures)
        if not path.name.endswith(("-ncu", "-sanitizer"))
    ]


def _with_device(workspace: Workspace) -> list[Path]:
    """The readable captures that show the lab's device, oldest first: nsys cannot see an emulated
    one.
    """

    def sees_none(path: Path) -> bool:
        description = _description(path)
        return description.get("tool") == "nsys" and bool(description.get("emulated"))

    return [path for path in readable(workspace) if not sees_none(path)]


def evidence_capture(workspace: Workspace) -> Path | None:
    """The capture that a diagnosis is about: one of the shipped code, even after a fix has been
    captured.

    The latest of the shipped code, else the first of all; None without a capture.
    """
    lab, captures = workspace.lab, _with_device(workspace)
    shipped = lab.code_hash(lab.path)
    of_shipped = [path for path in captures if _description(path).get("code") == shipped]
    chosen = of_shipped[-1:] or captures[:1]
    return chosen[0] if chosen else None


Known = tuple[Path | None, Analysis]
"""A capture's folder and what was found in it, so that nothing is read or computed twice."""


def analyse_capture(timeline: Timeline, folder: Path | None) -> Analysis:
    """What was found in a capture; its roofline uses the ceilings of the machine that made it."""
    return analyse(timeline, ceilings_for(timeline, folder))


def capture_figures(
    workspace: Workspace, capture: str = "", known: Known | None = None
) -> CaptureFigures | None:
    """The figures to check answers against: of the capture with that name, else of the one that a
    diagnosis is about; None without one.
    """
    named = workspace.captures / capture if capture else None
    folder = named if named and named.is_dir() else evidence_capture(workspace)
    if folder is None:
        return None
    found = (
        known[1] if known and known[0] == folder else analyse_capture(read_timeline(folder), folder)
    )
    start, end = found.timeline.extent
    return CaptureFigures(
        figures_of(found.summary), end - start, partial(figures_within, found.timeline, found.times)
    )


def figures(workspace: Workspace) -> dict[str, float] | None:
    """The figures of the capture that a diagnosis is about; None without one."""
    folder = evidence_capture(workspace)
    return figures_of(read_capture(folder)) if folder else None


def evidence(workspace: Workspace, finding: str) -> str | None:
    """The evidence for `finding` in the capture that a diagnosis is about; None if there is none."""
    folder = evidence_capture(workspace)
    found = read_capture(folder).findings if folder else []
    return next((each.evidence for each in found if each.id == finding), None)
