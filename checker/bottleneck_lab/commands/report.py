"""`lab report`: what a capture and the latest check show."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.analysis.counters.kernel_counters import compare_kernels
from bottleneck_lab.analysis.detectors.idle import WAITS
from bottleneck_lab.analysis.device.gaps import LEAST_LISTED_NS
from bottleneck_lab.analysis.device.use import find_device_uses, numbered_gaps
from bottleneck_lab.analysis.memory.snapshot import find_device_memory
from bottleneck_lab.analysis.plateau import read_plateau
from bottleneck_lab.analysis.quality import judge_quality
from bottleneck_lab.analysis.query import TIME_LIMIT_S, query
from bottleneck_lab.analysis.questions import (
    NO_ROWS,
    QUESTIONS,
    Question,
    find_question,
    time_of_allocations,
)
from bottleneck_lab.analysis.selection import parse_stretch, select
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.analysis.what_if.gain import replayed
from bottleneck_lab.analysis.what_if.removal import Removal
from bottleneck_lab.catalog import QuestionSpec, load_labs
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import Json, here, note, print_json, say, say_next
from bottleneck_lab.commands.where import say_next_step, say_step
from bottleneck_lab.course.captures import (
    AnalysedCapture,
    capture_figures,
    circumstances,
    code_of,
    committed_capture,
    outdated,
)
from bottleneck_lab.course.diagnosing import judged_answers
from bottleneck_lab.course.limits import missed_limits
from bottleneck_lab.course.subjects import (
    Subject,
    example_subject,
    find_subject,
    recorded_subject,
)
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import format_answer
from bottleneck_lab.grading.diagnosis import describe_reading
from bottleneck_lab.report.budget import (
    UNCHANGED,
    WORTH_A_WORD,
    Change,
    derive_most_saved,
    describe_allocations,
    describe_change,
    describe_sides,
    find_parts,
)
from bottleneck_lab.report.capture_words import describe_fixed_prices
from bottleneck_lab.report.check_ceiling import check_ceiling
from bottleneck_lab.report.console.counters import render_counters
from bottleneck_lab.report.console.memory import render_memory
from bottleneck_lab.report.console.query import render_query
from bottleneck_lab.report.console.selection import render_selection
from bottleneck_lab.report.console.summary import render_summary
from bottleneck_lab.report.console.verdict import render_last_verdict, render_verdict
from bottleneck_lab.report.evidence_only import counters_only, counters_without_remedies
from bottleneck_lab.report.exports import ENDINGS, Report, find_export, write_file
from bottleneck_lab.report.operator_launches import list_operators
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.page.verdict import AnsweredQuestion, Diagnosis
from bottleneck_lab.report.perfetto import PERMISSION, PORT, explain_by_hand, serve_trace
from bottleneck_lab.report.words import format_duration
from bottleneck_lab.trace import Timeline
from bottleneck_lab.trace.fast.allocator import keep_freed
from bottleneck_lab.trace.load import is_snapshot, load_snapshot
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import code_captured
from bottleneck_lab.workspace.commitments import load_record
from bottleneck_lab.workspace.diagnosis_file import is_given
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.looks import note_report
from bottleneck_lab.workspace.next_step import next_lab
from bottleneck_lab.workspace.progress import load_progress

EXAMPLE = "lab report --html report.html"
DEFAULT_PAGE = "report.html"

RESTS_ON = "The tool's figure rests on your"
NOT_NAMED = "The tool names another"
COMES_LATER = "The tool's figure will stand here once `lab check` has judged your"
FOUND_WRONG = "The tool's figure is another: work it out again"
NO_FIGURE = (RESTS_ON, NOT_NAMED, COMES_LATER, FOUND_WRONG)

_OPEN_S = 120
"""How long to wait for a browser to fetch the trace; it may have to start first."""

Captures = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="capture",
        help=(
            "A capture's number, or a trace file, memory snapshot or capture folder, also of"
            " several ranks (default: this lab's latest)."
        ),
        autocompletion=completion.capture_numbers,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help=f"Write one self-contained HTML page, to this file or to {DEFAULT_PAGE}.",
    ),
]
Open = Annotated[
    bool,
    typer.Option("--open", help="Open the trace in Perfetto; the trace stays on this machine."),
]
Query = Annotated[
    str | None,
    typer.Option(
        "--query", metavar="SQL", help="Run a SELECT on the capture's tables; times are in ns."
    ),
]
Ask = Annotated[
    str | None,
    typer.Option(
        "--ask",
        metavar="QUESTION",
        help=f"Answer a ready question: {', '.join(each.name for each in QUESTIONS)}.",
    ),
]
LimitS = Annotated[
    float,
    typer.Option(
        "--limit-s", metavar="SECONDS", min=0, help="query, ask: stop after this many seconds."
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="LINE",
        help=(
            "ask budget: what is left without these lines, 31,13-18 or train.py:31, or the rows"
            " that begin so; repeatable."
        ),
    ),
]


def _list_operators(work: list[str] | None) -> list[str] | None:
    """List the operators for `--with help`, in place of a report."""
    if "help" in (work or ()):
        say("Operators that `--with` takes, with their launches (forward + backward):")
        say("\n".join(list_operators()))
        raise typer.Exit
    return work


With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="WORK",
        callback=_list_operators,
        help=(
            "ask budget: add launches of your own (3), operators of the emulated device (6*gelu;"
            " help lists all), time of the host (0.2ms) or of the device (device:0.2ms), in place"
            " of what is left out; repeatable."
        ),
    ),
]
DeviceWork = Annotated[
    float,
    typer.Option(
        "--device-work",
        metavar="SHARE",
        min=0,
        max=1,
        help=(
            "ask budget: this share of the work that stays on the device is enough (0.75), such as"
            " without padding."
        ),
    ),
]
Export = Annotated[
    Path | None,
    typer.Option(
        "--export", metavar="FILE", help=f"Write to this file, by its ending ({ENDINGS})."
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="BEGIN-END",
        help="Show what every thread did in a stretch of time: 12.5-14ms.",
    ),
]
Gap = Annotated[
    int | None,
    typer.Option("--gap", metavar="N", min=1, help="The same for a device's N-th longest gap."),
]
Recorded = Annotated[
    str | None,
    typer.Option(
        "--recorded",
        metavar="TOOL",
        help=(
            "Show the report that ships with this lab: ncu. Its counters are synthetic until real"
            " ones are recorded on a GPU."
        ),
    ),
]

Example = Annotated[
    bool,
    typer.Option("--example", help="Report on a capture that ships with lab: training on an H200."),
]
All = Annotated[
    bool,
    typer.Option(
        "--all",
        help=(
            "In the terminal, also list ranges, copies, kernels and gaps once causes are shown, and"
            " waits and copies that take next to no time."
        ),
    ),
]


def command(
    captures: Captures = None,
    html: Html = None,
    open_: Open = False,
    query: Query = None,
    ask: Ask = None,
    without: Without = None,
    with_: With = None,
    device_work: DeviceWork = 1.0,
    limit_s: LimitS = TIME_LIMIT_S,
    export: Export = None,
    at: At = None,
    gap: Gap = None,
    recorded: Recorded = None,
    example: Example = False,
    all_: All = False,
    json: Json = False,
) -> None:
    """Read a capture top-down: where the time went, the largest block, what is inside it; then the
    last verdict.

    In a lab, causes and findings appear once you commit a diagnosis, and what helps against them
    after your first check. Elsewhere nothing is hidden.
    """
    change = Change(without or (), with_ or (), device_work)
    if change != UNCHANGED and (ask != "budget" or json):
        option = "--without" if without else "--with" if with_ else "--device-work"
        raise UsageError(
            f"`{option}` changes the answer to one question, in a sentence.",
            "Use it with `--ask budget` and without `--json`, whose rows a program adds up.",
        )
    keep_freed()
    subject = _choose_subject(captures or [], example=example, recorded=recorded)
    if not subject.traces:
        if open_ or query or ask or export or at or gap:
            raise UsageError(
                "There is no capture in this workspace yet, only checks.",
                "`lab report` shows the last one, `lab report --html` plots them all.",
            )
        _show_checks(subject, html, json=json)
        if not json:
            _go_on(subject)
    elif is_snapshot(subject.traces[0]) and not (query or ask or export or at or gap):
        _show_snapshot(subject.traces[0], html, json=json)
    elif html:
        say(f"The report is in {write_html(subject, html.expanduser().absolute())}")
        _go_on(subject)
    elif open_:
        open_trace(subject.traces[0])
    elif export:
        target = export.expanduser().absolute()
        find_export(target).write(full_report(subject), target)
        say(f"Written to {target}")
    elif query or ask:
        _query(subject, query or find_question(ask or ""), change, limit_s, json=json)
    elif at or gap:
        _show_stretch(subject, at, gap or 1, json=json)
    else:
        missed = _show(subject, whole=all_, json=json)
        if not json:
            _go_on(subject, missed)


def _go_on(subject: Subject, missed: Sequence[str] = ()) -> None:
    """Note that the report was looked at, and print what comes after it. `missed`: limits of a
    check that the code misses by this capture.
    """
    if subject.noted_as:
        note_report(here(), subject.noted_as)
    if subject.workspace:
        workspace = subject.workspace
        say_next_step(workspace, load_attempts(workspace), load_record(workspace), missed)
    elif subject.blind:
        say_next(subject.commit_with)
    elif subject.name:
        say_step(next_lab(load_labs(), load_progress()))


def _choose_subject(captures: list[str], *, example: bool, recorded: str | None) -> Subject:
    if example:
        return example_subject()
    if recorded:
        return recorded_subject(here(), recorded)
    if len(captures) > 1:
        raise UsageError(
            f"`lab report` reads one capture, and these are {len(captures)}.",
            "Traces of several ranks belong in one folder: `lab report FOLDER`. Two versions are"
            " set side by side by `lab compare OLD NEW`.",
        )
    subject = find_subject(captures[0] if captures else None)
    if not captures and subject.folder and (warning := outdated(subject.folder)):
        note(warning)
    return subject


def _show_snapshot(path: Path, html: Path | None, *, json: bool) -> None:
    """Show a memory snapshot: which lines of code hold how much memory.

    It names no cause, so nothing in it has to be hidden.
    """
    memory = find_device_memory(load_snapshot(path))
    if html:
        _write_page(render_html(title=path.name, memory=memory), html)
    elif json:
        print_json({"capture": str(path), "memory": memory})
    else:
        render_memory(memory, console())


def _write_page(page: str, html: Path) -> None:
    target = html.expanduser().absolute()
    write_file(page.encode(), target)
    say(f"The report is in {target}")


def _show_checks(subject: Subject, html: Path | None, *, json: bool) -> None:
    """Show the last check of a lab without captures, or all of them on a page."""
    assert subject.workspace is not None
    attempts = subject.attempts()
    if html:
        title = subject.workspace.lab.spec.title
        _write_page(render_html(title=title, attempts=attempts), html)
    elif json:
        print_json(
            {
                "capture": None,
                "summary": None,
                "counters": [],
                "verdict": attempts[-1],
                "warning": None,
            }
        )
    else:
        render_verdict(subject.advised(attempts)[-1], console())


def _show(subject: Subject, *, whole: bool, json: bool) -> list[str]:
    """Show the report. Returns the limits of a check that the code as it is misses by it."""
    analysis, attempts = subject.analysed(), subject.attempts()
    warning = subject.mismatch(attempts)
    timeline, summary = analysis.timeline, subject.visible(analysis.summary)
    pairs = compare_kernels(timeline.counters)
    if subject.blind:
        pairs = counters_only(pairs)
    elif subject.remedies_later:
        pairs = counters_without_remedies(pairs)
    if json:
        print_json(
            {
                "capture": str(subject.folder or subject.traces[0]),
                "summary": summary,
                "counters": pairs,
                "verdict": attempts[-1] if attempts else None,
                "warning": warning,
            }
        )
        return []
    if pairs:
        render_counters(pairs, timeline.notes, console(), blind=subject.blind)
    else:
        if subject.name:
            say(f" {subject.name}", style="bold")
        render_summary(summary, console(), whole=whole)
    if subject.workspace and not subject.blind:
        _show_answers(subject.workspace, AnalysedCapture(subject.folder, analysis))
    if warning:
        say(f"\nCapture {warning}", style="yellow")
    if attempts:
        render_last_verdict(subject.advised(attempts)[-1], console())
    workspace, folder = subject.workspace, subject.folder
    if not workspace or not folder:
        return []
    current = code_captured(folder) == workspace.lab.code_hash(workspace.root)
    return missed_limits(workspace, summary) if current else []


def _measured_gain(workspace: Workspace) -> str:
    """Return what the latest check measured of the gain that was predicted, as a sentence; empty
    where none has measured it.
    """
    for attempt in reversed(load_attempts(workspace)):
        prediction = attempt.verdict.prediction
        if prediction and prediction.measured:
            return f"Check {attempt.number} measured {prediction.measured:.2f}x."
    return ""


def _show_answers(workspace: Workspace, analysed: AnalysedCapture) -> None:
    """Show the committed diagnosis, with the learner's figures next to the tool's."""
    diagnosis = _diagnosis(workspace, analysed)
    if diagnosis is None:
        return
    say("\nYour answers (`lab diagnose` shows the questions)", style="bold")
    if diagnosis.about:
        say(f" {diagnosis.about}", style="yellow", hang=1)
    width = max(len(row.id) for row in diagnosis.answers)
    for row in diagnosis.answers:
        sentences = [f"You: {row.answer}", *filter(None, [row.evidence])]
        say(f" {row.id:{width}}  {'. '.join(sentences)}", hang=width + 2)


def _show_stretch(subject: Subject, at: str | None, gap: int, *, json: bool) -> None:
    """Show what every device and thread did in a stretch, or in the `gap`-th longest gap."""
    timeline = subject.timeline()
    devices = [*find_device_uses(timeline)]
    if at:
        stretch = _parse_stretch(at, timeline)
    else:
        gaps = numbered_gaps([use for use, _ in devices])
        if gap > len(gaps):
            numbered = f"this capture's longest gaps have the numbers 1 to {len(gaps)}"
            if len(gaps) == 1:
                numbered = "this capture has only gap 1"
            if not gaps:
                numbered = f"this capture has none of {format_duration(LEAST_LISTED_NS)} or more"
            raise UsageError(
                f"There is no gap {gap}: {numbered}.",
                "`lab report` lists the first of them; `--at START-END` shows any other stretch.",
            )
        _, longest = gaps[gap - 1]
        # A stretch counts from the start of the capture.
        origin_ns = timeline.extent[0]
        stretch = Window(longest.start_ns - origin_ns, longest.end_ns - origin_ns)
    selection = select(timeline, [time for _, time in devices], stretch)
    if json:
        print_json(selection)
    else:
        render_selection(selection, timeline, console())


def _parse_stretch(text: str, timeline: Timeline) -> Window:
    """Return a stretch that begins inside the capture. Raises UsageError for anything else."""
    stretch = parse_stretch(text)
    if stretch is None:
        raise UsageError(
            f"'{text}' is not a stretch of time.",
            "Give its start and end, counted from the start of the capture: `lab report --at"
            " 12.5-14ms`.",
        )
    origin_ns, end_ns = timeline.extent
    if stretch.start >= end_ns - origin_ns:
        raise UsageError(
            f"The capture ends at {format_duration(end_ns - origin_ns)}, before '{text}' begins.",
            "Give a stretch inside it, counted from the start of the capture.",
        )
    return stretch


def _query(
    subject: Subject,
    query_: str | Question,
    change: Change,
    limit_s: float,
    *,
    json: bool,
) -> None:
    """Print the rows of a SELECT, or of a ready question below what it asks and above its notes,
    with kernels by their short names, to fit a terminal; of a step's sums also what they say. With
    a `change`, only what that makes of the sums.
    """
    question = query_ if isinstance(query_, Question) else None
    if isinstance(query_, Question):
        result = query_.answer(subject.timeline(), limit_s=limit_s)
    else:
        result = query(subject.timeline(), query_, limit_s=limit_s)
    if json:
        print_json(result)
        return
    sums = ""
    if question and question.name in ("budget", "step") and result.rows:
        sums = describe_sides(result)
        if change != UNCHANGED:
            parts = find_parts(result, change.without)
            what_if = replayed(subject.timeline())
            alone = what_if.gain(Removal(scopes=tuple(parts)))
            no_waits = what_if.gain(WAITS._replace(scopes=tuple(parts)))
            others_wait = parts and alone and no_waits and no_waits > WORTH_A_WORD * alone
            sums = describe_change(
                result,
                parts,
                change,
                alone if others_wait else None,
                emulated=subject.timeline().emulated,
            )
    if question:
        say(question.asks, style="bold")
        _warn_of_quality(subject.timeline())
    if not result.rows:
        say(f"No rows: {question.without if question else NO_ROWS}.")
        return
    texts = [value for row in result.rows for value in row if isinstance(value, str)]
    if change != UNCHANGED:
        say(sums)
        return
    code = code_of(subject.folder, texts) if question and subject.folder else {}
    render_query(result, console(), question, code)
    notes = question.describe(emulated=subject.timeline().emulated) if question else ""
    paragraphs = [
        (sums, "bold"),
        (derive_most_saved(result) if sums else "", None),
        (notes, "dim"),
        (describe_fixed_prices(texts), None),
        (_allocations(subject, question), None),
    ]
    for number, (text, style) in enumerate(each for each in paragraphs if each[0]):
        say(f"\n{text}" if number else text, style=style)
    if result.cut:
        shown = f"Only the first {len(result.rows):,} rows are shown"
        note(f"{shown}." if question else f"{shown}: add a LIMIT or a condition.")


def _allocations(subject: Subject, question: Question | None) -> str:
    """Return what a budget says of `cudaMalloc`; empty for other questions."""
    of_lines = question is not None and question.name == "budget"
    return describe_allocations(time_of_allocations(subject.timeline())) if of_lines else ""


def _warn_of_quality(timeline: Timeline) -> None:
    """Say, beside what may be piped, why no answer from this capture is reliable."""
    quality = judge_quality(timeline, [use for use, _ in find_device_uses(timeline)])
    for reason in quality.reasons:
        say(f"Unreliable, because {reason}.", style="bold red", err=True)


def full_report(subject: Subject) -> Report:
    """Return all that is known of one capture and of every attempt so far."""
    analysis, workspace, attempts = subject.analysed(), subject.workspace, subject.attempts()
    warning = subject.mismatch(attempts)
    diagnosis = None
    if workspace and not subject.blind:
        diagnosis = _diagnosis(workspace, AnalysedCapture(subject.folder, analysis))
    return Report(
        title=subject.title,
        capture=analysis._replace(summary=subject.visible(analysis.summary)),
        attempts=subject.advised(attempts),
        diagnosis=diagnosis,
        environment=circumstances(subject.folder) if subject.folder else {},
        plateau=read_plateau(subject.folder) if subject.folder else None,
        warning=f"Capture {warning}" if warning else "",
    )


def write_html(subject: Subject, target: Path) -> Path:
    """Write the page about one capture and every attempt so far to `target`, completely or not at
    all; `target`.
    """
    find_export(target.with_suffix(".html")).write(full_report(subject), target)
    return target


def _diagnosis(workspace: Workspace, analysed: AnalysedCapture) -> Diagnosis | None:
    """Return the committed answers, each next to the figure of the capture that they are about;
    None before a diagnosis.

    Only `lab check` says whether they are right: until it has judged a choice, what follows from
    that has no figure beside it. `analysed` is the capture of the report.
    """
    commitments = load_record(workspace).commitments
    if not commitments:
        return None
    answers, name = commitments[-1].answers, commitments[-1].capture
    capture, judged = capture_figures(workspace, name, analysed), judged_answers(workspace, answers)
    followed = {question.follows for question in workspace.lab.spec.questions if question.follows}
    measured = _measured_gain(workspace)

    def beside(question: QuestionSpec) -> str:
        if question.follows and question.follows not in judged:
            return f"{COMES_LATER} `{question.follows}`"
        if question.follows and not judged[question.follows]:
            return f"{RESTS_ON} `{question.follows}`: correct that first"
        if question.id in followed and judged.get(question.id) is False:
            return NOT_NAMED
        if question.from_capture and question.id not in judged:
            return f"{COMES_LATER} `{question.id}`"
        if question.from_capture and not judged[question.id]:
            return FOUND_WRONG
        return describe_reading(
            question,
            answers,
            capture,
            workspace.lab.spec.questions,
            of_memory=workspace.lab.predicts_memory(workspace.info.device),
            most=check_ceiling(workspace.lab, workspace.info.device),
        )

    rows = [
        AnsweredQuestion(
            question.id,
            question.ask,
            format_answer(question, answers[question.id]),
            (question.predicts_gain and measured) or beside(question),
        )
        for question in workspace.lab.spec.questions
        if is_given(answers.get(question.id))
    ]
    about, measured_in = "", None
    if workspace.lab.spec.evidence == "profile":  # else the answers rest on runs
        measured_in = committed_capture(workspace, name)
    if rows and measured_in and analysed.folder and measured_in != analysed.folder:
        figures = ""
        if any(row.evidence and not row.evidence.startswith(NO_FIGURE) for row in rows):
            figures = ", and so are the tool's figures beside it"
        about = (
            f"It is about capture {measured_in.name}{figures}; this report shows"
            f" {analysed.folder.name}."
        )
    return Diagnosis(rows, about) if rows else None


def open_trace(trace: Path, *, port: int = PORT) -> None:
    """Hand the trace to Perfetto in a browser, or explain how to do it by hand.

    Perfetto accepts traces from this `port` alone; tests use another.
    """
    with serve_trace(trace, port=port) as served:
        say(PERMISSION)
        if not webbrowser.open(served.link):
            say("No browser could be opened here.")
        elif served.wait(_OPEN_S):
            say("Perfetto has loaded the trace.")
            return
        else:
            say(f"No browser fetched the trace within {_OPEN_S} seconds.")
    for line in explain_by_hand(trace):
        say(line)
