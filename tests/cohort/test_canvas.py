"""A gradebook's round trip: Canvas exports it, it is the roster, and Canvas imports the grades."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.members.roster import describe_roster, enter_roster, read_roster
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables

from . import canvas
from .canvas import Student
from .test_exports import exported, grades, measured
from .test_grades import pages, saved


def handles(room) -> dict[str, str]:
    """Return the handle of each learner by the id of a table, or by Canvas's number."""
    return {row.student_id or row.canvas_id: row.handle for row in room.rows(tables.people)}


def joined_apart(room, **fields: str) -> None:
    """Add a learner beside the one of Canvas who has the same id, as earlier versions did."""
    name = fields.pop("name", f"{fields.get('first_name', '')} {fields.get('last_name')}".strip())
    with room.cohort.database.writing() as connection:
        people.add_person(connection, "learner", name, room.clock(), **fields)


FORMS = {
    "as it is": {},
    "without SIS ids": {"sis": False},
    "first and last names": {"first_last": True},
    "semicolons and decimal commas": {"european": True},
    "muted": {"hidden": "Muted"},
    "hidden from instructors": {"hidden": "Manual Posting (scores hidden from instructors)"},
    "nothing hidden": {"hidden": ""},
    "another language": {"students": (*canvas.STUDENTS, canvas.TESTSTUDENT)},
    "european with everything": {"european": True, "first_last": True, "sis": False},
}


def enter(room, data: bytes) -> tuple[int, int]:
    with room.cohort.database.writing() as connection:
        return enter_roster(connection, read_roster(data).learners, room.clock())


@pytest.mark.parametrize("form", FORMS)
def test_canvas_finds_everybody_again_and_nobody_new(sqlite_room, form):
    room, data = sqlite_room, canvas.exported(**FORMS[form])
    assert enter(room, data) == (5, 0)
    assert enter(room, data) == (0, 0), "nothing is new"
    for student in canvas.STUDENTS:
        measured(room, room.join("x", student_id=str(student.id))[1])
    scores = canvas.imported(exported(room, "canvas").encode("utf-8-sig"))
    assert {number: row["slow"] for number, row in scores.items()} == dict.fromkeys(
        (student.id for student in canvas.STUDENTS), "100"
    )
    assert {row["wrong"] for row in scores.values()} == {""}


def test_names_ids_and_sections_come_back_as_canvas_gave_them(sqlite_room):
    enter(sqlite_room, canvas.exported())
    lines = exported(sqlite_room, "canvas").splitlines()
    assert lines[2].startswith('"King, Jr., Martin",102,20262,mking,"A, B and C",')
    assert lines[3].startswith('"Lovelace, Ada",101,20261,ada,Lab A and Lecture,')
    assert lines[4].startswith('Madonna,104,020264,madonna,"Lab A, Lab B, and Lecture",')
    assert lines[5].startswith('"Öztürk, Ayşe",105,20265,ayse,Section 1,')
    assert lines[6].startswith('"van der Berg, Jan",103,,jan@example.org,Section 1,')


def test_merged_learners_keep_the_ids_that_either_has(sqlite_room):
    room = sqlite_room
    enter(room, canvas.exported())
    joined_apart(room, student_id="20261", first_name="Ada", last_name="Lovelace")
    joined_apart(room, student_id="m4", last_name="Madonna")
    ids = handles(room)
    with pages(room) as (instructor, _, _):
        # Into the learner of the table, and out of the one of Canvas: which way does not matter.
        assert saved(instructor, f"/people/{ids['101']}/merge", into=ids["20261"])
        assert saved(instructor, f"/people/{ids['m4']}/merge", into=ids["104"])
        page = instructor.get(f"/people/{ids['20261']}").text
        for text in ("20261", "ada", "101"):
            assert f"<dd>{text}</dd>" in page
    lines = exported(room, "canvas").splitlines()
    assert '"Lovelace, Ada",101,20261,ada,Lab A and Lecture,,' in [
        line[: line.index("Lecture") + 9] for line in lines if "Lovelace" in line
    ]
    assert any(line.startswith("Madonna,104,020264,madonna,") for line in lines)
    (row,) = [line for line in exported(room, "moodle").splitlines() if "Madonna" in line]
    assert ",m4," in row, "an own id comes before Canvas's number"


def test_an_id_that_both_have_differently_is_shown_before_a_merge(sqlite_room):
    room = sqlite_room
    one, other = (
        Student(101, "Lovelace, Ada", "s1", "ada"),
        Student(102, "Lovelace, Ada", "s2", "ada"),
    )
    enter(room, canvas.exported((one, other)))
    ids = handles(room)
    path = f"/people/{ids['102']}/merge"
    with pages(room) as (instructor, _, _):
        page = instructor.post(path, into=ids["101"]).text
        assert "Nobody's points change" in page
        assert "Exports give 101 as the Canvas id of Ada Lovelace, no longer 102." in page
        assert "Exports give s1 as the SIS id of Ada Lovelace, no longer s2." in page
        assert "SIS login" not in page
        assert {row.merged_into for row in room.rows(tables.people)} == {None}
        assert saved(instructor, path, into=ids["101"])
    assert 'Lovelace, Ada",101,s1,ada,' in exported(room, "canvas")


def test_a_tables_learner_and_canvass_with_another_sis_id_are_shown_before_a_merge(sqlite_room):
    room = sqlite_room
    enter(room, canvas.exported())
    enter(room, b"student_id,name\n9,G\xc3\xbcnther\n")
    joined_apart(room, student_id="20261", name="Ada Lovelace")
    ids = handles(room)
    with pages(room) as (instructor, _, _):
        page = instructor.post(f"/people/{ids['101']}/merge", into=ids["9"]).text
        assert (
            "Exports give Günther the student id 9 and the SIS id 20261, which two different"
            " people may have." in page
        )
        assert {row.merged_into for row in room.rows(tables.people)} == {None}
        assert instructor.post(f"/people/{ids['101']}/merge", into=ids["20261"]).status == 303


@pytest.mark.parametrize("header", ["SIS UserID", "sis user id"])
def test_a_gradebook_is_read_with_columns_written_together(header):
    data = canvas.exported().decode("utf-8-sig").replace("SIS User ID", header)
    king, lovelace = read_roster(data.encode()).learners[:2]
    assert {"20261", "20262"} == {king["sis_id"], lovelace["sis_id"]}


def test_a_gradebook_without_any_sis_column_has_its_learners_and_nobody_else():
    text = (
        "Student,ID,Section,Lab (1)\n    Points Possible,,,10\n"
        '"Lovelace, Ada",7,A,\n"King, Jr., Martin",8,A,\n"Student, Test",99,A,\n'
    )
    roster = read_roster(text.encode())
    assert [(one["canvas_id"], one["name"]) for one in roster.learners] == [
        ("7", "Ada Lovelace"),
        ("8", "Martin King, Jr."),
    ]


def test_a_gradebook_says_nothing_of_its_assignments_and_totals():
    roster = read_roster(canvas.exported())
    assert describe_roster(roster, 5, 0) == "Read 5 learners from the roster: 5 added, 0 corrected."


@pytest.mark.parametrize(
    ("table", "ids"),
    [
        (canvas.exported(), "their SIS user id or SIS login id,"),
        (canvas.exported(sis=False), "their SIS login id,"),
        (b"student_id,name\n1,Ada\n", "their student id,"),
        (b"identifier,github_username,github_id,name\n1,ada,7,Ada\n", "their student id or login,"),
    ],
)
def test_the_command_says_which_ids_learners_join_with(sqlite_room, tmp_path, table, ids):
    file = tmp_path / "roster.csv"
    file.write_bytes(table)
    words = ["cohort", "roster", str(file), "--folder", str(sqlite_room.cohort.folder)]
    output = " ".join(CliRunner().invoke(app, [*words, "--only"]).output.split())
    assert "From now on, only they can join with `lab join URL CODE --id STUDENT_ID`" in output
    assert ids in output


def test_learners_join_by_the_id_that_they_know(sqlite_room):
    room = sqlite_room
    twin = canvas.Student(106, "Twin, Tom", "ada", "tom")
    enter(room, canvas.exported((*canvas.STUDENTS, twin)))
    with room.cohort.database.writing() as connection:
        change_settings(connection, roster_only=True)
    for known, name in (("020264", "Madonna"), ("jan@example.org", "Jan van der Berg")):
        assert room.join("x", student_id=known)[0].name == name
    assert room.join("x", student_id="101")[0].name == "Ada Lovelace"
    for unknown in ("ada", "", "nobody"):  # the first is one's login and another's number
        with pytest.raises(RefusedError) as refused:
            room.join("x", student_id=unknown)
        assert refused.value.code == "not-on-roster"
    assert len(grades(room)) == 6 * 5
