"""A roster from CSV: one's own, a GitHub-Classroom one, or a Canvas gradebook."""

from __future__ import annotations

import csv
import io
from typing import Any

from sqlalchemy import Connection, select, update

from bottleneck_lab.cohort.members.people import add_person, clean
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.errors import UsageError

MOST_ROWS = 20_000
_COLUMNS = {
    "student_id": ("student_id", "id", "identifier", "sis user id", "username", "login"),
    "first_name": ("first_name", "firstname", "given name", "first name"),
    "last_name": ("last_name", "lastname", "surname", "family name", "last name"),
    "name": ("name", "student", "full name", "github_username"),
    "email": ("email", "e-mail", "mail", "email address"),
    "section": ("section", "group", "classroom"),
    "sis_id": ("sis_id", "sis user id"),
    "sis_login": ("sis_login", "sis login id", "github_username"),
}
"""What a column may be called; the first that is there counts. GitHub Classroom: identifier,
github_username, github_id, name.
"""


def read_roster(text: str) -> list[dict[str, str]]:
    """One dictionary a learner, with `student_id` and whatever else is told. Raises UsageError
    naming the line that cannot be used.
    """
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff")))
    try:
        rows = [row for row in reader if any(cell.strip() for cell in row)][: MOST_ROWS + 1]
    except csv.Error as error:
        raise UsageError(
            f"Line {reader.line_num} of the roster is not CSV: {error}.", "Save it as CSV again."
        ) from error
    if not rows:
        raise UsageError(
            "The roster is empty.", "It needs a line of column names, then one line per learner."
        )
    places = _places(rows[0])
    learners = [
        _learner(row, places, line)
        for line, row in enumerate(rows[1:], 2)
        if not _is_points_line(row)
    ]
    twice = {
        one["student_id"]
        for one in learners
        if [o["student_id"] for o in learners].count(one["student_id"]) > 1
    }
    if twice:
        raise UsageError(
            f"The student id '{min(twice)}' appears twice.", "Remove one of the lines."
        )
    return learners


def _places(header: list[str]) -> dict[str, int]:
    names = [cell.strip().lower() for cell in header]
    places = {}
    for field, known in _COLUMNS.items():
        found = next((names.index(name) for name in known if name in names), None)
        if found is not None:
            places[field] = found
    if "student_id" not in places:
        raise UsageError(
            f"The roster has no student-id column; its columns are {', '.join(header)}.",
            "Call it student_id (or identifier, as GitHub Classroom does).",
        )
    return places


def _is_points_line(row: list[str]) -> bool:
    """The second line of a Canvas gradebook."""
    return row[0].strip().lower() == "points possible"


def _learner(row: list[str], places: dict[str, int], line: int) -> dict[str, str]:
    told = {field: clean(row[at], 200) for field, at in places.items() if at < len(row)}
    if not told.get("student_id"):
        raise UsageError(
            f"Line {line} of the roster has no student id.", "Fill it in, or remove the line."
        )
    name = told.pop("name", "")
    if name and not (told.get("first_name") or told.get("last_name")):
        last, comma, first = name.partition(", ")
        told.update({"last_name": last, "first_name": first} if comma else _split(name))
    shown = " ".join(part for part in (told.get("first_name"), told.get("last_name")) if part)
    return {**told, "name": clean(shown) or told["student_id"]}


def _split(name: str) -> dict[str, str]:
    first, _, last = name.rpartition(" ")
    return {"first_name": first, "last_name": last}


def enter_roster(
    connection: Connection, learners: list[dict[str, str]], at: float
) -> tuple[int, int]:
    """Add those who are new and correct the others; how many of each. Nobody is removed: that is
    done by hand.
    """
    people = tables.people
    known = {
        row.student_id: row.id
        for row in connection.execute(select(people.c.id, people.c.student_id))
        if row.student_id
    }
    for one in learners:
        values: dict[str, Any] = dict(one)
        if one["student_id"] in known:
            connection.execute(
                update(people).where(people.c.id == known[one["student_id"]]).values(values)
            )
        else:
            add_person(connection, "learner", values.pop("name"), at, **values)
    note(connection, at, "settings", "roster")
    added = sum(one["student_id"] not in known for one in learners)
    return added, len(learners) - added
