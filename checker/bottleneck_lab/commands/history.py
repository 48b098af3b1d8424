"""`lab history`: the attempts so far, with predicted and measured gains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bottleneck_lab.catalog import criterion_label
from bottleneck_lab.commands.ui import OUTCOME_STYLES, Json, here, print_json, say
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.grading.answers import format_answer
from bottleneck_lab.grading.calibration import (
    PastPrediction,
    calibrate,
    describe_calibration,
    describe_factor,
)
from bottleneck_lab.grading.verdict import CriterionResult, Verdict
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.verdict_words import (
    describe_open_gain,
    describe_standing,
    format_measured,
    headline,
    main_criteria,
)
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.attempts import Attempt, load_attempts
from bottleneck_lab.workspace.cases import find_case, load_drawn
from bottleneck_lab.workspace.commitments import Record, load_record
from bottleneck_lab.workspace.folder import Workspace, is_workspace, open_workspace
from bottleneck_lab.workspace.hints import load_hints
from bottleneck_lab.workspace.progress import load_progress

EXAMPLE = "lab history --json"
DEFAULT_PAGE = "history.html"


def command(
    course: Annotated[
        bool,
        typer.Option(
            "--course", help="Your predictions across all labs, next to what was measured."
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help=(
                "With --course: write an HTML page that plots them, to this file or to"
                f" {DEFAULT_PAGE}."
            ),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List your checks of this lab, with their figures, your diagnoses and the help you took.

    With --course, your predictions across all labs: how often they are right, and whether you tend
    to promise too much.
    """
    if course:
        _show_course(html, as_json=json)
        return
    if html:
        raise UsageError("--html plots the predictions of the whole course.", "Add --course.")
    workspace = here()
    record = load_record(workspace)
    if json:
        print_json(
            {
                "checks": [_row(attempt) for attempt in load_attempts(workspace)],
                "diagnoses": record.commitments,
                "help": record.help,
            }
        )
        return
    _show(workspace, record)


def _show_course(html: Path | None, *, as_json: bool) -> None:
    points = []
    for slug, entry in load_progress().labs.items():
        # What a lab was passed with stands, whatever is tried in another folder later.
        roots = [Path(root) for root in (entry.passed_in, entry.workspace) if root]
        point = next(filter(None, (_last_prediction(slug, root) for root in roots)), None)
        if point:
            points.append(point)
    calibration = calibrate(points)
    if html:
        html.write_text(
            render_html(title="Predicted and measured", calibration=calibration), encoding="utf-8"
        )
    if as_json:
        print_json(calibration)
        return
    if calibration is None:
        say(
            "No check has both a prediction and a measured gain yet. `lab diagnose` asks for a"
            " prediction where there is a gain."
        )
        return
    width = max(len(point.lab) for point in calibration.points)
    say(f"{'lab':{width}}  predicted  measured", style="bold")
    for point in calibration.points:
        figures = f"{point.predicted:8.2f}x  {point.measured:7.2f}x"
        say(f"{point.lab:{width}}  {figures}  {describe_factor(point.factor)}", hang=3)
    say(f"\n{describe_calibration(calibration)}")
    if html:
        say(f"The plot is in {html}")


def _last_prediction(slug: str, root: Path) -> PastPrediction | None:
    """Return a lab's last prediction with a measured gain: of its passes, where it has any.

    None if there is none, or the lab's folder is gone.
    """
    if not is_workspace(root):
        return None
    try:
        attempts = load_attempts(open_workspace(root))
    except LabError:
        return None  # from an older version: the other labs' predictions still count
    measured = [
        (attempt.verdict.outcome == "PASS", PastPrediction(slug, each.predicted, each.measured))
        for attempt in attempts
        if (each := attempt.verdict.prediction) and each.measured
    ]
    passes = [point for passed, point in measured if passed]
    chosen = passes or [point for _, point in measured]
    return chosen[-1] if chosen else None


def _row(attempt: Attempt) -> dict[str, Any]:
    verdict = attempt.verdict
    return {
        "number": attempt.number,
        "at": verdict.started_at,
        "device": verdict.device,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "headline": headline(verdict),
        "summary": verdict.summary,
        "predicted": verdict.prediction.predicted if verdict.prediction else None,
        "measured": verdict.prediction.measured if verdict.prediction else None,
        "submission": str(attempt.submission),
        "diagnosis": verdict.diagnosis,
    }


_HELP = {
    "": "",
    "hints": " (all)",
    "revealed": ", causes revealed",
    "solution": ", solution seen",
}
"""How a diagnosis was helped, by what gave the cause away."""


_NAMED = {None: "not answered yet", True: "cause named", False: "cause not named"}
"""How a case stands, by whether its cause was named."""


_Line = tuple[str, str, int, str | None]
"""A line with its time: the text, its hanging indent, its style."""


def _show(workspace: Workspace, record: Record) -> None:
    """Print whatever was recorded of the learner's way through the lab, in the order of time."""
    attempts = load_attempts(workspace)
    events = [(hint.at, f"hint {hint.index + 1}") for hint in load_hints(workspace)]
    if record.help.revealed:
        events.append((record.help.revealed, "causes revealed"))
    if record.help.solution:
        events.append((record.help.solution, "looked at the solution"))
    events += _diagnoses(workspace, record)
    for drawn in load_drawn():
        # Cases are no lab's: those that were drawn in this folder are listed.
        if Path(drawn.folder).is_relative_to(workspace.root):
            named = drawn.past.called == drawn.past.cause if drawn.past else None
            how = "put away" if drawn.skipped else _NAMED[named]
            events.append((drawn.at, f"lab case, {find_case(drawn.name).title}: {how}"))
    lines: list[_Line] = [(at, f"     {_when(at)}  {event}", 18, None) for at, event in events]
    # After the rest: a check commits what stands in diagnosis.toml in the second that it begins in.
    lines += _checks(attempts)
    if not attempts:
        say("No checks yet. `lab` shows what to do next.")
    # Both endings of UTC are in use, `Z` and `+00:00`.
    for _, line, hang, style in sorted(lines, key=lambda each: each[0][:19]):
        say(line, style=style, hang=hang)


def _when(at: str) -> str:
    return at[:16].replace("T", " ")


def _checks(attempts: list[Attempt]) -> list[_Line]:
    """Return a line for each check."""
    lines: list[_Line] = []
    standing = ""
    main = main_criteria([attempt.verdict for attempt in attempts])
    for number, verdict in ((attempt.number, attempt.verdict) for attempt in attempts):
        parts = [headline(verdict), *_wrong_results(verdict)]
        for each in verdict.criteria:
            if each.id in main and each.value is not None and not _is_gain(verdict, each):
                label = criterion_label(verdict.lab, verdict.device, each.id)
                parts.append(f"{label} {format_measured(each)}")
        if verdict.prediction:
            measured = verdict.prediction.measured
            gain = f"measured {measured:.2f}x" if measured else describe_open_gain(verdict)
            predicted, corrected = verdict.prediction.predicted, verdict.prediction.corrected
            then = f" at first, then {corrected:.2f}x" if corrected else ""
            parts.append(f"gain predicted {predicted:.2f}x{then}, {gain}")
        before = standing
        standing = describe_standing(verdict)
        if standing != before:
            parts.append(standing)
        start = f"{number:>3}  {_when(verdict.started_at)}  "
        text = f"{start}check: {verdict.outcome}, {'; '.join(filter(None, parts))}"
        style = OUTCOME_STYLES[verdict.outcome]
        lines.append((verdict.started_at, text, len(start.lstrip()), style))
    return lines


def _is_gain(verdict: Verdict, result: CriterionResult) -> bool:
    """Return True if a result's figure is the gain that stands beside its prediction."""
    measured = verdict.prediction.measured if verdict.prediction else None
    if measured is None or result.value is None or result.unit != "x":
        return False
    return f"{result.value:.2f}" == f"{measured:.2f}"


def _wrong_results(verdict: Verdict) -> list[str]:
    """Return what was wrong with each result that is right or wrong, as a clause: its sentence goes
    on after the criterion's own text.
    """
    faults = [
        each.sentence.partition(". ")[2].rstrip(".")
        for each in verdict.criteria
        if each.kind == "correctness" and each.holds is False and each.value is None
    ]
    # `NaN` and the like keep their capitals.
    return [
        fault[:1].lower() + fault[1:] if fault.split()[0][1:].islower() else fault
        for fault in faults
    ]


def _diagnoses(workspace: Workspace, record: Record) -> list[tuple[str, str]]:
    """Return the committed diagnoses with their times: the first counts, the others correct it."""
    events = []
    for number, commitment in enumerate(record.commitments):
        title = f"correction {number}" if number else "diagnosis"
        hints = "before any hint"
        if commitment.hints:
            hints = f"after {counted(commitment.hints, 'hint')}"
        # Of a choice, what stands before its explanation
        answers = ", ".join(
            f"{question.id}"
            f" {format_answer(question, commitment.answers[question.id]).partition(': ')[0]}"
            for question in workspace.lab.spec.questions
            if question.id in commitment.answers
        )
        events.append((commitment.at, f"{title}, {hints}{_HELP[commitment.told]}: {answers}"))
    return events
