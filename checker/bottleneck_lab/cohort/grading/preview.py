"""A change's effect on grades, by learner and by lab, before it is saved."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from bottleneck_lab.cohort.grading.grades import Grade, load_grades, to_points
from bottleneck_lab.cohort.view.verdicts import VerdictReader


class Change(msgspec.Struct, frozen=True):
    """One learner's total before and after, and both by lab where they differ.

    None stands for points that don't count: the lab is not part of the workshop, or the learner is
    removed or merged into another. In `overridden` labs an override is in force.
    """

    handle: str
    name: str
    before: float
    after: float
    labs: dict[str, tuple[float | None, float | None]]
    overridden: list[str] = []


class Preview(msgspec.Struct, frozen=True):
    """Whose points change, of how many `learners`; `labs` says in which, and for how many there."""

    learners: int
    labs: dict[str, int]
    changes: list[Change]

    @property
    def digest(self) -> str:
        """Return a name for exactly these changes: a form sends it back when they were shown."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def compare(before: list[Grade], after: list[Grade]) -> Preview:
    """Return how grades differ. A learner who is missing on one side has no points there."""
    pairs: dict[str, dict[str, list[float | None]]] = {}
    overridden = {
        (grade.student.handle, grade.lab) for grade in [*before, *after] if grade.override
    }
    names, order = {}, list(dict.fromkeys(grade.lab for grade in [*before, *after]))
    for at, grades in enumerate((before, after)):
        for grade in grades:
            names[grade.student.handle] = grade.student.name
            labs = pairs.setdefault(grade.student.handle, {})
            labs.setdefault(grade.lab, [None, None])[at] = grade.score
    changes = []
    for handle, labs in pairs.items():
        # A lab without points that comes or goes changes nothing.
        differing = {
            lab: (old, new) for lab, (old, new) in labs.items() if (old or 0.0) != (new or 0.0)
        }
        if differing:
            old_total, new_total = (
                to_points(sum(both[at] or 0.0 for both in labs.values())) for at in (0, 1)
            )
            by_hand = [lab for lab in differing if (handle, lab) in overridden]
            changes.append(Change(handle, names[handle], old_total, new_total, differing, by_hand))
    counts = Counter(lab for change in changes for lab in change.labs)
    return Preview(len(pairs), {lab: counts[lab] for lab in order if counts[lab]}, changes)


@dataclass
class Attempt:
    """A change that was made, and what it does to grades; taken back unless `keep` is set."""

    preview: Preview
    keep: bool = False


@contextmanager
def trying(
    connection: Connection, judge: VerdictReader, change: Callable[[], None]
) -> Iterator[Attempt]:
    """Make a change for the length of the block, which may keep it.

    `connection` is a transaction for writing: what was shown is then what is kept.
    """
    before = load_grades(connection, judge)
    attempt = connection.begin_nested()
    change()
    trial = Attempt(compare(before, load_grades(connection, judge)))
    yield trial
    if trial.keep:
        attempt.commit()
    else:
        attempt.rollback()
