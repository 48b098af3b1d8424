"""`lab list`: the course and your progress in it."""

from __future__ import annotations

from typing import Any

from bottleneck_lab.catalog import Lab, load_course, load_labs
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.workspace.progress import LabProgress, load_progress

EXAMPLE = "lab list --json"


def command(json: Json = False) -> None:
    """List the course's labs, with your progress and results."""
    done = load_progress().labs
    rows = [_row(lab, done.get(slug)) for slug, lab in load_labs().items()]
    if json:
        print_json(rows)
    else:
        _show(rows, {stage.name: stage.able for stage in load_course().stages})


def _state(entry: LabProgress | None) -> str:
    if entry is None:
        return "open"
    return "passed" if entry.passed else "started"


def _row(lab: Lab, entry: LabProgress | None) -> dict[str, Any]:
    return {
        "lab": lab.slug,
        "title": lab.spec.title,
        "stage": lab.stage,
        "minutes": lab.spec.minutes,
        "skills": lab.spec.skills if entry and entry.diagnosed else [],
        "devices": list(lab.spec.devices),
        "state": _state(entry),
        "attempts": entry.attempts if entry else 0,
        "workspace": entry.workspace if entry else None,
        "named": entry.named if entry else None,
    }


def _stage(name: str, rows: list[dict[str, Any]], able: str) -> str:
    """A stage's name, the learner's progress in it, and what it teaches."""
    passed = sum(row["stage"] == name and row["state"] == "passed" for row in rows)
    told = f"{name}, {passed} of {sum(row['stage'] == name for row in rows)} passed"
    return f"{told}: by the end you can {able}" if able else told


def _show(rows: list[dict[str, Any]], able: dict[str, str]) -> None:
    stage = None
    width = max(len(row["lab"]) for row in rows)
    marks = {"open": " ", "started": "…", "passed": "✓"}
    for row in rows:
        if row["stage"] != stage:
            stage = row["stage"]
            say(_stage(stage, rows, able.get(stage, "")), style="bold", hang=2)
        start = f" {marks[row['state']]} {row['lab']:{width}}  {row['minutes']:3} min  "
        say(
            f"{start}{row['title']}",
            hang=len(start) - 1 if row["state"] != "open" else len(start) - 3,
        )
        about = [*row["skills"], *(["you named the cause"] if row["named"] else [])]
        if about:
            say(f"{'':5}{'; '.join(about)}", style="dim")
    say("\n`lab start LAB` starts one; `lab` on its own shows what to do next.", style="dim")
