"""Run sheets: what happens when in a workshop of half a day, or of six weeks."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal

import msgspec
from sqlalchemy import Connection

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.cohort.grading.rules import rules_for, set_rules
from bottleneck_lab.cohort.workshop import choose_labs
from bottleneck_lab.errors import UsageError

Plan = Literal["half-day", "six-weeks"]
HALF_DAY_MIN = 240
WEEKS = 6
DAY_S = 86400.0

WELCOME_MIN, TALK_MIN, BREAK_MIN, END_MIN = 20, 10, 15, 15
"""Minutes of the half day besides labs: installing and joining, talking about each lab, the break
after the first half, and the end."""


class Entry(msgspec.Struct, frozen=True):
    """One line of a run sheet: from when to when, what it is, and what the instructor does.

    `lab` is the lab that learners work on in it, None for a talk or a break.
    """

    begins: datetime
    ends: datetime
    title: str
    instructor: str
    lab: str | None = None


class LabTimes(msgspec.Struct, frozen=True):
    """Moments of one lab, under the names of the rules that they become."""

    opens: datetime
    hints_at: datetime
    due: datetime
    solution_at: datetime
    closes: datetime | None = None


class RunSheet(msgspec.Struct, frozen=True):
    """A run sheet, the moments of the labs in it, and the labs that did not fit."""

    plan: Plan
    entries: list[Entry]
    labs: dict[str, LabTimes]
    left_out: list[str] = []


def labs_of_half_day(labs: list[Lab]) -> list[Lab]:
    """Return the first of these labs, as many as half a day holds."""
    chosen, used = [], WELCOME_MIN + BREAK_MIN + END_MIN
    for lab in labs:
        used += lab.spec.minutes + TALK_MIN
        if used > HALF_DAY_MIN:
            break
        chosen.append(lab)
    return chosen


def starting_labs() -> list[str]:
    """Return the labs that a new workshop starts with: the first that half a day holds."""
    course = load_labs()
    # A course may begin with a lab that is longer.
    return [lab.slug for lab in labs_of_half_day(list(course.values()))] or list(course)


def make_run_sheet(plan: Plan, labs: list[Lab], start: datetime) -> RunSheet:
    """Lay out labs, in their order, from `start` on.

    The half day takes the first labs that fit, each as long as its lab.toml says that it takes. The
    six weeks spread all of them evenly by those minutes. Raises UsageError if no lab fits.
    """
    if not labs:
        raise UsageError("A run sheet needs at least one lab.", "Choose the workshop's labs.")
    return _half_day(labs, start) if plan == "half-day" else _six_weeks(labs, start)


def _half_day(labs: list[Lab], start: datetime) -> RunSheet:
    chosen = labs_of_half_day(labs)
    if not chosen:
        raise UsageError(
            f"'{labs[0].slug}' takes {labs[0].spec.minutes} minutes, too long for half a day.",
            "Put a shorter lab first.",
        )
    entries: list[Entry] = []

    def add(minutes: int, title: str, instructor: str, lab: str | None = None) -> Entry:
        begins = entries[-1].ends if entries else start
        entries.append(Entry(begins, begins + timedelta(minutes=minutes), title, instructor, lab))
        return entries[-1]

    add(
        WELCOME_MIN,
        "Welcome",
        "Everybody runs `lab doctor` and joins: the room shows who has. Say what a verdict is, and"
        " that checks wait in one queue.",
    )
    used = WELCOME_MIN + BREAK_MIN + END_MIN + sum(TALK_MIN + lab.spec.minutes for lab in chosen)
    times, had_break = {}, len(chosen) == 1
    for lab in chosen:
        work = add(
            lab.spec.minutes,
            lab.spec.title,
            f"Read the symptom aloud. Learners capture, commit a diagnosis, then fix `{lab.slug}`."
            " Visit whoever the room shows as stuck or asking for help.",
            lab.slug,
        )
        third = timedelta(minutes=lab.spec.minutes / 3)
        times[lab.slug] = LabTimes(work.begins, work.begins + third, work.ends, work.ends)
        add(
            TALK_MIN,
            "What was it?",
            f"Show the figures of `{lab.slug}` against its target, two different fixes, and one"
            " diagnosis that was wrong.",
        )
        if not had_break and entries[-1].ends - start >= timedelta(minutes=used / 2 - BREAK_MIN):
            add(BREAK_MIN, "Break", "Look at the queue: it drains now.")
            had_break = True
    add(END_MIN, "End", "Who passed what; what to read on; export the grades and back up.")
    left_out = [lab.slug for lab in labs[len(chosen) :]]
    return RunSheet("half-day", entries, times, left_out)


def _six_weeks(labs: list[Lab], start: datetime) -> RunSheet:
    total, done = sum(lab.spec.minutes for lab in labs), 0
    weeks: list[list[Lab]] = [[] for _ in range(WEEKS)]
    for lab in labs:
        # By the middle of its minutes: a long lab goes to the week that has most of it.
        weeks[math.floor(WEEKS * (done + lab.spec.minutes / 2) / total)].append(lab)
        done += lab.spec.minutes
    entries, times = [], {}
    for number, week in enumerate(weeks):
        begins = start + timedelta(weeks=number)
        ends = begins + timedelta(weeks=1)
        for lab in week:
            times[lab.slug] = LabTimes(
                begins,
                begins + timedelta(days=3),
                ends,
                ends + timedelta(weeks=1),
                ends + timedelta(weeks=1),
            )
            entries.append(
                Entry(
                    begins,
                    ends,
                    f"Week {number + 1}: {lab.spec.title}",
                    f"Introduce the symptom of `{lab.slug}` ({lab.spec.minutes} min of work). Hints"
                    " open after three days; late work is taken for one more week, then the"
                    " solution opens.",
                    lab.slug,
                )
            )
        if not week:
            entries.append(
                Entry(begins, ends, f"Week {number + 1}: catch up", "Late work and questions.")
            )
    return RunSheet("six-weeks", entries, times)


def overdue_labs(sheet: RunSheet, now: float) -> list[str]:
    """Return the labs that would be due already, `now` in seconds since the epoch."""
    return [slug for slug, times in sheet.labs.items() if times.due.timestamp() <= now]


def use_run_sheet(connection: Connection, sheet: RunSheet, at: float) -> None:
    """Make the sheet's labs the workshop, with its moments as their rules."""
    choose_labs(connection, list(sheet.labs), at)
    for slug, moments in sheet.labs.items():
        values = {
            name: moment.timestamp() if moment is not None else None
            for name, moment in msgspec.structs.asdict(moments).items()
        }
        set_rules(connection, slug, at, **values)


def times_of_one_day(connection: Connection, labs: list[str]) -> dict[str, tuple[float, float]]:
    """Return when each lab opens and is due (s since the epoch), as a half day's sheet sets both.

    Empty where a lab lacks one of them, two labs overlap, or they span more than a day: nothing
    says on which evening of a week people work.
    """
    of = rules_for(connection, [])
    times = {}
    for lab in labs:
        rules = of(lab, None)
        if rules.opens is None or rules.due is None:
            return {}
        times[lab] = (rules.opens, rules.due)
    ordered = sorted(times.values())
    overlap = any(opens < due for (_, due), (opens, _) in pairwise(ordered))
    return {} if overlap or ordered[-1][1] - ordered[0][0] > DAY_S else times


def dues_of(connection: Connection, labs: list[str]) -> dict[str, float]:
    """Return when each lab is due (s since the epoch); empty where one of them never is."""
    of = rules_for(connection, [])
    dues = {lab: due for lab in labs if (due := of(lab, None).due) is not None}
    return dues if len(dues) == len(labs) else {}


def render_markdown(sheet: RunSheet, title: str, form: Callable[[datetime], str]) -> str:
    """Render a run sheet as a Markdown table, with moments written by `form`."""
    lines = [f"# {title}", "", "| from | to | what | instructor |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {form(entry.begins)} | {form(entry.ends)} | {entry.title} | {entry.instructor} |"
        for entry in sheet.entries
    ]
    if sheet.left_out:
        lines += ["", f"Too long for half a day: {', '.join(sheet.left_out)}."]
    return "\n".join(lines) + "\n"
