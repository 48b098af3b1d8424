"""`lab report`: what the latest capture and the latest check say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck_lab.commands.ui import Json

if TYPE_CHECKING:
    from bottleneck_lab.report.page_verdict import Answered
    from bottleneck_lab.workspace.folder import Workspace

EXAMPLE = "lab report --html report.html"

_OPEN_S = 120
"""How long a browser has to fetch the trace: it may first have to be started."""


def command(
    capture: Annotated[str | None, typer.Argument(help="A capture's number; by default the latest.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page there.")] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the trace in Perfetto; it stays on this machine.")
    ] = False,
    json: Json = False,
) -> None:
    """Read the capture top-down: where the time went, the largest block, what is inside it; then the last verdict."""
    from bottleneck_lab.commands.ui import here, say
    from bottleneck_lab.workspace.captures import find_capture

    workspace = here()
    folder = find_capture(workspace, capture)
    if html:
        say(f"The report is in {write_html(workspace, folder, html.expanduser().absolute())}")
    elif open_:
        _open(folder)
    else:
        _show(workspace, folder, json=json)


def _show(workspace: Workspace, folder: Path, *, json: bool) -> None:
    from bottleneck_lab.commands.evidence import read_capture
    from bottleneck_lab.commands.ui import console, print_json
    from bottleneck_lab.report.console import render_summary, render_verdict
    from bottleneck_lab.workspace.attempts import load_attempts

    summary, attempts = read_capture(folder), load_attempts(workspace)
    if json:
        verdict = attempts[-1].verdict if attempts else None
        print_json({"capture": str(folder), "summary": summary, "verdict": verdict})
        return
    render_summary(summary, console())
    if attempts:
        render_verdict(attempts[-1].verdict, console())


def write_html(workspace: Workspace, folder: Path, target: Path) -> Path:
    """Write the page about one capture and every attempt so far to `target`, whole or not at all; `target`."""
    from bottleneck_lab.analysis.summary import summarise
    from bottleneck_lab.commands.evidence import read_timeline
    from bottleneck_lab.report.html import render_html
    from bottleneck_lab.workspace.atomic import explained, write_bytes
    from bottleneck_lab.workspace.attempts import load_attempts

    timeline = read_timeline(folder)
    page = render_html(
        title=workspace.lab.spec.title,
        timeline=timeline,
        summary=summarise(timeline),
        attempts=[attempt.verdict for attempt in load_attempts(workspace)],
        diagnosis=_answers(workspace),
    )
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, page.encode())
    return target


def _answers(workspace: Workspace) -> list[Answered]:
    """The learner's answers, each with what the capture says about it; a choice is left to `lab check`."""
    from bottleneck_lab.commands.diagnose import compare_answers
    from bottleneck_lab.report.page_verdict import Answered
    from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers

    rows = compare_answers(workspace, load_answers(workspace.root))
    return [
        Answered(row["ask"], str(row["answer"]), row["problem"] or "", False if row["problem"] else None)
        for row in rows
        if is_given(row["answer"])
    ]


def _open(folder: Path) -> None:
    import webbrowser

    from bottleneck_lab.commands.evidence import trace_files
    from bottleneck_lab.commands.ui import say
    from bottleneck_lab.report.perfetto import explain_by_hand, serve_trace

    trace = trace_files(folder)[0]
    with serve_trace(trace) as served:
        if not webbrowser.open(served.link):
            say("There is no browser here that could be opened.")
        elif served.wait(_OPEN_S):
            say("Perfetto has the trace.")
            return
    for line in explain_by_hand(trace):
        say(line)
