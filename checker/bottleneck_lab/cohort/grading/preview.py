"""A change's effect on grades, by learner and by lab, before it is saved."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args

import msgspec
from sqlalchemy import Connection

from bottleneck_lab.catalog import CriterionKind
from bottleneck_lab.cohort.grading.grades import (
    Grade,
    GradingRules,
    differing_ids,
    load_grades,
    load_grading,
    to_points,
)
from bottleneck_lab.cohort.members.people import told_apart
from bottleneck_lab.cohort.moments import spoken
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.view.verdicts import VerdictReader


class Change(msgspec.Struct, frozen=True):
    """One learner's total before and after, and both by lab where they differ.

    None stands for points that don't count: the lab is not part of the workshop, or the learner is
    removed or merged into another. In `overridden` labs an override is in force, before and after;
    in `moved` ones only before or only after.
    """

    handle: str
    name: str
    before: float
    after: float
    labs: dict[str, tuple[float | None, float | None]]
    overridden: list[str] = []
    moved: list[str] = []


class Setting(msgspec.Struct, frozen=True):
    """A setting that decides points, before and after, as pages show it; of all labs if `lab` is
    empty.
    """

    lab: str
    name: str
    before: str
    after: str


class Preview(msgspec.Struct, frozen=True):
    """Whose points change, of how many `learners`; `labs` says in which, and for how many there.

    `settings` are those that change and decide points in these labs. `ids` says which ids of merged
    learners exports will no longer give.
    """

    learners: int
    labs: dict[str, int]
    changes: list[Change]
    settings: list[Setting] = []
    ids: list[str] = []

    @property
    def asks(self) -> bool:
        """Return True if there is anything that somebody has to see before it is saved."""
        return bool(self.changes or self.ids)

    @property
    def digest(self) -> str:
        """Return a name for exactly these changes: a form sends it back when they were shown."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def compare(before: list[Grade], after: list[Grade], settings: Sequence[Setting] = ()) -> Preview:
    """Return how grades differ. A learner who is missing on one side has no points there.

    Of `settings`, those of labs in which nobody's points change are left out.
    """
    pairs: dict[str, dict[str, list[float | None]]] = {}
    old_overrides, new_overrides = (
        {(grade.student.handle, grade.lab) for grade in grades if grade.override}
        for grades in (before, after)
    )
    students, order = {}, list(dict.fromkeys(grade.lab for grade in [*before, *after]))
    for at, grades in enumerate((before, after)):
        for grade in grades:
            students[grade.student.handle] = grade.student
            labs = pairs.setdefault(grade.student.handle, {})
            labs.setdefault(grade.lab, [None, None])[at] = grade.score
    changes, names = [], told_apart(students.values())
    for handle, labs in pairs.items():
        # A lab without points that comes or goes changes nothing.
        differing = {
            lab: (old, new) for lab, (old, new) in labs.items() if (old or 0.0) != (new or 0.0)
        }
        if differing:
            old_total, new_total = (
                to_points(sum(both[at] or 0.0 for both in labs.values())) for at in (0, 1)
            )
            kept, moved = (
                [lab for lab in differing if (handle, lab) in overrides]
                for overrides in (old_overrides & new_overrides, old_overrides ^ new_overrides)
            )
            name = names[students[handle].id]
            changes.append(Change(handle, name, old_total, new_total, differing, kept, moved))
    counts = Counter(lab for change in changes for lab in change.labs)
    shown = {lab: counts[lab] for lab in order if counts[lab]}
    deciding = [one for one in settings if changes and (not one.lab or one.lab in shown)]
    return Preview(len(pairs), shown, changes, deciding)


def changed_settings(before: GradingRules, after: GradingRules) -> list[Setting]:
    """Return the grading rules that differ, and labs that come or go."""
    old, new = _values(before), _values(after)
    changed = [
        Setting(lab, name, value, new[lab, name])
        for (lab, name), value in old.items()
        if new.get((lab, name), value) != value
    ]
    gone = [lab for lab in before.points if lab not in after.points]
    come = [lab for lab in after.points if lab not in before.points]
    changed += [Setting(lab, "part of the workshop", "yes", "no") for lab in gone]
    changed += [Setting(lab, "part of the workshop", "no", "yes") for lab in come]
    return changed


def _values(grading: GradingRules) -> dict[tuple[str, str], str]:
    """Return every grading rule as text, by lab and name, called as on the page that sets it."""
    late, weights = grading.late, grading.weights
    whole = {
        "submission that counts": f"the {grading.scoring}",
        "off for each day late": f"{100 * late.per_day:g}%",
        "off at most": f"{100 * late.most:g}%",
        "grace": f"{late.grace_s / 60:g} min",
        "partial credit": "yes" if grading.partial_credit else "no",
        "answers count alone": "yes" if weights.answers_alone else "no",
        **{f"weight of {kind}": f"{getattr(weights, kind):g}" for kind in get_args(CriterionKind)},
    }
    return {
        **{("", name): value for name, value in whole.items()},
        **{(lab, "points"): f"{points:g}" for lab, points in grading.points.items()},
    }


def changed_dues(before: list[Grade], after: list[Grade], zone: str) -> list[Setting]:
    """Return due dates that differ, an extension's beside the name of who has it."""
    new = {(grade.student.handle, grade.lab): grade.due for grade in after}
    moved: dict[tuple[str, float | None, float | None], list[str]] = {}
    learners: dict[str, list[str]] = {}
    for grade in before:
        learners.setdefault(grade.lab, []).append(grade.student.name)
        due = new.get((grade.student.handle, grade.lab), grade.due)
        if due != grade.due:
            moved.setdefault((grade.lab, grade.due, due), []).append(grade.student.name)

    def shown(at: float | None) -> str:
        return "never" if at is None else spoken(at, zone)

    return [
        Setting(
            lab,
            f"due{_whose(names, learners[lab])}",
            shown(old),
            shown(due),
        )
        for (lab, old, due), names in moved.items()
    ]


def _whose(names: list[str], everybody: list[str]) -> str:
    """Say for whom of all learners something holds, by the shorter list; empty for all of them."""
    others = list((Counter(everybody) - Counter(names)).elements())
    if not others:
        return ""
    if len(others) < len(names):
        return f" for everybody but {', '.join(others)}"
    return f" for {', '.join(names)}"


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
    before, old = load_grades(connection, judge), load_grading(connection)
    differed = differing_ids(connection)
    attempt = connection.begin_nested()
    change()
    after = load_grades(connection, judge)
    zone = load_settings(connection).timezone
    settings = [
        *changed_settings(old, load_grading(connection)),
        *changed_dues(before, after, zone),
    ]
    ids = [each for each in differing_ids(connection) if each not in differed]
    trial = Attempt(msgspec.structs.replace(compare(before, after, settings), ids=ids))
    yield trial
    if trial.keep:
        attempt.commit()
    else:
        attempt.rollback()
