"""`lab hint`: the next hint, if the cohort's instructor has opened it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bottleneck_lab.catalog import HintSpec
from bottleneck_lab.cohort.grading.open_hints import unlocked_hints
from bottleneck_lab.commands.evidence import evidence
from bottleneck_lab.commands.ui import Json, here, note, print_json, say
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.hints import load_hints, take_hint
from bottleneck_lab.workspace.progress import note_hint

EXAMPLE = "lab hint --again"


def command(
    again: Annotated[
        bool, typer.Option("--again", help="Show the hints taken so far without taking a new one.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the next hint. Each one gives away a little more."""
    workspace = here()
    hints = workspace.lab.spec.hints
    opened = None if again else unlocked_hints(workspace.lab.slug)
    taken = None if again else take_hint(workspace, opened)
    if taken is not None:
        note_hint(workspace.lab.slug, str(workspace.root))
    indices = (
        [hint.index for hint in load_hints(workspace) if hint.index < len(hints)]
        if taken is None
        else [taken]
    )
    rows = [_row(workspace, index, hints[index]) for index in indices]
    if json:
        print_json(
            {
                "hints": rows,
                "of": len(hints),
                "open": len(hints) if opened is None else min(opened, len(hints)),
            }
        )
        return
    if taken is None and not again:
        say(_why_none(len(rows), len(hints), opened))
    if taken is not None and is_blind(workspace):
        note(
            f"{taken + 1} of {len(hints)} hints taken; this is recorded with your diagnosis. Take"
            " all of them, and the diagnosis no longer counts as yours."
        )
    for row in rows:
        say(f"Hint {row['number']} of {len(hints)}: {row['text']}")


def _why_none(had: int, of: int, opened: int | None) -> str:
    """Why there is no further hint: the lab has no more, or the instructor has not opened the next
    one.
    """
    if opened is not None and opened < of:
        so_far = f"{opened} of {of} hints" if opened else "none of the hints"
        told = " These are the ones you have taken:" if had else ""
        return f"So far your instructor has opened {so_far} for this lab.{told}"
    return (
        "There are no more hints. These are the ones you have taken:"
        if had
        else "This lab has no hints."
    )


def _row(workspace: Workspace, index: int, hint: HintSpec) -> dict[str, Any]:
    return {"number": index + 1, "text": _text(workspace, hint)}


def _text(workspace: Workspace, hint: HintSpec) -> str:
    """The hint; once a diagnosis is committed, with evidence from the learner's capture of the
    shipped code, which would give the cause away before.
    """
    if hint.finding is None:
        return hint.text
    if is_blind(workspace):
        return " ".join(hint.text.replace("{evidence}", "").split())
    found = evidence(workspace, hint.finding)
    return hint.text.replace(
        "{evidence}",
        found or "(make a capture with `lab profile`, and this hint quotes what it shows)",
    )
