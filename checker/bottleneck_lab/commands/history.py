"""`lab history`: the attempts so far, the gain predicted beside the gain measured."""

from __future__ import annotations

from typing import Any

from bottleneck_lab.commands.ui import Json, here, print_json, say
from bottleneck_lab.report.words import headline
from bottleneck_lab.workspace.attempts import Attempt, load_attempts

EXAMPLE = "lab history --json"


def command(json: Json = False) -> None:
    """List your checks of this lab, with predicted beside measured."""
    rows = [_row(attempt) for attempt in load_attempts(here())]
    if json:
        print_json(rows)
    elif rows:
        _show(rows)
    else:
        say("There are no checks yet: `lab check` makes one.")


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
    }


_STYLES = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "ERROR": "magenta"}


def _show(rows: list[dict[str, Any]]) -> None:
    """One line a check; on a narrow terminal the words at its end go below."""
    say(f"{'#':>3}  {'when':16}  {'outcome':12}  predicted  measured", style="bold")
    for row in rows:
        when = row["at"][:16].replace("T", " ")
        predicted, measured = (f"{row[key]:.2f}×" if row[key] else "–" for key in ("predicted", "measured"))
        start = f"{row['number']:>3}  {when:16}  {row['outcome']:12}  {predicted:>9}  {measured:>8}"
        say(f"{start}  {row['headline']}", style=_STYLES[row["outcome"]], hang=3)
