"""Canvas's side of a gradebook file: what it exports, and what it makes of one that is imported.

Written from how Instructure documents both (instructor guide, "How do I export grades in the
Gradebook" and "How do I import grades in the Gradebook"), and from what Canvas's open source does
where the guide is silent.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass

READ_ONLY = "(read only)"
TOTALS = ("Current Score", "Unposted Current Score", "Final Score", "Unposted Final Score")


@dataclass(frozen=True)
class Student:
    """Somebody enrolled, with the number that Canvas gave them; `name` sorts by the last name."""

    id: int
    name: str
    sis_id: str = ""
    login: str = ""
    sections: tuple[str, ...] = ("Section 1",)


STUDENTS = (
    Student(101, "Lovelace, Ada", "20261", "ada", ("Lab A", "Lecture")),
    Student(102, "King, Jr., Martin", "20262", "mking", ("A, B and C",)),
    Student(103, "van der Berg, Jan", "", "jan@example.org"),
    Student(104, "Madonna", "020264", "madonna", ("Lab A", "Lab B", "Lecture")),
    Student(105, "Öztürk, Ayşe", "20265", "ayse"),
)
TEST_STUDENT = Student(199, "Student, Test", "", "da39a3ee5e6b4b0d3255bfef95601890afd80709")
TESTSTUDENT = Student(199, "Teilnehmer, Test", "", "da39a3ee5e6b4b0d3255bfef95601890afd80709")
"""As a course in another language names it."""


def sentence(names: tuple[str, ...]) -> str:
    """Return names as a sentence lists them: sections of one student are."""
    *first, last = sorted(names)
    if len(first) < 2:
        return " and ".join([*first, last])
    return f"{', '.join(first)}, and {last}"


def exported(
    students: tuple[Student, ...] = (*STUDENTS, TEST_STUDENT),
    *,
    sis: bool = True,
    first_last: bool = False,
    european: bool = False,
    hidden: str = "Manual Posting",
) -> bytes:
    """Return a gradebook as Canvas exports it.

    `sis`: with the ids of the student information system; `first_last`: with two columns of names;
    `european`: semicolons, decimal commas and a byte order mark; `hidden`: what the line above the
    points possible says of an assignment that is posted by hand, empty for none.
    """
    number = (lambda text: text.replace(".", ",")) if european else str
    names = ["LastName", "FirstName"] if first_last else ["Student"]
    header = [*names, "ID", *(["SIS User ID"] if sis else []), "SIS Login ID", "Section"]
    known = len(header)
    header += ["Notes", "slow (4711)", "Essay 1 (4712)", "Assignments Current Score", *TOTALS]
    rows = [header]
    if hidden:
        rows.append([""] * (known + 1) + [hidden, ""] + [""] * (1 + len(TOTALS)))
    possible = ["    Points Possible"] + [""] * (known - 1) + [READ_ONLY]
    rows.append(possible + [number("100.00"), number("12.50")] + [READ_ONLY] * (1 + len(TOTALS)))
    for student in students:
        shown = [student.name]
        if first_last:
            last, _, first = student.name.partition(", ")
            shown = [last, first]
        identity = [str(student.id), *([student.sis_id] if sis else []), student.login]
        scores = ["", number("87.50"), "EX", *[number("87.50")] * (1 + len(TOTALS))]
        rows.append([*shown, *identity, sentence(student.sections), *scores])
    out = io.StringIO()
    csv.writer(out, delimiter=";" if european else ",", lineterminator="\n").writerows(rows)
    return out.getvalue().encode("utf-8-sig" if european else "utf-8")


def imported(data: bytes, students: tuple[Student, ...] = STUDENTS) -> dict[int, dict[str, str]]:
    """Return the scores by student and assignment that Canvas reads from a file.

    A student is found by ID, then by SIS User ID, then by SIS Login ID, then by name. Raises
    ValueError for a header that Canvas refuses, and for a line that would be a new student's.
    """
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))
    header = rows[0]
    if header[:5] != ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]:
        raise ValueError(f"Invalid header row: {header}")
    scores = {}
    for row in rows[1:]:
        if "Points Possible" in row[0]:
            assert all(float(cell) >= 0 for cell in row[5:])
            continue
        if all(re.fullmatch(r"\s*(Muted|Manual Posting.*)?\s*", cell) for cell in row):
            continue
        ways = (
            [each for each in students if row[1] and str(each.id) == row[1]],
            [each for each in students if row[2] and each.sis_id == row[2]],
            [each for each in students if row[3] and each.login == row[3]],
            [each for each in students if each.name == row[0]],
        )
        matches = next((way for way in ways if way), None)
        if matches is None:
            raise ValueError(f"Nobody in the course is {row[0]}")
        scores[matches[0].id] = dict(zip(header[5:], row[5:], strict=True))
    return scores
