"""Rosters from tables as people have them: one's own, or from Canvas, Moodle, Gradescope or GitHub
Classroom, saved by Excel or by anything else.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import Any

from sqlalchemy import Connection, select, update

from bottleneck_lab.cohort.members.people import add_person, clean
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.errors import UsageError

MAX_ROWS = 20_000
MAX_CELL = 200
"""Characters of a cell that are kept."""
_COLUMNS = {
    "student_id": (
        "student_id",
        "student id",
        "id",
        "id number",
        "idnumber",
        "sid",
        "identifier",
        "sis user id",
        "username",
        "login",
    ),
    "first_name": ("first_name", "firstname", "given name", "first name"),
    "last_name": ("last_name", "lastname", "surname", "family name", "last name"),
    "name": ("name", "student", "full name", "github_username"),
    "email": ("email", "e-mail", "mail", "email address"),
    "section": ("section", "sections", "group", "groups", "classroom"),
    "sis_id": ("sis_id", "sis user id"),
    "sis_login": ("sis_login", "sis login id", "github_username"),
    "canvas_id": ("canvas_id",),
}
"""Names that a column may have; the first that is there counts. GitHub Classroom: identifier,
github_username, github_id, name. Moodle: First name, Last name, ID number, Email address.
Gradescope: First Name, Last Name, SID, Email, Sections.
"""
_CANVAS = {"student", "id", "sis user id", "section"}
"""Columns by which a gradebook that Canvas exported is known."""
_CANVAS_TEST_STUDENT = ("student, test", "test student")


def decode_table(data: bytes) -> str:
    """Return the text of a table, in whichever encoding a spreadsheet saved it.

    Excel saves "CSV UTF-8" with a byte order mark, "Unicode Text" as UTF-16, and plain "CSV" in the
    machine's 8-bit encoding, of which Windows-1252 (with Latin-1 in it) is by far the most common.
    Raises UsageError, in words, for a workbook and for what is no text.
    """
    if data.startswith((b"PK", b"\xd0\xcf\x11\xe0")):
        raise UsageError(
            "This is a spreadsheet's own file, not a CSV file.",
            "Save it as CSV: in Excel, File, Save As, 'CSV UTF-8'.",
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encodings = ["utf-16"]
    elif len(data) > 1 and data[1:40:2].count(0) > len(data[1:40:2]) // 2:
        encodings = ["utf-16-le"]  # without its mark: every other byte of plain letters is 0
    else:
        encodings = ["utf-8-sig", "cp1252"]
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text
    raise UsageError(
        "The roster is in an unknown encoding.",
        "Save it as CSV in UTF-8: in Excel, File, Save As, 'CSV UTF-8'.",
    )


def read_roster(data: bytes) -> list[dict[str, str]]:
    """Return a dictionary per learner, with `student_id` and whatever else is given.

    Raises UsageError naming the line that cannot be used.
    """
    text = decode_table(data)
    rows = _rows(text)
    if not rows:
        raise UsageError(
            "The roster is empty.", "It needs a line of column names, then one line per learner."
        )
    header = [cell.strip().lower() for cell in rows[0]]
    columns = {}
    for field, names in _COLUMNS.items():
        column = next((header.index(name) for name in names if name in header), None)
        if column is not None:
            columns[field] = column
    if "student_id" not in columns:
        raise UsageError(
            f"The roster has no student-id column; its columns are {', '.join(rows[0])}.",
            "Call it student_id (or identifier, as GitHub Classroom does).",
        )
    canvas = set(header) >= _CANVAS
    if canvas:
        columns["canvas_id"] = header.index("id")
    learners = []
    for line, row in enumerate(rows[1:], 2):
        # Canvas adds a line with the points possible, one that may say "Manual Posting", and a
        # student who is there for testing.
        first = row[0].strip().lower()
        if canvas and (first in ("", "points possible", *_CANVAS_TEST_STUDENT)):
            continue
        learners.append(_learner(row, columns, line))
    counts = Counter(learner["student_id"] for learner in learners)
    twice = sorted(student_id for student_id, count in counts.items() if count > 1)
    if twice:
        raise UsageError(f"The student id '{twice[0]}' appears twice.", "Remove one of the lines.")
    return learners


def _rows(text: str) -> list[list[str]]:
    """Split a table at commas, semicolons or tabs, whichever its header uses.

    Excel writes semicolons wherever the comma is the decimal separator.
    """
    lines = text.lstrip("\ufeff").splitlines(keepends=True)
    if lines and lines[0].lower().startswith("sep="):  # Excel's own way to name the separator
        lines = lines[1:]
    header = next((line for line in lines if line.strip()), "")
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    reader = csv.reader(io.StringIO("".join(lines)), delimiter=delimiter)
    try:
        rows = [row for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UsageError(
            f"Line {reader.line_num} of the roster is not CSV: {error}.", "Save it as CSV again."
        ) from error
    if len(rows) > MAX_ROWS + 1:
        raise UsageError(
            f"The roster has {len(rows) - 1} learners; at most {MAX_ROWS} are read.",
            "Read it in parts.",
        )
    return rows


def _learner(row: list[str], columns: dict[str, int], line: int) -> dict[str, str]:
    values = {field: clean(row[at], MAX_CELL) for field, at in columns.items() if at < len(row)}
    if not values.get("student_id"):
        raise UsageError(
            f"Line {line} of the roster has no student id.", "Fill it in, or remove the line."
        )
    name = values.pop("name", "")
    if name and not (values.get("first_name") or values.get("last_name")):
        last, comma, first = name.partition(", ")
        if not comma:
            first, _, last = name.rpartition(" ")
        values |= {"last_name": last, "first_name": first}
    shown = " ".join(part for part in (values.get("first_name"), values.get("last_name")) if part)
    return {**values, "name": clean(shown) or values["student_id"]}


def enter_roster(
    connection: Connection, learners: list[dict[str, str]], at: float
) -> tuple[int, int]:
    """Add learners who are new and correct the others; return how many of each.

    Nobody is removed: that is done by hand.
    """
    people = tables.people
    known = {
        row.student_id: row.id
        for row in connection.execute(select(people.c.id, people.c.student_id))
        if row.student_id
    }
    added = 0
    for learner in learners:
        values: dict[str, Any] = dict(learner)
        if learner["student_id"] in known:
            number = known[learner["student_id"]]
            connection.execute(update(people).where(people.c.id == number).values(values))
        else:
            add_person(connection, "learner", values.pop("name"), at, **values)
            added += 1
    note(connection, at, "settings", "roster")
    return added, len(learners) - added
