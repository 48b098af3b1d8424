"""A gradebook's round trip: Canvas exports it, it is the roster, and Canvas imports the grades."""

from __future__ import annotations

import pytest

from bottleneck_lab.cohort.members.roster import describe_roster, enter_roster, read_roster
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import change_settings

from . import canvas
from .test_exports import exported, grades, measured

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
