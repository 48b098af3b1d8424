"""`lab history`: the attempts so far, the gain predicted beside the gain measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bottleneck_lab.commands.ui import Json

if TYPE_CHECKING:
    from bottleneck_lab.workspace.attempts import Attempt

EXAMPLE = "lab history --json"


def command(json: Json = False) -> None:
    """List your checks of this lab, with predicted beside measured."""
    from bottleneck_lab.commands.ui import here, print_json, say
    from bottleneck_lab.workspace.attempts import load_attempts

    rows = [_row(attempt) for attempt in load_attempts(here())]
    if json:
        print_json(rows)
    elif rows:
        _show(rows)
    else:
        say("There are no checks yet: `lab check` makes one.")


def _row(attempt: Attempt) -> dict[str, Any]:
    from bottleneck_lab.report.words import headline

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


def _show(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from bottleneck_lab.commands.ui import console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in (
        ("#", True),
        ("when", False),
        ("outcome", False),
        ("predicted", True),
        ("measured", True),
        ("what", False),
    ):
        table.add_column(name, justify="right" if right else "left", no_wrap=name in ("#", "outcome"))
    styles = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "ERROR": "magenta"}
    for row in rows:
        when = row["at"][:16].replace("T", " ")
        gains = [f"{row[key]:.2f}×" if row[key] else "–" for key in ("predicted", "measured")]
        outcome = Text(row["outcome"], style=styles[row["outcome"]])
        table.add_row(str(row["number"]), when, outcome, *gains, Text(row["headline"]))
    console().print(table)
