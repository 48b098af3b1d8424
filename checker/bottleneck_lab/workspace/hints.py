"""The hints that a learner has taken."""

from __future__ import annotations

import msgspec

from bottleneck_lab.errors import MachineError
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import capture_of, lacks_parts
from bottleneck_lab.workspace.folder import Workspace, now, read_json


class HintTaken(msgspec.Struct, frozen=True):
    """A hint by its place in the lab's list, from 0, and when it was first shown."""

    index: int
    at: str


def load_hints(workspace: Workspace) -> list[HintTaken]:
    """Return the hints taken so far, in the order they were taken."""
    file = workspace.state / "hints.json"
    return read_json(file, list[HintTaken]) if file.exists() else []


def next_hint(workspace: Workspace) -> int:
    """Return the index of the hint that comes next; the number of hints where none is left.

    A hint is skipped once the last check found all right that it leads to; of answers that the last
    one could not judge, the one before it counts. The latest capture of the code as it is says so
    of the capture itself: a check beside other programs may not.
    """
    hints, attempts = workspace.lab.spec.hints, load_attempts(workspace)
    criteria = attempts[-1].verdict.criteria if attempts else []
    answers = {
        each.id: each.holds
        for attempt in attempts
        for each in attempt.verdict.criteria
        if each.kind == "diagnosis" and each.holds is not None
    }
    right = {each.id for each in criteria if each.holds} | {id_ for id_ in answers if answers[id_]}
    wrong = {each.id for each in criteria if each.holds is False}
    if _is_captured_whole(workspace):
        right |= {"genuine-capture"} - wrong
    after = 1 + max((hint.index for hint in load_hints(workspace)), default=-1)
    for index in range(after, len(hints)):
        until = hints[index].until
        if not until or not right.issuperset(until):
            return index
    return len(hints)


def _is_captured_whole(workspace: Workspace) -> bool:
    """Return True if torch.profiler captured the code as it is, and the capture lacks nothing."""
    try:
        captured = capture_of(workspace, workspace.lab.code_hash(workspace.root))
        return (
            captured is not None and captured.name.endswith("-torch") and not lacks_parts(captured)
        )
    except MachineError:  # a capture that cannot be read shows nothing
        return False


def take_hint(workspace: Workspace, opened: int | None = None) -> int | None:
    """Record that the next hint has been taken, and return its index.

    None when the lab has no further one, or no more than `opened` may be taken.
    """
    with workspace.writing("lab hint"):
        index = next_hint(workspace)
        available = len(workspace.lab.spec.hints)
        if opened is not None:
            available = min(available, opened)
        if index >= available:
            return None
        taken = [*load_hints(workspace), HintTaken(index, now())]
        workspace.write_state("hints.json", taken)
    return index
