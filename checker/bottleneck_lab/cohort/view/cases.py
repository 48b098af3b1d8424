"""The library of cases as one learner sees it: which they have answered, and how well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import content_root
from bottleneck_lab.cohort.members.people import Person, same_learner
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.capture_reading import read_figures
from bottleneck_lab.cohort.view.attempts import DiffLine, difference
from bottleneck_lab.grading.cases import Case, PastCase, grade_case
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.workspace.cases import PROGRAM, find_case


class AnsweredCase(msgspec.Struct, frozen=True):
    """A case with its grade: one result for each question, and what it was called and was."""

    name: str
    results: list[CriterionResult]
    past: PastCase


def load_answered(connection: Connection, person: Person) -> list[AnsweredCase]:
    """Return the cases that this learner has answered in a browser, oldest first."""
    table = tables.answered_cases
    own = table.c.person.in_(same_learner(connection, person))
    rows = connection.execute(select(table).where(own).order_by(table.c.at))
    return [
        AnsweredCase(
            row.name,
            msgspec.json.decode(row.results, type=list[CriterionResult]),
            msgspec.json.decode(row.past, type=PastCase),
        )
        for row in rows
    ]


def case_files(case: Case) -> dict[str, bytes]:
    """Return the program and the capture of a case, by their names."""
    folder = content_root() / "datasets" / "cases" / case.name
    return {name: (folder / name).read_bytes() for name in (PROGRAM, *case.traces)}


def capture_of(case: Case) -> dict[str, bytes]:
    """Return the files of a case's capture."""
    return {name: data for name, data in case_files(case).items() if name != PROGRAM}


def fixed_lines(case: Case) -> list[DiffLine]:
    """Return what changes where a case's program is rid of its cause; nothing if no line does."""
    program = fixed = case_files(case)[PROGRAM].decode()
    for old, new in case.switches[0].edits if case.switches else []:
        fixed = fixed.replace(old, new)
    return difference(program.encode(), fixed.encode())


@cache
def _figures(name: str) -> dict[str, float]:
    """Return the figures of a case's capture; reading it takes a second, and it never changes."""
    return dict(read_figures(capture_of(find_case(name)), []).figures)


def grade(case: Case, answers: Mapping[str, Any]) -> AnsweredCase:
    """Grade the answers to all questions."""
    gain, figures = float(answers["gain"]), _figures(case.name)
    past = PastCase(str(answers["cause"]), case.cause, gain, case.gain_near(gain, figures))
    results = grade_case(case, answers, figures)
    return AnsweredCase(case.name, results, past)


def keep_answer(connection: Connection, person: Person, answered: AnsweredCase, at: float) -> None:
    """Record the grade of a case, unless it has one: the first answer is final."""
    if any(each.name == answered.name for each in load_answered(connection, person)):
        return
    connection.execute(
        tables.answered_cases.insert().values(
            person=person.id,
            name=answered.name,
            at=at,
            results=msgspec.json.encode(answered.results).decode(),
            past=msgspec.json.encode(answered.past).decode(),
        )
    )
