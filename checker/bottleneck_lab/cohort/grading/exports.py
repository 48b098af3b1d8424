"""Grades for other programs: plain CSV, nbgrader, Canvas, JSON; and the files, laid out as JPlag
and Dolos read them.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.grading.grades import Grade, Student, load_grades
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import files_of
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.blobs import Blobs
from bottleneck_lab.cohort.view.verdicts import VerdictReader

Format = Literal["csv", "nbgrader", "canvas", "json", "files"]
FORMATS: tuple[Format, ...] = get_args(Format)
TYPES = {"json": "application/json", "files": "application/zip"}
"""Media types; the others are CSV."""
ENDINGS = {"json": "json", "files": "zip"}

Cell = str | float | int | None

_STARTS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def harmless(cell: Cell) -> str:
    """A cell that no spreadsheet takes for a formula. Numbers stay numbers."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4f}".rstrip("0").rstrip(".")
    if isinstance(cell, int):
        return str(cell)
    text = "".join(char for char in cell if char.isprintable())
    return f"'{text}" if text.lstrip().startswith(_STARTS_FORMULA) else text


def _csv(header: list[str], rows: Iterable[list[Cell]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(header)
    writer.writerows([harmless(cell) for cell in row] for row in rows)
    return out.getvalue().encode("utf-8-sig")  # with the mark by which spreadsheets know UTF-8


def _moment(at: float | None) -> str:
    return iso(at) if at is not None else ""


def plain_csv(grades: list[Grade]) -> bytes:
    """Everything, one line per learner and lab."""
    header = [
        "student_id",
        "name",
        "section",
        "lab",
        "submission",
        "received",
        "due",
        "attempts",
        "outcome",
        "criteria_held",
    ]
    header += ["criteria", "raw_score", "late_penalty", "score", "max_score"]
    return _csv(
        header,
        (
            [
                grade.student.student_id,
                grade.student.name,
                grade.student.section,
                grade.lab,
                grade.submission,
                _moment(grade.received),
                _moment(grade.due),
                grade.attempts,
                grade.outcome,
                grade.held,
                grade.total,
                grade.raw_score,
                grade.penalty,
                grade.score,
                grade.max_score,
            ]
            for grade in grades
        ),
    )


NBGRADER = [
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
]


def nbgrader_csv(grades: list[Grade]) -> bytes:
    """As `nbgrader export` writes it."""
    return _csv(
        NBGRADER,
        (
            [
                grade.lab,
                _moment(grade.due),
                _moment(grade.received),
                grade.student.student_id,
                grade.student.last_name,
                grade.student.first_name,
                grade.student.email,
                grade.raw_score,
                grade.penalty,
                grade.score,
                grade.max_score,
            ]
            for grade in grades
        ),
    )


def canvas_csv(grades: list[Grade]) -> bytes:
    """As Canvas imports a gradebook: a line with the points possible, then a line a learner."""
    labs = list(load_labs())
    points = {grade.lab: grade.max_score for grade in grades}
    by_student: dict[int, list[Grade]] = {}
    for grade in grades:
        by_student.setdefault(grade.student.id, []).append(grade)
    possible: list[Cell] = [
        "    Points Possible",
        None,
        None,
        None,
        None,
        *(points.get(lab, 100.0) for lab in labs),
    ]
    header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *labs]
    return _csv(header, [possible, *(_canvas_row(own) for own in by_student.values())])


def _canvas_row(own: list[Grade]) -> list[Cell]:
    student = own[0].student
    name = f"{student.last_name}, {student.first_name}" if student.first_name else student.last_name
    scores: list[Cell] = [grade.score if grade.submission else None for grade in own]
    return [
        name,
        None,
        student.sis_id or student.student_id,
        student.sis_login,
        student.section,
        *scores,
    ]


def full_json(grades: list[Grade]) -> bytes:
    """Everything, with the learners."""
    rows = [{**msgspec.to_builtins(grade), "score": grade.score} for grade in grades]
    return msgspec.json.format(msgspec.json.encode({"schema": 1, "grades": rows}))


_WRITERS: dict[str, Callable[[list[Grade]], bytes]] = {
    "csv": plain_csv,
    "nbgrader": nbgrader_csv,
    "canvas": canvas_csv,
    "json": full_json,
}


def export(connection: Connection, judge: VerdictReader, blobs: Blobs, kind: Format) -> bytes:
    """The export of that kind as one file."""
    grades = load_grades(connection, judge)
    return files_zip(connection, blobs, grades) if kind == "files" else _WRITERS[kind](grades)


def files_zip(connection: Connection, blobs: Blobs, grades: list[Grade]) -> bytes:
    """`submissions/LAB/LEARNER/file` of each learner's graded submission: `jplag LAB` and `dolos
    run` take a lab's folder. `base/` has the shipped files.
    """
    table = tables.submissions
    blob_of = {
        row.handle: row.blob for row in connection.execute(select(table.c.handle, table.c.blob))
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for slug, lab in load_labs().items():
            for name in lab.spec.editable:
                archive.writestr(f"base/{slug}/{name}", (lab.path / name).read_bytes())
        for grade in grades:
            if grade.submission:
                for name, data in files_of(blobs.get(blob_of[grade.submission])).items():
                    archive.writestr(
                        f"submissions/{grade.lab}/{_folder(grade.student)}/{name}", data
                    )
    return out.getvalue()


def _folder(student: Student) -> str:
    """A learner's folder: safe on every file system, and no two alike."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', student.student_id).strip('._') or 'learner'}-{student.handle}"
