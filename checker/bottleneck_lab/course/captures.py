"""The learner's captures as evidence: read once, for diagnosis, hints and reports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bottleneck_lab.analysis.counters.roofline import Machine
from bottleneck_lab.analysis.host.second_run import overlay_frames
from bottleneck_lab.analysis.plateau import BUSY_CORES
from bottleneck_lab.analysis.selection import figures_within, longest_gap_ns
from bottleneck_lab.analysis.summary import Analysis, Summary, analyse, summarise
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.grading.cases import Case
from bottleneck_lab.grading.figures import CaptureFigures, figures_of
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.ceilings import stored_ceilings
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.machine import cpu_model
from bottleneck_lab.report.capture_words import describe_costs
from bottleneck_lab.report.check_ceiling import check_ceiling
from bottleneck_lab.report.evidence_only import (
    evidence_only,
    without_advice,
    without_intensities,
    without_remedies,
)
from bottleneck_lab.report.words import format_moment
from bottleneck_lab.trace import Timeline, load, merge_ranks
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import (
    CODE,
    capture_number,
    capture_of,
    code_captured,
    readable,
    whose_code,
)
from bottleneck_lab.workspace.cases import PROGRAM, traces_of
from bottleneck_lab.workspace.folder import Workspace, read_json, workspace_above

_LINE = re.compile(r"(?:.*/)?([^/()]+)\((\d+)\): ")
"""How a line of the user's own Python is named: "train.py(31): train"."""


def read_timeline(folder: Path) -> Timeline:
    """Return the timeline of one capture, all its ranks together, with the frames of its second
    run, and with what recording cost among its notes.

    Raises CaptureError when it cannot be read.
    """
    timeline = merge_ranks([load(path) for path in trace_files(folder)])
    description = _description(folder)
    cost = describe_costs(timeline, description.get("costs_ns", {}))
    if cost:
        timeline = replace(timeline, notes=(*timeline.notes, cost))
    frames = [folder / name for name in description.get("frames", [])]
    if not frames or not all(path.is_file() for path in frames):
        return timeline
    framed = merge_ranks([load(path) for path in frames])
    placed = overlay_frames(timeline, framed)
    if placed is not None:
        return placed
    note = (
        "lines are missing: the second run, which recorded them, did other work than the first, so"
        f" that nothing connects the two; `lab report {frames[0].name}` shows it by itself"
    )
    return replace(timeline, notes=(*timeline.notes, note))


def read_capture(folder: Path) -> Summary:
    """Return the summary of one capture. Raises CaptureError when it cannot be read."""
    timeline = read_timeline(folder)
    return summarise(timeline, ceilings_for(timeline, folder))


def visible_summary(
    summary: Summary, folder: Path | None, *, blind: bool, remedies_later: bool
) -> Summary:
    """Return a capture's summary as its reader may see it: without causes while these are the
    reader's to find, and without remedies before the first check. A lab's capture comes with the
    source of its lines, and without advice where the lab's program is a benchmark.
    """
    if folder:
        summary = msgspec.structs.replace(summary, disturbed=disturbance(summary, folder))
    workspace = workspace_above(folder.absolute()) if folder else None
    if folder and workspace and _description(folder).get("lab"):
        if measures_others(folder):
            summary = without_advice(summary)
        summary = msgspec.structs.replace(
            summary,
            code=code_of(folder, lines_named(summary)),
            of_memory=is_of_memory(folder),
            check_ceiling=check_ceiling(workspace.lab, workspace.info.device),
        )
        if kind_of(workspace.lab).records_itself:
            summary = without_intensities(summary, judged=not blind and has_judged(workspace))
    if blind:
        return evidence_only(summary)
    return without_remedies(summary) if remedies_later else summary


def has_judged(workspace: Workspace) -> bool:
    """Return True if a check has judged every answer, right or wrong, so that none is open."""
    return any(
        all(each.holds is not None for each in attempt.verdict.criteria if each.kind == "diagnosis")
        for attempt in load_attempts(workspace)
    )


def disturbance(summary: Summary, folder: Path) -> str:
    """Return a sentence about other programs that kept the machine busy while a capture was made,
    where its times depend on that; "" otherwise.
    """
    file = folder / "capture.json"
    described = _description(folder) if file.is_file() else {}
    others = float(described.get("other_cores", 0.0))
    if summary.modelled_host or others <= BUSY_CORES:
        return ""
    return (
        f"Other programs kept {others:.1f} of {described['environment']['cores']} cores busy while"
        " this was recorded: the host's times are too long."
    )


def code_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the source of lines of a lab's capture by their names; empty outside labs."""
    workspace = workspace_above(folder.absolute())
    if workspace is None or not (folder / "capture.json").is_file():
        return {}
    return source_lines(names, workspace, folder)


def is_of_memory(folder: Path) -> bool:
    """Return True if a capture is of a lab whose work is measured by how much memory it needs."""
    workspace = workspace_above(folder.absolute())
    return workspace is not None and workspace.lab.predicts_memory(workspace.info.device)


def measures_others(folder: Path) -> bool:
    """Return True if a capture is of a lab whose program is a benchmark: how long it takes is
    neither good nor bad.
    """
    workspace = workspace_above(folder.absolute())
    return workspace is not None and workspace.lab.spec.measure == "benchmark"


def lines_named(summary: Summary) -> set[str]:
    """Return the names of the lines of Python that a summary names."""
    return {
        *(row.line for row in summary.syncs),
        *(row.line for row in summary.lines),
        *(holder.line for use in summary.memory for holder in use.holders),
        *(holder.a_step.late_freed_at for use in summary.memory for holder in use.holders),
    }


def source_lines(names: Iterable[str], workspace: Workspace, capture: Path) -> dict[str, str]:
    """Return the source of lines of a capture by their names. Files may have been edited since: the
    lines are of the version that was captured, if it is still there, be it with the capture, in the
    workspace, as shipped or in a check.
    """
    lab, captured = workspace.lab, code_captured(capture)
    checked = (each.submission for each in load_attempts(workspace)[::-1])
    folders = [capture / CODE, workspace.root, lab.path, *checked]
    version = next((each for each in folders if lab.code_hash(each) == captured), None)
    if version is None:
        return {}
    texts = {}
    for name in lab.spec.files:
        file = (version if name in lab.spec.editable else lab.path) / name
        if name.endswith(".py") and file.is_file():
            texts[name] = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return _in_texts(names, texts)


def case_summary(summary: Summary, case: Case) -> Summary:
    """Return the summary of a case's capture with the source of its lines, as the library has it:
    the learner's copy may have been edited since.
    """
    program = traces_of(case)[0].with_name(PROGRAM)
    texts = {PROGRAM: program.read_text(encoding="utf-8").splitlines()}
    return msgspec.structs.replace(summary, code=_in_texts(lines_named(summary), texts))


def _in_texts(names: Iterable[str], texts: dict[str, list[str]]) -> dict[str, str]:
    """Return the source of each of these lines that is there, from the lines of each file."""
    lines = {}
    for name in names:
        match = _LINE.match(name)
        if match and 0 < int(match[2]) <= len(texts.get(match[1], [])):
            lines[name] = texts[match[1]][int(match[2]) - 1].strip()
    return lines


def ceilings_for(timeline: Timeline, folder: Path | None) -> Machine | None:
    """Return the ceilings that `lab doctor --measure` measured, if they hold for this capture.

    They hold if it is from this GPU, or (by `capture.json`) this CPU.
    """
    if timeline.emulated:
        return None
    if len(timeline.device):
        ceilings = stored_ceilings("cuda")
        if ceilings and any(device.name == ceilings.name for device in timeline.devices):
            return ceilings
        return None
    # A CPU is told by its model alone; clocks and memory may differ between two of them.
    cpu = _description(folder).get("environment", {}).get("cpu") if folder else None
    if folder is None or cpu != cpu_model():
        return None
    return stored_ceilings("cpu", lab_threads(folder))


def lab_threads(folder: Path) -> int | None:
    """Return how many threads the lab uses on the CPU in whose workspace `folder` lies: that is
    what its ceilings are of. None outside labs, where a program may use them all.
    """
    workspace = workspace_above(folder.absolute())
    if workspace is None or workspace.info.device != "cpu":
        return None
    return kind_of(workspace.lab).cores(workspace.lab, "cpu") or None


def trace_files(folder: Path) -> list[Path]:
    """Return the trace files that `capture.json` names. Raises CaptureError if none exists."""
    names = _description(folder).get("files", [])
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files:
        raise CaptureError(
            f"The capture {folder.name} holds no trace.", "Make another with `lab profile`."
        )
    return files


def _description(folder: Path) -> dict[str, Any]:
    return read_json(folder / "capture.json", dict[str, Any])


def circumstances(folder: Path) -> dict[str, str]:
    """Return when, with which tool and on which machine a capture was made."""
    description = _description(folder)
    facts = {}
    for name, key in (("made", "made_at"), ("tool", "tool"), ("device", "device")):
        if description.get(key):
            facts[name] = format_moment(str(description[key]))
    for name, value in description.get("environment", {}).items():
        facts[name] = str(value)
    return facts


def mismatch(folder: Path, checked: Verdict | None) -> str | None:
    """Return one sentence if a capture and the latest check are about different code.

    None if they are about the same code, or one of them does not say which.
    """
    description = _description(folder)
    code = description.get("code", "")
    if checked is None or not code or not checked.submission_hash:
        return None
    if code == checked.submission_hash:
        return None
    if description["made_at"] > checked.started_at:
        return f"{folder.name} shows newer code than the last check judged; `lab check` judges it."
    workspace = workspace_above(folder.absolute())
    if workspace and code == workspace.lab.code_hash(workspace.root):
        return f"{folder.name} shows the code that is here now; the last check was of other code."
    of_checked = workspace and capture_of(workspace, checked.submission_hash)
    remedy = "; `lab profile` makes a new capture"
    if of_checked:
        remedy = f"; `lab report {capture_number(of_checked)}` shows that"
    elif workspace and workspace.lab.spec.evidence == "run":  # which asks for no capture
        remedy = ""
    return f"{folder.name} shows older code than the last check{remedy}."


def outdated(folder: Path) -> str:
    """Return one sentence if a lab's code is no longer what its latest capture shows; "" else."""
    workspace = workspace_above(folder.absolute())
    if not workspace or code_captured(folder) in ("", workspace.lab.code_hash(workspace.root)):
        return ""
    files = ", ".join(workspace.lab.spec.editable)
    now = capture_of(workspace, workspace.lab.code_hash(workspace.root))
    remedy = "`lab profile` captures it as it is now"
    if now:
        remedy = f"capture {capture_number(now)} is of it as it is now"
    return f"{files} changed after {folder.name}, the latest capture, was made; {remedy}."


def evidence_capture(workspace: Workspace) -> Path | None:
    """Return the capture that a diagnosis is about; None without a capture.

    That is the latest of the shipped code, even after a fix has been captured; else the first. In a
    lab whose shipped code records nothing it is the latest of all.
    """
    lab = workspace.lab
    shipped = lab.code_hash(lab.path)
    captures, of_shipped = [], []
    for path in readable(workspace):
        description = _description(path)
        if description.get("tool") == "nsys" and description.get("emulated"):
            continue  # nsys cannot see an emulated device
        captures.append(path)
        if description.get("code") == shipped:
            of_shipped.append(path)
    first = captures[-1:] if kind_of(lab).records_itself else captures[:1]
    chosen = of_shipped[-1:] or first
    return chosen[0] if chosen else None


def committed_capture(workspace: Workspace, name: str) -> Path | None:
    """Return the capture of this name, in which a committed diagnosis was measured; without a name,
    or where it is gone, the one that a diagnosis is about. None without a capture.
    """
    folder = workspace.captures / name
    return folder if name and folder.is_dir() else evidence_capture(workspace)


def compared_with(workspace: Workspace, name: str) -> str:
    """Name the capture in which a diagnosis is measured and whose code it shows, as in `001-torch,
    of the shipped code`; empty without one. `name` as for `committed_capture`.
    """
    folder = committed_capture(workspace, name)
    code = whose_code(workspace.lab, folder) if folder else ""
    return ", ".join(part for part in (folder.name if folder else "", code) if part)


class AnalysedCapture(NamedTuple):
    """A capture's folder and its analysis, so that nothing is read or computed twice."""

    folder: Path | None
    analysis: Analysis


def analyse_capture(timeline: Timeline, folder: Path | None) -> Analysis:
    """Analyse a capture; its roofline uses the ceilings of the machine that made it."""
    return analyse(timeline, ceilings_for(timeline, folder))


def capture_figures(
    workspace: Workspace, capture: str = "", analysed: AnalysedCapture | None = None
) -> CaptureFigures | None:
    """Return the figures to check answers against; None without a capture.

    They are of `committed_capture`.
    """
    folder = committed_capture(workspace, capture)
    if folder is None:
        return None
    if analysed and analysed.folder == folder:
        analysis = analysed.analysis
    else:
        analysis = analyse_capture(read_timeline(folder), folder)
    start, end = analysis.timeline.extent
    within = partial(figures_within, analysis.timeline, analysis.times, analysis.summary.syncs)
    figures, longest_ns = figures_of(analysis.summary), longest_gap_ns(analysis.times)
    return CaptureFigures(figures, end - start, within, longest_ns)


def evidence(workspace: Workspace, finding: str) -> str | None:
    """Return the evidence for `finding` in the capture that a diagnosis is about, if any."""
    folder = evidence_capture(workspace)
    findings = read_capture(folder).findings if folder else []
    return next((each.evidence for each in findings if each.id == finding), None)


def shipped_remedies(workspace: Workspace) -> int | None:
    """Return the number of the capture of the shipped code that a diagnosis is about, if its report
    says what helps against a finding; None otherwise.
    """
    folder = evidence_capture(workspace)
    if folder is None or whose_code(workspace.lab, folder) != "of the shipped code":
        return None
    summary = visible_summary(read_capture(folder), folder, blind=False, remedies_later=False)
    return capture_number(folder) if any(each.advice for each in summary.findings) else None
