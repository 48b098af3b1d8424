"""A user's progress over all labs: one small file next to the data sets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bottleneck_lab.catalog import current_name
from bottleneck_lab.workspace.atomic import TEMPORARY, clear, explained, write_bytes
from bottleneck_lab.workspace.folder import now, read_json, to_json
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.lock import locked


class LabProgress(msgspec.Struct, frozen=True):
    """How far a user is with one lab. Times are ISO 8601 in UTC.

    `workspace` is the folder of the latest start. `passed` is a pass of the user's own work.
    `passed_in` is the folder of that pass. `named`: the first diagnosis named the cause.
    """

    workspace: str
    started: str
    attempts: int = 0
    outcome: str | None = None
    passed: str | None = None
    hints: int = 0
    solution_seen: str | None = None
    diagnosed: str | None = None
    named: bool | None = None
    passed_in: str | None = None


class Progress(msgspec.Struct, frozen=True):
    """Every lab that a user has started, by slug."""

    labs: dict[str, LabProgress] = {}
    schema: int = 1


def load_progress() -> Progress:
    """Return the user's progress; empty for a new user.

    What was recorded under an older name of a lab counts for the lab. Raises MachineError for a
    file that this version did not write.
    """
    file = home() / "progress.json"
    if not file.exists():
        return Progress()
    recorded = read_json(file, Progress)
    labs: dict[str, LabProgress] = {}
    for name, entry in recorded.labs.items():
        slug = current_name(name)
        labs[slug] = _merge(labs[slug], entry) if slug in labs else entry
    return msgspec.structs.replace(recorded, labs=labs)


def _merge(one: LabProgress, other: LabProgress) -> LabProgress:
    """Add up two entries of the same lab, which was renamed between them."""
    earlier, later = sorted((one, other), key=lambda entry: entry.started)
    return LabProgress(
        workspace=later.workspace,
        started=earlier.started,
        attempts=earlier.attempts + later.attempts,
        outcome=later.outcome or earlier.outcome,
        passed=earlier.passed or later.passed,
        hints=earlier.hints + later.hints,
        solution_seen=earlier.solution_seen or later.solution_seen,
        diagnosed=earlier.diagnosed or later.diagnosed,
        named=later.named if earlier.named is None else earlier.named,
        passed_in=earlier.passed_in or later.passed_in,
    )


def _update(slug: str, change: Callable[[LabProgress], LabProgress], workspace: str) -> None:
    folder = home()
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Read under the lock: two shells may check two labs at the same time.
    with locked(folder / "progress.lock", "lab"):
        clear(folder, TEMPORARY)
        progress = load_progress()
        entry = change(progress.labs.get(slug) or LabProgress(workspace=workspace, started=now()))
        updated = msgspec.structs.replace(progress, labs={**progress.labs, slug: entry})
        write_bytes(folder / "progress.json", to_json(updated))


def note_start(slug: str, workspace: str) -> None:
    """Record that a lab was started (again) in the folder `workspace`."""
    _update(slug, lambda entry: msgspec.structs.replace(entry, workspace=workspace), workspace)


def note_attempt(
    slug: str, workspace: str, outcome: str, *, named: bool | None = None, copied: bool = False
) -> None:
    """Record one more check and its outcome; a lab once passed stays passed.

    Work that was `copied` from the solution does not pass.
    """

    def change(entry: LabProgress) -> LabProgress:
        passed, passed_in = entry.passed, entry.passed_in
        if passed is None and outcome == "PASS" and not copied:
            passed, passed_in = now(), workspace
        return msgspec.structs.replace(
            entry,
            attempts=entry.attempts + 1,
            outcome=outcome,
            passed=passed,
            passed_in=passed_in,
            named=named if entry.named is None else entry.named,
        )

    _update(slug, change, workspace)


def note_diagnosis(slug: str, workspace: str) -> None:
    """Record when a diagnosis was first committed."""

    def change(entry: LabProgress) -> LabProgress:
        return msgspec.structs.replace(entry, diagnosed=entry.diagnosed or now())

    _update(slug, change, workspace)


def note_hint(slug: str, workspace: str) -> None:
    """Record one more hint taken."""
    _update(slug, lambda entry: msgspec.structs.replace(entry, hints=entry.hints + 1), workspace)


def note_solution(slug: str, workspace: str) -> None:
    """Record when the reference solution was first seen."""

    def change(entry: LabProgress) -> LabProgress:
        return msgspec.structs.replace(entry, solution_seen=entry.solution_seen or now())

    _update(slug, change, workspace)
