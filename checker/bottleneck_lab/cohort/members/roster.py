"""Rosters from tables as people have them: one's own, or from Canvas, Moodle, Gradescope or GitHub
Classroom, saved by Excel or by anything else.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
import zipfile
from collections import Counter, defaultdict
from difflib import get_close_matches
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, select

from bottleneck_lab.cohort.grading.spreadsheets import original
from bottleneck_lab.cohort.members.people import add_person, clean, correct_person
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.errors import UsageError
from bottleneck_lab.wording import counted

MAX_ROWS = 20_000
_NAME_PARTS = ("first_name", "last_name")
_IDS = ("student_id", "sis_id", "sis_login", "canvas_id")
_UNIQUE = ("student_id", "canvas_id", "sis_id")
"""Ids each of which is one learner's. A login may be another's id."""
_SAME = (
    ("student_id", "student_id"),
    ("canvas_id", "canvas_id"),
    ("sis_id", "sis_id"),
    ("student_id", "sis_id"),
    ("sis_id", "student_id"),
)
"""Ids by which a learner of a roster is one who is known, surest first: theirs and the other's. A
student information system (SIS) has student ids, so either may be the other.
"""
_MOST_NAMES = 10
"""Names that a sentence lists."""
MAX_CELL = 200
"""Characters of a cell that are kept."""
_COLUMNS = {
    "student_id": (
        *("studentid", "id", "idnumber", "sid", "identifier", "sisuserid", "username", "login"),
        *("matrikelnummer", "matrikelnr", "matrikel", "idnummer", "legi", "benutzername"),
        *("numeroetudiant", "netudiant", "noetudiant", "numerodetudiant", "matricule"),
        *("numerodidentification", "identifiant", "nomdutilisateur"),
        *("matricula", "numerodematricula", "numerodeestudiante", "numerodeid", "expediente"),
    ),
    "first_name": ("firstname", "givenname", "vorname", "prenom"),
    "last_name": (
        *("lastname", "surname", "familyname", "nachname", "familienname"),
        *("nomdefamille", "apellidos", "apellido"),
    ),
    "name": ("name", "student", "fullname", "githubusername", "nom", "nombre"),
    "email": (
        *("email", "mail", "emailaddress", "emailadresse"),
        *("courriel", "adresseemail", "adressedecourriel"),
        *("correo", "correoelectronico", "direcciondecorreo", "direccionemail"),
    ),
    "section": (
        *("section", "sections", "group", "groups", "classroom"),
        *("gruppe", "gruppen", "groupe", "groupes", "grupo", "grupos", "seccion"),
    ),
    "sis_id": ("sisid", "sisuserid"),
    "sis_login": ("sislogin", "sisloginid", "githubusername"),
    "canvas_id": ("canvasid",),
}
"""Names that a column may have, as `_fold` leaves them; the first that is there counts. They are
those of our own tables, of the exports of Moodle (in English, German, French and Spanish),
Gradescope and GitHub Classroom, and what people in those languages call them.
"""
_CANVAS = {"id", "section"}
"""Columns by which a gradebook that Canvas exported is known, with `SIS Login ID` or its line of
points possible: whoever may not see SIS ids gets it without some or all of them, and names are in
`Student`, or in `LastName` and `FirstName`.
"""
_EXPORTS = (
    {"firstname", "lastname", "idnumber", "emailaddress"},
    {"vorname", "nachname", "idnummer", "emailadresse"},
    {"prenom", "nomdefamille", "numerodidentification", "adressedecourriel"},
    {"nombre", "apellidos", "numerodeid", "direcciondecorreo"},
    {"firstname", "lastname", "sid", "email"},
    {"identifier", "githubusername", "githubid", "name"},
)
"""Columns by which an export of Moodle, Gradescope or GitHub Classroom is known."""
_PER_LAB = {"lab", "assignment"}
"""Columns by which our own exports with a line for each lab are known, and nbgrader's."""
_SUFFIX = re.compile(r"(?i:jr|sr)\.?|[IVX]+")
"""The part of a name that Canvas puts between commas behind the last name: `King, Jr., Martin`."""
_CANVAS_TEST_LOGIN = re.compile(r"[0-9a-f]{40}")
"""Canvas names its test student in the course's language, and gives it a SHA-1 as its login."""


_Known = dict[tuple[str, str], list[Row[Any]]]
_EVIDENCE_TABLE = "grades.csv"
_MAX_TABLE = 64 << 20
"""Bytes of that table that are unpacked."""
_ROUNDED = re.compile(r"\d(?:[.,]\d+)?E\+\d+")
"""A long number as Excel saves what it took for one: `1.23457E+06`."""


def _unpacked(data: bytes) -> bytes:
    """Return the table of grades in an export of evidence; whatever is no archive as it is.

    Raises UsageError for other exports of a cohort that hold no table.
    """
    if data.lstrip().startswith((b"{", b"[")):
        raise UsageError(
            "This is JSON, not a table.",
            "Of another cohort, take the export csv: `lab cohort export csv`.",
        )
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        if any(name.startswith(("base/", "submissions/")) for name in names):
            raise UsageError(
                "This is an export of graded files, which says nothing of learners' ids.",
                "Take the export csv: `lab cohort export csv`.",
            )
        if _EVIDENCE_TABLE not in names or archive.getinfo(_EVIDENCE_TABLE).file_size > _MAX_TABLE:
            return data
        return archive.read(_EVIDENCE_TABLE)


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


class Roster(NamedTuple):
    """The learners of a roster, each with an id of `_UNIQUE` and whatever else is given; the names
    of columns that are not read; and who stands in an export without an id, having joined by name.
    """

    learners: list[dict[str, str]]
    unread: list[str]
    guests: list[str]


class _Row(NamedTuple):
    """A row of the table, with the number of the line on which it ends."""

    line: int
    cells: list[str]


def read_roster(data: bytes) -> Roster:
    """Return the learners of a table, which may be inside an export of evidence.

    Raises UsageError naming the line or the column that cannot be used.
    """
    (_, header), *rows = _rows(decode_table(_unpacked(data)))
    while header and not header[-1].strip():
        header.pop()
    keys = [_fold(cell) for cell in header]
    columns = {}
    for field, known in _COLUMNS.items():
        column = next((keys.index(name) for name in known if name in keys), None)
        if column is not None:
            columns[field] = column
    canvas = set(keys) >= _CANVAS and (
        "sisloginid" in keys or any(_is_points_possible(row) for row in rows)
    )
    per_lab = not _PER_LAB.isdisjoint(keys)
    export = canvas or any(set(keys) >= export for export in _EXPORTS)
    # An export has a column for each assignment, and their names may be like anything.
    if not export:
        _require_well_spelt(header, columns)
    if "student_id" not in columns:
        raise UsageError(
            f"The roster has no column student_id; its columns are {', '.join(header)}.",
            "Call the column of student ids so; names such as ID number, Matrikelnummer, Numéro"
            " étudiant and Matrícula are read as well.",
        )
    if canvas:
        # Its own number may be somebody's student id, but it is not theirs.
        columns["canvas_id"] = columns.pop("student_id")
        rows = [row for row in rows if _is_canvas_learner(row, columns)]
    learners, guests = [], []
    for row in rows:
        learner = _learner(row, header, columns)
        listed = any(learner.get(field) for field in _UNIQUE)
        if listed and not (per_lab and _is_handle(row, keys, columns)):
            learners.append(learner)
        else:
            guests.append(learner.get("name", f"line {row.line}"))
            if not (export or per_lab):
                raise UsageError(
                    f"Line {row.line} of the roster has no student id.",
                    "Fill it in, or remove the line.",
                )
    if per_lab:  # a learner is in several lines, each time alike
        learners = [dict(one) for one in dict.fromkeys(tuple(each.items()) for each in learners)]
        guests = list(dict.fromkeys(guests))
    _require_learners(learners, guests)
    # Nobody expects the points in a gradebook or in another export to be read.
    ignored = set(range(len(header))) - {*columns.values()}
    if export or per_lab:
        ignored = set()
    return Roster(learners, [header[at] for at in sorted(ignored) if header[at]], guests)


def _is_handle(row: _Row, keys: list[str], columns: dict[str, int]) -> bool:
    """Return True for the id of a guest in an export of version 0.2 or before: their handle."""
    handle = row.cells[keys.index("handle")] if "handle" in keys else ""
    return bool(handle) and row.cells[columns["student_id"]] == handle


def _require_learners(learners: list[dict[str, str]], guests: list[str]) -> None:
    """Raise UsageError for a roster of nobody, or of somebody twice."""
    if guests and not learners:
        raise UsageError(
            f"Nobody in this export has a student id: {_listed(guests)}.",
            "They joined by name. Take a table that has a column student_id.",
        )
    if not learners:
        raise UsageError(
            "The roster has a line of column names, but no learners.",
            "Add one line per learner below it.",
        )
    for field in _UNIQUE:
        counts = Counter(each for learner in learners if (each := learner.get(field)))
        twice = sorted(value for value, count in counts.items() if count > 1)
        if twice:
            raise UsageError(f"The {field} '{twice[0]}' appears twice.", "Remove one of the lines.")


def _fold(name: str) -> str:
    """Return the letters and digits of a column's name: `E-Mail` is `email`, `Prénom` `prenom`."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    return "".join(char for char in letters if char.isalnum())


def _is_points_possible(row: _Row) -> bool:
    return row.cells[0].strip().lower() == "points possible"


def _is_canvas_learner(row: _Row, columns: dict[str, int]) -> bool:
    """Return False for lines of a Canvas gradebook that are no learner's.

    They are the points possible, the assignments whose grades are posted by hand (or muted), and
    the test student.
    """
    name = row.cells[0].strip().lower()
    login = dict(enumerate(row.cells)).get(columns.get("sis_login", -1), "")
    test = name in ("student, test", "test student") or _CANVAS_TEST_LOGIN.fullmatch(login)
    return bool(name) and not _is_points_possible(row) and not test


def _require_well_spelt(header: list[str], columns: dict[str, int]) -> None:
    """Raise UsageError for a column whose name is almost one of those that are read.

    Its contents would be missing without a word.
    """
    missing = {
        name: field for field, names in _COLUMNS.items() if field not in columns for name in names
    }
    for at, name in enumerate(header):
        if at not in columns.values() and (
            close := get_close_matches(_fold(name), missing, n=1, cutoff=0.8)
        ):
            raise UsageError(
                f"Column {at + 1} of the roster is called '{name}', which is not read.",
                f"Call it {missing[close[0]]} if that is meant, otherwise give it quite another"
                " name.",
            )


def _rows(text: str) -> list[_Row]:
    """Split a table at commas, semicolons or tabs, whichever its header uses.

    Excel writes semicolons wherever the comma is the decimal separator. Raises UsageError for an
    empty table, one that is not CSV, and one that is too long.
    """
    lines = text.lstrip("\ufeff").splitlines(keepends=True)
    skipped = 0
    if lines and lines[0].lower().startswith("sep="):  # Excel's own way to name the separator
        lines, skipped = lines[1:], 1
    header = next((line for line in lines if line.strip()), "")
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    reader = csv.reader(io.StringIO("".join(lines)), delimiter=delimiter)
    try:
        every = [_Row(reader.line_num + skipped, cells) for cells in reader]
    except csv.Error as error:
        raise UsageError(
            f"Line {reader.line_num + skipped} of the roster is not CSV: {error}.",
            "Save it as CSV again.",
        ) from error
    rows = [row for row in every if any(cell.strip() for cell in row.cells)]
    if not rows:
        raise UsageError(
            "The roster is empty.", "It needs a line of column names, then one line per learner."
        )
    if len(rows) > MAX_ROWS + 1:
        raise UsageError(
            f"The roster has {len(rows) - 1} learners; at most {MAX_ROWS} are read.",
            "Read it in parts.",
        )
    return rows


def _learner(row: _Row, header: list[str], columns: dict[str, int]) -> dict[str, str]:
    """Return what a row says of its learner.

    Raises UsageError if it has more or fewer cells than the header, so that they would be read
    under wrong names, or an id that a spreadsheet has rounded. Whoever has no id has an empty one.
    """
    count = len(row.cells)
    if count < len(header) or any(cell.strip() for cell in row.cells[len(header) :]):
        raise UsageError(
            f"Line {row.line} of the roster has {count} cells, and the line of column names has"
            f" {len(header)}.",
            "Give it as many; a cell that contains the separator stands in quotation marks.",
        )
    values = {
        field: original(clean(row.cells[at], MAX_CELL + 1))[:MAX_CELL]
        for field, at in columns.items()
    }
    for field in _IDS:
        if _ROUNDED.fullmatch(values.get(field, "").upper()):
            raise UsageError(
                f"Line {row.line} of the roster has {values[field]} for an id: a spreadsheet has"
                " rounded a long number.",
                "Take the file as it was exported, without opening it in Excel; or read it there"
                " with Data, From Text/CSV, with the ids as text, and save it again.",
            )
    return _with_names(values)


def _with_names(values: dict[str, str]) -> dict[str, str]:
    """Return a learner with both halves of the name, where they are known, and the whole of it.

    Without a name in the table, there is none in the result: learners keep the one that they have.
    """
    name = values.pop("name", "")
    halves = [part for part in _NAME_PARTS if values.get(part)]
    absent = [part for part in _NAME_PARTS if part not in values]
    if name and halves and absent:
        # Of "Name; Vorname" or "Nombre; Apellidos" it is the other half, or else it holds both.
        known = values[halves[0]].split()
        rest = [word for word in name.replace(",", " ").split() if word not in known]
        values[absent[0]] = " ".join(rest) or name
    elif name and not halves:
        # Taken apart only where a comma says how: of "Maria Garcia Lopez" nobody knows.
        last, *others = name.split(", ")
        suffixes = [part for part in others if _SUFFIX.fullmatch(part)]
        given = [part for part in others if part not in suffixes]
        if given:
            values |= {"last_name": ", ".join([last, *suffixes]), "first_name": ", ".join(given)}
            name = ""
    parts = [values.get(part, "") for part in _NAME_PARTS]
    # Beside both halves, our own export has the name that an instructor gave.
    given_name = name if not absent and name != ", ".join(reversed(parts)) else ""
    if shown := clean(given_name or " ".join(part for part in parts if part) or name):
        return {**values, "name": shown}
    return {field: each for field, each in values.items() if field not in _NAME_PARTS}


def describe_roster(roster: Roster, added: int, corrected: int) -> str:
    """Return in a sentence or two what was read of a roster and what came of it."""
    learners = counted(len(roster.learners), "learner")
    text = f"Read {learners} from the roster: {added} added, {corrected} corrected."
    if roster.unread:
        text += f" Columns that are not read: {', '.join(roster.unread)}."
    if not any("name" in learner for learner in roster.learners):
        text += " No column has names, so names stay; new learners go by their student ids."
    if roster.guests:
        text += f" Left out, since they have no student id: {_listed(roster.guests)}."
    return text


def _listed(names: list[str]) -> str:
    shown, more = ", ".join(names[:_MOST_NAMES]), len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def enter_roster(
    connection: Connection, learners: list[dict[str, str]], at: float
) -> tuple[int, int]:
    """Add learners who are new and correct the others; return how many were added and changed.

    Who has no name on the roster keeps theirs; whoever is new is called by the id. An empty cell
    leaves what is known. Nobody is removed: that is done by hand.
    """
    known = _known(connection)
    added = corrected = 0
    for learner in learners:
        row = _match(learner, known)
        values: dict[str, Any] = _news(learner, row, known)
        if row is not None:
            corrected += bool(values) and correct_person(connection, row.id, values)
        else:
            identity = next(each for field in _UNIQUE if (each := learner.get(field)))
            name = values.pop("name", identity)
            add_person(connection, "learner", name, at, **values)
            added += 1
    note(connection, at, "settings", "roster")
    return added, corrected


def _known(connection: Connection) -> _Known:
    """Return the people who have an id, by its column and its value: whoever was merged last."""
    known: _Known = defaultdict(list)
    people = tables.people
    for row in connection.execute(select(people).order_by(people.c.merged_into.is_not(None))):
        for field in _UNIQUE:
            if value := getattr(row, field):
                known[field, value].append(row)
    return known


def _match(learner: dict[str, str], known: _Known) -> Row[Any] | None:
    """Return who a learner of a roster is, by the surest id that is one person's."""
    for mine, theirs in _SAME:
        rows = known.get((theirs, learner.get(mine, "")), [])
        if len({row.merged_into or row.id for row in rows}) == 1:
            return rows[0]
    return None


def _news(learner: dict[str, str], row: Row[Any] | None, known: _Known) -> dict[str, str]:
    """Return what a roster says of a learner beyond what `row` has; all of it without a row."""
    values = {
        field: value
        for field, value in learner.items()
        # An id that somebody else has stays theirs: two rows that were merged stand apart again.
        if (value or field in _NAME_PARTS) and (row is None or not known.get((field, value)))
    }
    if row is None:
        return values
    # A student id is theirs already where it is known as the SIS id, and the other way round.
    for one, other in (("student_id", "sis_id"), ("sis_id", "student_id")):
        if values.get(one) == getattr(row, other):
            values.pop(one, None)
    # One who was renamed here keeps that name while the roster has the same as before. Exports have
    # a name that nobody took apart as the last name.
    first, last = row.first_name, row.last_name
    if [first, last or ("" if first else row.name)] == [learner.get(part) for part in _NAME_PARTS]:
        values = {
            field: each for field, each in values.items() if field not in ("name", *_NAME_PARTS)
        }
    # The student id of one who has another is not corrected: it may be of another platform.
    if row.student_id:
        values.pop("student_id", None)
    return values
