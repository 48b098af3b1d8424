"""`lab hint`: the next hint, if the cohort's instructor has opened it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bottleneck_lab.catalog import HintSpec
from bottleneck_lab.cohort.grading.open_help import open_help
from bottleneck_lab.cohort.moments import local_iso
from bottleneck_lab.cohort.protocol import OpenHelp
from bottleneck_lab.commands.asking import confirm
from bottleneck_lab.commands.ui import Json, here, note, print_json, say
from bottleneck_lab.course.captures import evidence
from bottleneck_lab.course.solution_gains import describe_nothing_left
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.attempts import latest_pass, load_attempts
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.hints import load_hints, next_hint, take_hint
from bottleneck_lab.workspace.progress import note_hint

EXAMPLE = "lab hint --again"


def command(
    again: Annotated[
        bool, typer.Option("--again", help="Show the hints taken so far without taking a new one.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the next hint. Each one gives away a little more.

    Hints about what the last check, or your latest capture, found right are skipped. There is none
    once a check finds work as fast as the fastest script known.

    Exit code 2 if your instructor has not opened it yet, as for `lab solution`.
    """
    workspace = here()
    hints = workspace.lab.spec.hints
    allowed = OpenHelp() if again else open_help(workspace.lab.slug)
    opened = allowed.hints
    available = len(hints) if opened is None else min(opened, len(hints))
    if not again and (why := _nothing_left(workspace)):
        _print_none(why, {"hints": [], "of": len(hints), "open": available}, as_json=json)
        return
    earlier = {hint.index for hint in load_hints(workspace)}
    if not again and not json and next_hint(workspace) == _last_open(workspace, opened):
        _confirm_last()
    taken = None if again else take_hint(workspace, opened)
    if taken is None:
        indices = [hint.index for hint in load_hints(workspace) if hint.index < len(hints)]
    else:
        note_hint(workspace.lab.slug, str(workspace.root))
        indices = [taken]
    rows = [{"number": index + 1, "text": _text(workspace, hints[index])} for index in indices]
    closed = taken is None and not again and opened is not None and opened < len(hints)
    if json:
        print_json({"hints": rows, "of": len(hints), "open": available})
    else:
        if again and not rows:
            say("You have taken no hint yet; `lab hint` takes one.")
        if taken is None and not again:
            say(_why_none(len(rows), len(hints), allowed))
        if taken is not None:
            _print_notes(workspace, taken, skipped=taken - 1 - max(earlier, default=-1))
        for row in rows:
            say(f"Hint {row['number']} of {len(hints)}: {row['text']}")
    if closed:
        raise typer.Exit(ExitCode.USAGE)


def _print_notes(workspace: Workspace, taken: int, *, skipped: int) -> None:
    """Say what a hint that is taken costs, and how many before it were skipped."""
    if latest_pass(load_attempts(workspace)) is not None:
        note("You have passed this lab: a hint may still help to go further.")
    if is_blind(workspace):
        note(_describe_cost(taken + 1, len(workspace.lab.spec.hints)))
    if skipped:
        note(f"{counted(skipped, 'hint')} skipped: about what is right already.")


def _nothing_left(workspace: Workspace) -> str:
    """Return why no hint can bring anything more, by the last check; empty where one can."""
    attempts = load_attempts(workspace)
    return describe_nothing_left(workspace.lab, attempts[-1].verdict) if attempts else ""


def _print_none(why: str, content: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(content)
    else:
        say(f"No hint: nothing is left to gain, as far as we know. {why}")


def _last_open(workspace: Workspace, opened: int | None) -> int | None:
    """Return the index of the lab's last hint where it costs the learner the diagnosis; None where
    nothing is lost any more, or the instructor has not opened it.
    """
    last = len(workspace.lab.spec.hints) - 1
    return last if is_blind(workspace) and (opened is None or last < opened) else None


def _confirm_last() -> None:
    """Ask at a terminal before the hint that costs the diagnosis; elsewhere the hint before it has
    warned.
    """
    if sys.stdin.isatty():
        question = "This is the last hint: with it, the diagnosis no longer counts as yours. Go on?"
        confirm(question, "lab hint", yes=False)


def _describe_cost(taken: int, available: int) -> str:
    """Say what the hints taken cost, and what the next one will."""
    if taken == available:
        return f"All {available} hints taken: the diagnosis no longer counts as yours."
    cost = f"{taken} of {available} hints taken; this is recorded with your diagnosis."
    if taken == available - 1:
        return f"{cost} With the last one, the diagnosis no longer counts as yours."
    return f"{cost} Take all of them, and the diagnosis no longer counts as yours."


def _why_none(taken: int, available: int, allowed: OpenHelp) -> str:
    """Explain that the lab has no further hint, or that the instructor has not opened the next."""
    opened = allowed.hints
    if allowed.hints_from is not None:
        at = local_iso(allowed.hints_from, allowed.timezone)
        return f"Your instructor opens the hints for this lab at {at}."
    if opened is not None and opened < available:
        so_far = f"{opened} of {available} hints" if opened else "none of the hints"
        sentence = f"So far your instructor has opened {so_far} for this lab."
        return f"{sentence} These are the ones you have taken:" if taken else sentence
    if not available:
        return "This lab has no hints."
    left = "There are no more hints."
    if taken < available:
        left = f"The {'other ' * bool(taken)}hints are about what is right already."
    return f"{left} These are the ones you have taken:" if taken else left


def _text(workspace: Workspace, hint: HintSpec) -> str:
    """Return a hint's text.

    Once a diagnosis is committed it quotes the learner's capture of the shipped code, which would
    give the cause away before.
    """
    if hint.finding is None:
        return hint.text
    if is_blind(workspace):
        return " ".join(hint.text.replace("{evidence}", "").split())
    quoted = evidence(workspace, hint.finding)
    if quoted is None:
        quoted = "(make a capture with `lab profile`, and this hint quotes what it shows)"
    return hint.text.replace("{evidence}", quoted)
