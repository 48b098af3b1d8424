"""`lab hint`: the next hint, keyed to what the learner's own capture shows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bottleneck_lab.catalog import HintSpec
from bottleneck_lab.commands.evidence import evidence
from bottleneck_lab.commands.ui import Json, here, note, print_json, say
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.hints import load_hints, take_hint
from bottleneck_lab.workspace.progress import note_hint

EXAMPLE = "lab hint --again"


def command(
    again: Annotated[bool, typer.Option("--again", help="Show the hints taken so far, and take no new one.")] = False,
    json: Json = False,
) -> None:
    """Take the next hint. Each says a little more than the one before."""
    workspace = here()
    hints = workspace.lab.spec.hints
    taken = None if again else take_hint(workspace)
    if taken is not None:
        note_hint(workspace.lab.slug, str(workspace.root))
    indices = [hint.index for hint in load_hints(workspace) if hint.index < len(hints)] if taken is None else [taken]
    rows = [_row(workspace, index, hints[index]) for index in indices]
    if json:
        print_json({"hints": rows, "of": len(hints)})
        return
    if taken is None and not again:
        say("There are no further hints. These are the ones you have had:" if rows else "This lab has no hints.")
    if taken is not None and is_blind(workspace):
        note(
            f"{taken + 1} of {len(hints)} hints taken: recorded beside your diagnosis. With all of them, it no longer counts as yours."
        )
    for row in rows:
        say(f"Hint {row['number']} of {len(hints)}: {row['text']}")


def _row(workspace: Workspace, index: int, hint: HintSpec) -> dict[str, Any]:
    return {"number": index + 1, "text": _text(workspace, hint)}


def _text(workspace: Workspace, hint: HintSpec) -> str:
    """The hint with the evidence that the learner's latest capture holds for it."""
    if hint.finding is None:
        return hint.text
    found = evidence(workspace, hint.finding)
    return hint.text.replace(
        "{evidence}", found or "(make a capture with `lab profile`, and this hint shows what is in it)"
    )
