"""`lab history`: the attempts so far, with predicted and measured gains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.commands.ui import Json, here, print_json, say
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.grading.calibration import (
    Calibration,
    PastPrediction,
    calibrate,
    describe_calibration,
    describe_point,
)
from bottleneck_lab.grading.diagnosis import format_answer
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.words import describe_standing, headline
from bottleneck_lab.workspace.attempts import Attempt, load_attempts
from bottleneck_lab.workspace.commitments import Commitment, Record, load_record
from bottleneck_lab.workspace.folder import Workspace, is_workspace, open_workspace
from bottleneck_lab.workspace.progress import load_progress
from bottleneck_lab.workspace.siblings import load_drawn

EXAMPLE = "lab history --json"


def command(
    course: Annotated[
        bool,
        typer.Option(
            "--course", help="Your predictions across all labs, next to what was measured."
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="With --course: write an HTML page that plots them."),
    ] = None,
    json: Json = False,
) -> None:
    """List your checks of this lab, with the predicted and the measured gain.

    With --course, your predictions across all labs: how often they are right, and whether you tend
    to promise too much.
    """
    if course:
        _show_course(html, as_json=json)
        return
    if html:
        raise UsageError("--html plots the predictions of the whole course.", "Add --course.")
    workspace = here()
    rows, record = [_row(attempt) for attempt in load_attempts(workspace)], load_record(workspace)
    cases = load_drawn(workspace)
    if json:
        print_json(
            {
                "checks": rows,
                "diagnoses": record.commitments,
                "help": record.help,
                "siblings": cases,
            }
        )
        return
    if rows:
        _show(rows)
    else:
        say("No checks yet. `lab check` runs one.")
    _show_diagnoses(workspace, record)
    for case in cases:
        said = {True: "cause named", False: "cause not named", None: "not answered yet"}[case.named]
        say(f"{case.at[:16].replace('T', ' ')}  unseen case: {said}")


def _show_course(html: Path | None, *, as_json: bool) -> None:
    found = calibrate(
        [
            point
            for slug, entry in load_progress().labs.items()
            for point in _foretold(slug, entry.workspace)
        ]
    )
    if html:
        html.write_text(
            render_html(title="Predicted and measured", calibration=found), encoding="utf-8"
        )
    if as_json:
        print_json(found)
    elif found is None:
        say(
            "No check has both a prediction and a measured gain yet. `lab diagnose` asks for a"
            " prediction where there is a gain."
        )
    else:
        _show_calibration(found)


def _foretold(slug: str, place: str) -> list[PastPrediction]:
    """A lab's prediction and what its last check measured; None if its folder is gone or nothing
    was measured.
    """
    if not is_workspace(Path(place)):
        return []
    try:
        attempts = load_attempts(open_workspace(Path(place)))
    except LabError:
        return []  # from an older version: the other labs' predictions still count
    known = [attempt.verdict.prediction for attempt in attempts if attempt.verdict.prediction]
    measured = [(made.predicted, made.measured) for made in known if made.measured]
    return [PastPrediction(find_lab(slug).slug, *measured[-1])] if measured else []


def _show_calibration(found: Calibration) -> None:
    say(f"{'lab':18}  predicted  measured", style="bold")
    for point in found.points:
        say(
            f"{point.lab:18}  {point.predicted:8.2f}×  {point.measured:7.2f}× "
            f" {describe_point(point)}",
            hang=3,
        )
    say(f"\n{describe_calibration(found)}")


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


def _show_diagnoses(workspace: Workspace, record: Record) -> None:
    """The committed diagnoses: the first counts, the others are corrections."""
    for number, made in enumerate(record.commitments):
        title = f"correction {number}" if number else "diagnosis"
        answers = ", ".join(
            f"{question.id} {format_answer(question, made.answers[question.id])}"
            for question in workspace.lab.spec.questions
            if question.id in made.answers
        )
        say(f"{made.at[:16].replace('T', ' ')}  {title}, {_help(made)}: {answers}", hang=2)


def _help(made: Commitment) -> str:
    told = {
        "": "",
        "hints": " (all)",
        "revealed": ", causes revealed",
        "solution": ", solution seen",
    }[made.told]
    return f"{made.hints} hint{'s' * (made.hints != 1)}{told}"


_STYLES = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "ERROR": "magenta"}


def _show(rows: list[dict[str, Any]]) -> None:
    """One line per check; on a narrow terminal the text at the end wraps below."""
    say(f"{'#':>3}  {'when':16}  {'outcome':12}  predicted  measured", style="bold")
    for row in rows:
        when = row["at"][:16].replace("T", " ")
        predicted, measured = (
            f"{row[key]:.2f}×" if row[key] else "–" for key in ("predicted", "measured")
        )
        start = f"{row['number']:>3}  {when:16}  {row['outcome']:12}  {predicted:>9}  {measured:>8}"
        standing = describe_standing(row["diagnosis"])
        say(
            f"{start}  {row['headline']}{f'; {standing}' if standing else ''}",
            style=_STYLES[row["outcome"]],
            hang=3,
        )
