"""Exports of grades for other programs, one row each in `EXPORTS`.

To add one, write a function from a `Gradebook` to bytes and give it a row: the command's help, the
page's links and the manual's table follow from it.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy import Connection, func, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.grading.evidence import GRADES, KEY, TABLE, Evidence, make_evidence
from bottleneck_lab.cohort.grading.grades import (
    Grade,
    Student,
    load_grades,
    load_grading,
    load_students,
)
from bottleneck_lab.cohort.grading.spreadsheets import Cell, write_csv
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import files_of
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.wording import counted

if TYPE_CHECKING:
    from bottleneck_lab.cohort.folder import Cohort


class Gradebook(msgspec.Struct, frozen=True):
    """All that an export can need.

    Grades in the order of learners and of the course, the labs, and readers of a submission's
    files, receipt and signed verdict, by its handle. `public_key` (PEM) checks the latter two, and
    `evidence`, which signs the grades with the rules in force.
    """

    grades: list[Grade]
    labs: list[str]
    files: Callable[[str], dict[str, bytes]]
    receipt: Callable[[str], str]
    verdict: Callable[[str], str]
    public_key: str
    evidence: Callable[[], Evidence]

    def by_student(self) -> list[tuple[Student, list[Grade]]]:
        """Return each learner with a grade per lab, in the order of `labs`."""
        return [
            (student, list(grades))
            for student, grades in groupby(self.grades, key=lambda grade: grade.student)
        ]


class Export(msgspec.Struct, frozen=True):
    """One kind of export. `columns` are the fixed ones, as the manual lists them."""

    name: str
    title: str
    purpose: str
    columns: list[str]
    write: Callable[[Gradebook], bytes]
    media_type: str = "text/csv; charset=utf-8"
    ending: str = "csv"

    def file_name(self, cohort: str) -> str:
        """Return the name of the exported file, after the cohort's folder name."""
        kind = "grades" if self.name == self.ending else self.name
        return f"{cohort}-{kind}.{self.ending}"


Row = TypeVar("Row", Grade, Student)
Columns = Mapping[str, Callable[[Row], Cell]]
"""The columns of a table: the name of each, and what is in it."""


def _cells(columns: Columns[Row], row: Row) -> list[Cell]:
    return [cell(row) for cell in columns.values()]


def _score(grade: Grade) -> float | None:
    return grade.score if grade.graded else None


def _moment(at: float | None) -> str:
    return iso(at) if at is not None else ""


PLAIN: Columns[Grade] = {
    "student_id": lambda grade: grade.student.institution_id,
    "handle": lambda grade: grade.student.handle,
    "name": lambda grade: grade.student.name,
    "first_name": lambda grade: grade.student.first_name,
    "last_name": lambda grade: grade.student.last_name,
    "email": lambda grade: grade.student.email,
    "section": lambda grade: grade.student.section,
    "lab": lambda grade: grade.lab,
    "submission": lambda grade: grade.submission,
    "received": lambda grade: _moment(grade.received),
    "due": lambda grade: _moment(grade.due),
    "attempts": lambda grade: grade.attempts,
    "outcome": lambda grade: grade.outcome,
    "criteria_held": lambda grade: grade.held,
    "criteria": lambda grade: grade.total,
    "raw_score": lambda grade: grade.raw_score,
    "late_penalty": lambda grade: grade.penalty,
    "score": lambda grade: grade.score,
    "max_score": lambda grade: grade.max_score,
    "reason": lambda grade: grade.explanation,
    "late_seconds": lambda grade: round(grade.late_s),
    "overridden_by": lambda grade: grade.override.author if grade.override else "",
    "comment": lambda grade: grade.override.comment if grade.override else "",
    "verdict_sha256": lambda grade: grade.verdict_sha256,
    "checker": lambda grade: grade.checker,
    "altered": lambda grade: " ".join(grade.altered),
    "sis_id": lambda grade: grade.student.sis_id,
    "sis_login": lambda grade: grade.student.sis_login,
    "canvas_id": lambda grade: grade.student.canvas_id,
}
NBGRADER: Columns[Grade] = {
    "assignment": lambda grade: grade.lab,
    "duedate": lambda grade: _moment(grade.due),
    "timestamp": lambda grade: _moment(grade.received),
    "student_id": lambda grade: grade.student.institution_id,
    "last_name": lambda grade: grade.student.last_name,
    "first_name": lambda grade: grade.student.first_name,
    "email": lambda grade: grade.student.email,
    "raw_score": lambda grade: grade.raw_score,
    "late_submission_penalty": lambda grade: grade.penalty,
    "score": lambda grade: grade.score,
    "max_score": lambda grade: grade.max_score,
}


def plain_csv(book: Gradebook) -> bytes:
    """Write everything, one line per learner and lab."""
    return write_csv(PLAIN, [_cells(PLAIN, grade) for grade in book.grades])


def nbgrader_csv(book: Gradebook) -> bytes:
    """Write grades as `nbgrader export` does."""
    columns, others = {**NBGRADER, **_overrides(book, "comment")}, _others(book)
    rows = [_cells(columns, grade) + _cells(others, grade.student) for grade in book.grades]
    return write_csv([*columns, *others], rows)


CANVAS = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]


def canvas_csv(book: Gradebook) -> bytes:
    """Write a gradebook that Canvas imports: the points possible, then a line per learner."""
    points = {grade.lab: grade.max_score for grade in book.grades}
    # Canvas knows the line by its name with these four blanks before it.
    possible: list[Cell] = ["    Points Possible", None, None, None, None]
    rows = [possible + [points.get(lab, 100.0) for lab in book.labs]]
    for student, grades in book.by_student():
        name = ", ".join(part for part in (student.last_name, student.first_name) if part)
        # Not 0: nothing was graded. Canvas shows what an import changes before it saves that.
        scores: list[Cell] = [_score(grade) for grade in grades]
        # Canvas finds a student by these; what its own gradebook had is given back unchanged.
        sis_id = student.sis_id or student.student_id
        identity = [student.canvas_id, sis_id, student.sis_login, student.section]
        rows.append([name, *identity, *scores])
    return write_csv([*CANVAS, *book.labs], rows)


MOODLE: Columns[Student] = {
    "First name": lambda student: student.first_name,
    "Last name": lambda student: student.last_name,
    "ID number": lambda student: student.institution_id,
    "Email address": lambda student: student.email,
}
_MOODLE_LAB: Columns[Grade] = {
    "": _score,
    " feedback": lambda grade: grade.override.comment if grade.override else None,
}
GRADESCOPE: Columns[Student] = {
    "First Name": lambda student: student.first_name,
    "Last Name": lambda student: student.last_name,
    "SID": lambda student: student.institution_id,
    "Email": lambda student: student.email,
    "Sections": lambda student: student.section,
}
_GRADESCOPE_LAB: Columns[Grade] = {
    "": _score,
    " - Max Points": lambda grade: grade.max_score,
    " - Submission Time": lambda grade: _moment(grade.received),
    " - Lateness (H:M:S)": lambda grade: _hours(grade.late_s),
}


def moodle_csv(book: Gradebook) -> bytes:
    """Write a table for Moodle's grade import: identity, then two columns per lab."""
    header, rows = _wide(book, MOODLE, _MOODLE_LAB)
    return _with_others(book, header, rows)


def gradescope_csv(book: Gradebook) -> bytes:
    """Write grades laid out as Gradescope's own export of a course's grades is."""
    columns = {**_GRADESCOPE_LAB, **_overrides(book, " - Comment")}
    header, rows = _wide(book, GRADESCOPE, columns)
    for row, (_, grades) in zip(rows, book.by_student(), strict=True):
        row.append(_hours(sum(grade.late_s for grade in grades)))
    return _with_others(book, [*header, "Total Lateness (H:M:S)"], rows, known="section")


def _overrides(book: Gradebook, name: str) -> Columns[Grade]:
    """Return a column with the comments of overrides, where there are any: without it, nobody could
    tell them from points by the rules.
    """
    if not any(grade.override for grade in book.grades):
        return {}
    return {name: lambda grade: grade.override.comment if grade.override else ""}


_OTHERS: Columns[Student] = {
    "section": lambda student: student.section,
    "sis_id": lambda student: student.sis_id,
    "sis_login": lambda student: student.sis_login,
    "canvas_id": lambda student: student.canvas_id,
}
"""The rest of what a roster says of a learner, under names that a roster has."""


def _others(book: Gradebook, known: str = "") -> Columns[Student]:
    """Return the columns of what anybody has and the export has no place for; it has one for
    `known`. Without them, whoever reads it back as a roster would lose that.
    """
    students = [student for student, _ in book.by_student()]
    return {
        name: value
        for name, value in _OTHERS.items()
        if name != known and any(map(value, students))
    }


def _with_others(
    book: Gradebook, header: list[str], rows: list[list[Cell]], known: str = ""
) -> bytes:
    """Write a table with a row per learner, and behind it whatever else is known of them."""
    others = _others(book, known)
    for row, (student, _) in zip(rows, book.by_student(), strict=True):
        row.extend(_cells(others, student))
    return write_csv([*header, *others], rows)


def _wide(
    book: Gradebook, identity: Columns[Student], of_a_lab: Columns[Grade]
) -> tuple[list[str], list[list[Cell]]]:
    """Return header and rows of a table with a row per learner: who they are, and each lab's
    columns, whose names begin with the lab's.
    """
    header = [*identity, *(f"{lab}{ending}" for lab in book.labs for ending in of_a_lab)]
    rows = []
    for student, grades in book.by_student():
        row = _cells(identity, student)
        for grade in grades:
            row += _cells(of_a_lab, grade)
        rows.append(row)
    return header, rows


def _hours(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def full_json(book: Gradebook) -> bytes:
    """Write everything, with the learners. Moments are in ISO 8601, as in the other exports."""
    rows = [
        {
            **msgspec.to_builtins(grade),
            "due": _moment(grade.due) or None,
            "received": _moment(grade.received) or None,
            "override": grade.override
            and {**msgspec.to_builtins(grade.override), "at": iso(grade.override.at)},
            "score": grade.score,
            "attempts": grade.attempts,
            "reason": grade.explanation,
        }
        for grade in book.grades
    ]
    return msgspec.json.format(msgspec.json.encode({"schema": 2, "grades": rows}))


def files_zip(book: Gradebook) -> bytes:
    """Write each learner's graded files, laid out as `jplag LAB` and `dolos run` take them.

    `submissions/LAB/LEARNER/` holds the files, `base/LAB/` the shipped ones.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for slug in book.labs:
            lab = load_labs()[slug]
            for name in lab.spec.editable:
                archive.writestr(f"base/{slug}/{name}", (lab.path / name).read_bytes())
        for grade in book.grades:
            if not grade.submission:
                continue
            # A student id may hold anything; the handle keeps two that look alike apart.
            safe = re.sub(r"[^A-Za-z0-9._-]+", "_", grade.student.known_as).strip("._")
            folder = f"{safe or 'learner'}-{grade.student.handle}"
            for name, data in book.files(grade.submission).items():
                archive.writestr(f"submissions/{grade.lab}/{folder}/{name}", data)
    return out.getvalue()


def evidence_zip(book: Gradebook) -> bytes:
    """Write the grades with all from which they follow: the rules in force, and every verdict and
    receipt, each signed.

    `lab verify` checks the whole file and computes every figure again, or checks one verdict of it.
    A verdict's SHA-256 stands in the column `verdict_sha256` of `grades.csv`.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(TABLE, plain_csv(book))
        archive.writestr(GRADES, msgspec.json.format(msgspec.json.encode(book.evidence())))
        archive.writestr(KEY, book.public_key)
        for grade in book.grades:
            for submission in grade.submissions:
                archive.writestr(f"verdicts/{submission}.json", book.verdict(submission))
                archive.writestr(f"receipts/{submission}.json", book.receipt(submission))
    return out.getvalue()


EXPORTS: dict[str, Export] = {
    export.name: export
    for export in (
        Export("csv", "CSV", "everything, one line per learner and lab", [*PLAIN], plain_csv),
        Export("nbgrader", "nbgrader", "as `nbgrader export` writes it", [*NBGRADER], nbgrader_csv),
        Export(
            "canvas",
            "Canvas",
            "a Canvas gradebook import, one column per lab",
            [*CANVAS, "one per lab"],
            canvas_csv,
        ),
        Export(
            "moodle",
            "Moodle",
            "a Moodle grade import, with points and feedback of each lab",
            [*MOODLE, "two per lab"],
            moodle_csv,
        ),
        Export(
            "gradescope",
            "Gradescope",
            "as Gradescope exports a course's grades, four columns per lab",
            [*GRADESCOPE, "four per lab", "Total Lateness (H:M:S)"],
            gradescope_csv,
        ),
        Export(
            "json",
            "JSON",
            "everything, for a program of your own",
            ["schema", "grades"],
            full_json,
            "application/json",
            "json",
        ),
        Export(
            "files",
            "files for JPlag and Dolos",
            "the graded files, for comparison with JPlag or Dolos",
            ["base/LAB/", "submissions/LAB/LEARNER/"],
            files_zip,
            "application/zip",
            "zip",
        ),
        Export(
            "evidence",
            "evidence",
            "grades, rules in force, verdicts and receipts, all signed, for `lab verify`",
            [TABLE, GRADES, "verdicts/", "receipts/", KEY],
            evidence_zip,
            "application/zip",
            "zip",
        ),
    )
}


def find_export(name: str) -> Export:
    """Return the export of that name. Raises UsageError for an unknown one."""
    if name not in EXPORTS:
        raise UsageError(f"There is no export '{name}'.", f"Choose one of {', '.join(EXPORTS)}.")
    return EXPORTS[name]


def require_unaltered(grades: Sequence[Grade]) -> None:
    """Raise MachineError if grades rest on a record that is not what the cohort's key signed."""
    altered = [(grade, handle) for grade in grades for handle in grade.altered]
    if altered:
        first, handle = altered[0]
        others = f", and {len(altered) - 1} more" if len(altered) > 1 else ""
        raise MachineError(
            f"The record of {first.student.name}'s submission {handle} in {first.lab}{others} is"
            " not what this cohort signed.",
            "Find out who changed the database. `lab cohort status` says what mends each;"
            " --allow-altered (on the page: ?altered=include) exports all the same, without points"
            " for them.",
        )


def unmeasured(connection: Connection) -> str:
    """Say how many learners' submissions are not measured yet; empty where all are.

    Those that are measured again count with their earlier verdict until then.
    """
    submissions, people = tables.submissions, tables.people
    count = connection.execute(
        select(func.count())
        .select_from(submissions.join(people, people.c.id == submissions.c.person))
        .where(
            submissions.c.state.in_(("queued", "running")),
            submissions.c.tool.is_(None),
            submissions.c.lab.in_(workshop_labs(connection)),
            people.c.role == "learner",
            people.c.removed.is_(None),
        )
    ).scalar_one()
    if not count:
        return ""
    verb = "is" if count == 1 else "are"
    return f"{counted(count, 'submission')} {verb} not measured yet: points may still change."


_MOST_NAMES = 5


def guests(connection: Connection) -> str:
    """Say which learners are not on the roster, so that platforms do not know them; or nothing."""
    students = load_students(connection)
    names = [student.name for student in students if not student.on_roster]
    if not names:
        return ""
    if len(names) == len(students):
        whose = "No learner is on a roster"
    else:
        shown = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        verb = "is" if len(names) == 1 else "are"
        whose = f"{counted(len(names), 'learner')} {verb} not on the roster ({shown}{more})"
    sentence = f"{whose}; without a student id, the platform will not recognise them."
    if len(names) == len(students):
        return f"{sentence} Enter one: `lab cohort roster FILE`."
    return f"{sentence} Merge each into the learner of the roster whom they are, on their page."


def export_grades(
    connection: Connection, cohort: Cohort, export: Export, *, allow_altered: bool = False
) -> bytes:
    """Return an export of the grades as they are now, as one file.

    Raises MachineError if a record in the database is not what the cohort's key signed: grades that
    leave this house should not rest on it unnoticed. With `allow_altered` such a submission scores
    nothing, and the exports that have a column for it say so.
    """
    grades = load_grades(connection, verdict_reader_of(cohort.public_key))
    if not allow_altered:
        require_unaltered(grades)
    submissions, verdicts = tables.submissions, tables.verdicts
    rows = {
        row.handle: row
        for row in connection.execute(
            select(submissions.c.handle, submissions.c.blob, submissions.c.receipt)
        )
    }

    def verdict(handle: str) -> str:
        query = (
            select(verdicts.c.document)
            .join(submissions, submissions.c.id == verdicts.c.submission)
            .where(submissions.c.handle == handle)
            .order_by(verdicts.c.id.desc())
        )
        return str(connection.execute(query).scalar() or "")

    book = Gradebook(
        grades,
        workshop_labs(connection),
        lambda handle: files_of(cohort.blobs.get(rows[handle].blob)),
        lambda handle: str(rows[handle].receipt),
        verdict,
        cohort.public_key,
        lambda: make_evidence(
            connection.execute(select(tables.cohort.c.id)).scalar_one(),
            cohort.database.clock(),
            load_grading(connection),
            grades,
            cohort.key(),
        ),
    )
    return export.write(book)


def render_exports_table() -> str:
    """Return the manual's table of exports, in Markdown."""
    lines = ["| export | what it is for | columns |", "| --- | --- | --- |"]
    for export in EXPORTS.values():
        columns = ", ".join(f"`{column}`" for column in export.columns)
        lines.append(f"| `{export.name}` | {export.purpose} | {columns} |")
    return "\n".join(lines)
