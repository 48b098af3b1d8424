"""The subject of `lab report`: a capture of this lab, a file or folder, an example, or a case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bottleneck_lab.analysis.summary import Analysis, Summary
from bottleneck_lab.catalog import content_root
from bottleneck_lab.course.advice import fit_advice
from bottleneck_lab.course.captures import (
    analyse_capture,
    case_summary,
    mismatch,
    read_timeline,
    trace_files,
    visible_summary,
)
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.report.evidence_only import without_taught
from bottleneck_lab.trace import Timeline, load, merge_ranks
from bottleneck_lab.trace.load import find_traces
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import captures_called, find_capture
from bottleneck_lab.workspace.cases import (
    ANSWER,
    DrawnCase,
    case_at,
    find_case,
    is_hidden_at,
    open_case,
)
from bottleneck_lab.workspace.commitments import (
    hides_remedies_at,
    is_blind_at,
    load_record,
    untried_findings,
)
from bottleneck_lab.workspace.folder import Workspace, find_workspace, numbered


@dataclass(frozen=True)
class Subject:
    """The subject of a report: trace files, the capture's folder, and the lab or the drawn case
    that it is of.

    `blind`: causes are the reader's to find, and are not shown until `commit_with` was run;
    `remedies_later`: nor is what helps against them before the first check. `noted_as` is the
    name under which a workspace notes that the report was looked at; empty where none does. `name`
    is that of a capture which ships with the package.
    """

    traces: list[Path]
    folder: Path | None = None
    workspace: Workspace | None = None
    blind: bool = False
    case: DrawnCase | None = None
    remedies_later: bool = False
    commit_with: str = "lab diagnose"
    noted_as: str = ""
    name: str = ""

    @property
    def title(self) -> str:
        """The lab's or the case's, or the name of the capture."""
        if self.workspace:
            return self.workspace.lab.spec.title
        if self.case:
            return find_case(self.case.name).title
        return self.name or (self.folder or self.traces[0]).name

    def analysed(self) -> Analysis:
        """Return the analysis of the capture. Raises CaptureError for an unreadable trace."""
        return analyse_capture(self.timeline(), self.folder)

    def visible(self, summary: Summary) -> Summary:
        """Return the summary as this reader may see it."""
        if self.case:
            summary = case_summary(summary, find_case(self.case.name))
            summary = without_taught(summary, untried_findings())
        return visible_summary(
            summary, self.folder, blind=self.blind, remedies_later=self.remedies_later
        )

    def timeline(self) -> Timeline:
        """Return the timeline of all ranks. Raises CaptureError for an unreadable trace."""
        if self.folder:
            return read_timeline(self.folder)
        return merge_ranks([load(path) for path in self.traces])

    def attempts(self) -> list[Verdict]:
        """Return the verdicts on the lab so far, oldest first."""
        if self.workspace is None:
            return []
        return [attempt.verdict for attempt in load_attempts(self.workspace)]

    def advised(self, attempts: list[Verdict]) -> list[Verdict]:
        """Return the verdicts with the latest one's advice as it is to be followed now."""
        if self.workspace is None or not attempts:
            return attempts
        latest = fit_advice(self.workspace, load_record(self.workspace), attempts[-1])
        return [*attempts[:-1], latest]

    def mismatch(self, attempts: list[Verdict]) -> str | None:
        """Return one sentence if capture and latest check are about different code."""
        if self.folder is None or not attempts:
            return None
        return mismatch(self.folder, attempts[-1])


def find_subject(name: str | None) -> Subject:
    """Return a file or folder with that name, or a capture of the current workspace.

    Raises UsageError, CaptureError.
    """
    if name is None and case_at(Path.cwd()):
        name = "."
    path = Path(name or "").expanduser()
    if name and not name.isdecimal() and (path.suffix or path.exists()):
        blind, later = is_blind_at(path) or is_hidden_at(path), hides_remedies_at(path)
        if (path / "capture.json").is_file():
            return Subject(trace_files(path), path, blind=blind, remedies_later=later)
        traces, case = find_traces(path) if path.is_dir() else [path], case_at(path)
        command = ANSWER if case else Subject.commit_with
        if case and case.skipped:
            command = "lab case"  # it takes no answer any more
        return Subject(traces, blind=blind, case=case, remedies_later=later, commit_with=command)
    if "/" in (name or ""):
        waiting = open_case()
        help_ = f"Your open case is {waiting.folder}." if waiting else "Name a capture that exists."
        raise UsageError(f"There is no {name}.", help_)
    try:
        workspace = find_workspace(Path.cwd())
    except UsageError:
        # Outside a lab, `lab profile -- …` leaves its captures in this folder.
        captures = captures_called(name, Path.cwd() / "captures")
        if not captures:
            raise
        return Subject(trace_files(captures[-1]), captures[-1])
    if name is None and not numbered(workspace.captures) and load_attempts(workspace):
        # Some labs are not captured at all: their report is about the checks alone.
        return Subject([], None, workspace, is_blind_at(workspace.root))
    folder = find_capture(workspace, name)
    return Subject(
        trace_files(folder),
        folder,
        workspace,
        is_blind_at(workspace.root),
        remedies_later=hides_remedies_at(workspace.root),
        noted_as=folder.name,
    )


def example_subject() -> Subject:
    """Return the real GPU capture that ships with the package, so that everybody has one."""
    trace = content_root() / "datasets" / "captures" / "h200" / "training.json.gz"
    return Subject([trace], name="Three steps of a training on an H200")


def recorded_subject(workspace: Workspace, tool: str) -> Subject:
    """Return the capture of the shipped code that ships with the lab.

    It is for machines that cannot make one: recorded on a GPU, or synthetic, which it then states.
    Raises UsageError if there is none.
    """
    slug, folder = workspace.lab.slug, workspace.lab.root / "datasets" / "captures"
    captures = [
        *sorted(folder.glob(f"*/{slug}-starter-{tool}.csv")),
        *folder.glob(f"synthetic-{slug}-{tool}.csv"),
    ]
    if not captures:
        raise UsageError(
            f"{slug} does not ship with a '{tool}' report.", "Make a capture with `lab profile`."
        )
    return Subject(
        captures[:1],
        blind=is_blind_at(workspace.root),
        remedies_later=hides_remedies_at(workspace.root),
    )
