"""`lab report`: what a capture and the latest check say."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from bottleneck_lab.analysis.kernel_counters import compare_kernels
from bottleneck_lab.analysis.query import query
from bottleneck_lab.analysis.summary import Summary, summarise
from bottleneck_lab.catalog import content_root
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.diagnose import compare_answers
from bottleneck_lab.commands.evidence import circumstances, mismatch, read_capture, readable, trace_files
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import Json, here, note, print_json, say
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.report.console import render_counters, render_summary, render_verdict
from bottleneck_lab.report.html import render_html
from bottleneck_lab.report.page_verdict import Answered
from bottleneck_lab.report.perfetto import PERMISSION, PORT, explain_by_hand, serve_trace
from bottleneck_lab.trace import Timeline, load, merge_ranks
from bottleneck_lab.trace.allocator import keep_freed
from bottleneck_lab.trace.load import find_traces
from bottleneck_lab.workspace.atomic import explained, write_bytes
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import find_capture
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.folder import Workspace, numbered

EXAMPLE = "lab report --html report.html"

_OPEN_S = 120
"""How long a browser has to fetch the trace: it may first have to be started."""


def command(
    capture: Annotated[
        str | None,
        typer.Argument(
            help="A capture's number, or any trace file or capture folder, also one of several ranks' traces; by default this lab's latest.",
            autocompletion=completion.capture_numbers,
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page there.")] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the trace in Perfetto; it stays on this machine.")
    ] = False,
    query: Annotated[
        str | None, typer.Option("--query", metavar="SQL", help="Ask the capture's tables; times are in ns.")
    ] = None,
    recorded: Annotated[
        str | None, typer.Option("--recorded", metavar="TOOL", help="The report that came with this lab: ncu.")
    ] = None,
    json: Json = False,
) -> None:
    """Read a capture top-down: where the time went, the largest block, what is inside it; then the last verdict."""
    keep_freed()
    subject = recorded_subject(recorded) if recorded else find_subject(capture)
    if html:
        say(f"The report is in {write_html(subject, html.expanduser().absolute())}")
    elif open_:
        open_trace(subject.traces[0])
    elif query:
        _query(subject, query, json=json)
    else:
        _show(subject, json=json)


@dataclass(frozen=True)
class Subject:
    """What a report is about: trace files, the capture's folder where there is one, and the lab that it was made in."""

    traces: list[Path]
    folder: Path | None = None
    workspace: Workspace | None = None

    def timeline(self) -> Timeline:
        """All ranks together. Raises CaptureError when a trace cannot be read."""
        return merge_ranks([load(path) for path in self.traces])

    def attempts(self) -> list[Verdict]:
        """The checks of the lab so far, oldest first."""
        return [attempt.verdict for attempt in load_attempts(self.workspace)] if self.workspace else []

    def mismatch(self) -> str | None:
        """One sentence when capture and latest check are about different code."""
        return mismatch(self.workspace, self.folder) if self.workspace and self.folder else None


def find_subject(what: str | None) -> Subject:
    """A file or folder of that name, or a capture of the workspace that one stands in. Raises UsageError, CaptureError."""
    path = Path(what or "").expanduser()
    if what and not what.isdecimal() and (path.suffix or path.exists()):
        if (path / "capture.json").is_file():
            return Subject(trace_files(path), path)
        return Subject(find_traces(path) if path.is_dir() else [path])
    try:
        workspace = here()
    except UsageError:
        folder = _own_capture(what)
        if folder is None:
            raise
        return Subject(trace_files(folder), folder)
    latest = readable(workspace)[-1:] if what is None else []
    folder = latest[0] if latest else find_capture(workspace, what)
    return Subject(trace_files(folder), folder, workspace)


def _own_capture(what: str | None) -> Path | None:
    """Outside a lab, the capture of that number, or the latest, that `lab profile -- …` left in this folder; None when there is none."""
    found = [(number, path) for number, path in numbered(Path.cwd() / "captures") if (path / "capture.json").is_file()]
    wanted = [path for number, path in found if what is None or what in (path.name, str(number), f"{number:04}")]
    return wanted[-1] if wanted else None


def recorded_subject(tool: str) -> Subject:
    """A capture of this lab's shipped code that came with it, for machines that cannot make one: recorded on a GPU, else made up, as it then says.

    Raises UsageError where there is none.
    """
    slug, folder = here().lab.slug, content_root() / "datasets" / "captures"
    found = [*sorted(folder.glob(f"*/{slug}-starter-{tool}.csv")), *folder.glob(f"synthetic-{slug}-{tool}.csv")]
    if not found:
        raise UsageError(f"{slug} came with no report of '{tool}'.", "`lab profile` makes a capture here.")
    return Subject(found[:1])


def _show(subject: Subject, *, json: bool) -> None:
    timeline, attempts, warning = subject.timeline(), subject.attempts(), subject.mismatch()
    summary, pairs = summarise(timeline), compare_kernels(timeline.counters)
    if json:
        capture, verdict = str(subject.folder or subject.traces[0]), attempts[-1] if attempts else None
        print_json({"capture": capture, "summary": summary, "counters": pairs, "verdict": verdict, "warning": warning})
        return
    if pairs:
        render_counters(pairs, timeline.notes, console())
    else:
        render_summary(summary, console())
    if warning:
        say(f"\nCapture {warning}", style="yellow")
    if attempts:
        say("")
        render_verdict(attempts[-1], console())


def _query(subject: Subject, sql: str, *, json: bool) -> None:
    found = query(subject.timeline(), sql)
    if json:
        print_json(found)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(found.columns):
        number = all(isinstance(row[place], int | float) for row in found.rows)
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(f"{value:,}" if isinstance(value, int) else str(value)) for value in row))
    console().print(table)
    if found.cut:
        note(f"Only the first {len(found.rows):,} rows are shown: add a LIMIT or a condition.")


def write_html(subject: Subject, target: Path) -> Path:
    """Write the page about one capture and every attempt so far to `target`, whole or not at all; `target`."""
    timeline, workspace, warning = subject.timeline(), subject.workspace, subject.mismatch()
    summary = summarise(timeline)

    def read(folder: Path) -> Summary:
        return summary if folder == subject.folder else read_capture(folder)

    page = render_html(
        title=workspace.lab.spec.title if workspace else subject.traces[0].name,
        timeline=timeline,
        summary=summary,
        attempts=subject.attempts(),
        diagnosis=_answers(workspace, read) if workspace else [],
        environment=circumstances(subject.folder) if subject.folder else None,
        warning=f"Capture {warning}" if warning else "",
    )
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, page.encode())
    return target


def _answers(workspace: Workspace, read: Callable[[Path], Summary]) -> list[Answered]:
    """The learner's answers, each beside what the capture shows; a choice is left to `lab check`."""
    read_off = {question.id for question in workspace.lab.spec.questions if question.from_capture}
    return [
        Answered(
            row["ask"],
            str(row["answer"]),
            row["problem"] or row["evidence"],
            not row["problem"] if row["problem"] or row["id"] in read_off else None,
        )
        for row in compare_answers(workspace, load_answers(workspace.root), read)
        if is_given(row["answer"])
    ]


def open_trace(trace: Path, *, port: int | None = None) -> None:
    """Hand the trace to Perfetto in a browser, or say how to do it by hand. `port` other than Perfetto's own is for tests."""
    with serve_trace(trace, port=PORT if port is None else port) as served:
        say(PERMISSION)
        if not webbrowser.open(served.link):
            say("There is no browser here that could be opened.")
        elif served.wait(_OPEN_S):
            say("Perfetto has the trace.")
            return
        else:
            say(f"No browser fetched the trace within {_OPEN_S} seconds.")
    for line in explain_by_hand(trace):
        say(line)
