"""`lab list`: the course and your progress in it."""

from __future__ import annotations

from typing import Any

from bottleneck_lab.catalog import Lab, current_name, load_course, load_labs
from bottleneck_lab.cohort.members.membership import load_membership
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.workspace.progress import LabProgress, load_progress

EXAMPLE = "lab list --json"

_MARKS = {"open": " ", "started": "…", "passed": "✓"}


def command(json: Json = False) -> None:
    """List the course's labs, with your progress and results, and which are of your workshop."""
    done, membership = load_progress().labs, load_membership()
    chosen = [current_name(lab) for lab in membership.joined.labs] if membership else []
    rows = [
        _row(lab, done.get(slug), in_workshop=slug in chosen) for slug, lab in load_labs().items()
    ]
    if json:
        print_json(rows)
        return
    _show(rows)
    if membership and chosen:
        say(f"◆ is a lab of '{membership.joined.cohort_name}'; `lab status` says when it is due.")


def _row(lab: Lab, entry: LabProgress | None, *, in_workshop: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "lab": lab.slug,
        "title": lab.spec.title,
        "stage": lab.stage,
        "minutes": lab.spec.minutes,
        "skills": [],  # they would give the cause away before the diagnosis
        "devices": list(lab.spec.devices),
        "workshop": in_workshop,
        "state": "open",
        "attempts": 0,
        "workspace": None,
        "named": None,
    }
    if entry:
        row |= {
            "skills": lab.spec.skills if entry.diagnosed else [],
            "state": "passed" if entry.passed else "started",
            "attempts": entry.attempts,
            "workspace": entry.workspace,
            "named": entry.named,
        }
    return row


def _show(rows: list[dict[str, Any]]) -> None:
    width = max(len(row["lab"]) for row in rows)
    for stage in load_course().stages:
        labs = [row for row in rows if row["stage"] == stage.name]
        if not labs:
            continue
        passed = sum(row["state"] == "passed" for row in labs)
        title = f"{stage.name}, {passed} of {len(labs)} passed"
        say(
            f"{title}: by the end you can {stage.able}" if stage.able else title,
            style="bold",
            hang=2,
        )
        for row in labs:
            chosen = "◆ " if row["workshop"] else ""
            start = f" {_MARKS[row['state']]} {row['lab']:{width}}  {row['minutes']:3} min  "
            # `say` keeps the indentation of the line itself: 3 columns, 1 where a mark stands.
            hang = len(start) - (3 if row["state"] == "open" else 1)
            say(f"{start}{chosen}{row['title']}", hang=hang)
            about = list(row["skills"])
            if row["named"] and load_labs()[row["lab"]].spec.asks_for_cause:
                about.append("cause named on the first try")
            if about:
                say(f"{'':5}{'; '.join(about)}", style="dim")
    say(
        "\n`lab start LAB` starts one; `lab` on its own shows what to do next; `lab case` draws an"
        " unseen program to diagnose.",
        style="dim",
    )
