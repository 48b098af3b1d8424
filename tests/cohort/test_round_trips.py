"""Every format of export is a roster again: nothing about a learner is lost on the way, and no id
becomes another.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine

from bottleneck_lab.cohort.grading.exports import EXPORTS, Gradebook
from bottleneck_lab.cohort.grading.grades import Grade, load_students
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.members.roster import describe_roster, enter_roster, read_roster
from bottleneck_lab.cohort.store import tables

FORMATS = ("csv", "nbgrader", "canvas", "moodle", "gradescope")
MOMENT = 1_800_000_000.0


def cohort(learners):
    """A database in memory with these learners, and an open connection to it."""
    connection = create_engine("sqlite://").connect()
    tables.metadata.create_all(connection)
    for learner in learners:
        people.add_person(connection, "learner", at=MOMENT, **learner)
    return connection


def export(connection, kind: str) -> bytes:
    grades = [
        Grade(student, lab, None) for student in load_students(connection) for lab in ("a", "b")
    ]
    return EXPORTS[kind].write(Gradebook(grades, ["a", "b"], dict, str, str, "", dict))


def read(data: bytes):
    """A new cohort from an export of another."""
    connection = cohort([])
    enter_roster(connection, read_roster(data).learners, MOMENT)
    return connection


def identities(connection, *formats: str) -> list[tuple[str, ...]]:
    """All about each learner that exports of these formats can carry: Canvas's has no address, and
    one id of the institution.
    """
    known = []
    for one in load_students(connection):
        own = one.institution_id
        sis_id, email = one.sis_id or own, one.email
        if "canvas" in formats:
            own, email = sis_id, ""
        known.append(
            (
                own,
                sis_id,
                one.sis_login,
                one.canvas_id,
                one.section,
                email,
                one.last_name,
                one.first_name,
            )
        )
    return sorted(known)


def words(alphabet: str, most: int = 6):
    """Cells as they are typed: without blanks around them, and formulas among them."""
    return st.text(alphabet, min_size=1, max_size=most).filter(
        lambda text: text == " ".join(text.split())
    )


LETTERS = words("aZé-'=@+ ")
NUMBERS = st.integers(1, 10**7)


@st.composite
def rosters(draw):
    """Learners of one's own table, of Canvas with and without SIS ids, of both, and guests."""
    learners = []
    for number in draw(st.lists(NUMBERS, min_size=1, max_size=4, unique=True)):
        # The same number as another's of each kind is not the same person.
        kinds = draw(st.sets(st.sampled_from(["student_id", "canvas_id", "sis_id"])))
        mark = draw(st.sampled_from(["", "0", "=", "'-", "s"]))
        ids = {kind: f"{mark}{number}" if kind != "canvas_id" else f"{number}" for kind in kinds}
        first, last = draw(st.tuples(LETTERS, LETTERS) | st.just(("", "")))
        learners.append(
            {
                "name": f"{first} {last}".strip() or draw(LETTERS),
                "first_name": first,
                "last_name": last,
                "email": draw(st.just("") | words("a@.-=")) if ids else "",
                "section": draw(st.just("") | words("A B,=-")) if ids else "",
                "sis_login": draw(st.just("") | words("a@0.")) if ids else "",
                **ids,
            }
        )
    return learners


@settings(max_examples=60, deadline=None)
@given(rosters())
def test_an_export_read_as_a_roster_loses_and_mixes_nothing(learners):
    with cohort(learners) as room:
        listed = [one for one in load_students(room) if one.on_roster]
        for kind in FORMATS if listed else ():
            data = export(room, kind)
            roster = read_roster(data)
            assert len(roster.learners) == len(listed), describe_roster(roster, 0, 0)
            assert enter_roster(room, roster.learners, MOMENT) == (0, 0), "the same room, unchanged"
            for second in FORMATS:
                with read(data) as other, read(export(other, second)) as third:
                    carried = [each for each in identities(room, kind, second) if any(each[:4])]
                    for copy in (other, third):
                        assert identities(copy, kind, second) == carried, (kind, second)


CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Lab (1)\n    Points Possible,,,,,10\n"
    '"Lovelace, Ada",101,020261,ada,A,\n"Berg, Jan",103,,jan@example.org,A,\n'
)


@pytest.mark.parametrize(
    ("kind", "ada", "jan"),
    [
        ("csv", "Ada Lovelace,Ada,Lovelace,,A,a", "Jan Berg,Jan,Berg,,A,a"),
        ("nbgrader", ",020261,Lovelace,Ada,", ",,Berg,Jan,"),
        ("moodle", "Ada,Lovelace,020261,,", "Jan,Berg,,,"),
        ("gradescope", "Ada,Lovelace,020261,,A,", "Jan,Berg,,,A,"),
    ],
)
def test_other_platforms_get_no_number_of_canvass(kind, ada, jan):
    with read(CANVAS.encode()) as room:
        text = export(room, kind).decode()
        assert ada in text
        assert jan in text
        lines = [line for line in text.splitlines() if "Ada" in line]
        assert all(line.endswith(",020261,ada,101") for line in lines)


def test_a_table_and_a_gradebook_of_the_same_people_are_one_roster():
    with read(b"student_id,first_name,last_name,email\n020261,Ada,Lovelace,a@b.org\n") as room:
        assert enter_roster(room, read_roster(CANVAS.encode()).learners, MOMENT) == (1, 1)
        assert (
            export(room, "canvas")
            .decode()
            .splitlines()[3]
            .startswith('"Lovelace, Ada",101,020261,ada,A,')
        )
        assert "a@b.org" in export(room, "moodle").decode(), "an address that Canvas does not say"


def test_a_number_of_canvass_is_not_the_student_id_of_another():
    with read(b"student_id,first_name,last_name\n101,Bob,Boole\n") as room:
        assert enter_roster(room, read_roster(CANVAS.encode()).learners, MOMENT) == (2, 0)
        names = {one.name for one in load_students(room)}
    assert names == {"Bob Boole", "Ada Lovelace", "Jan Berg"}


def test_a_roster_read_again_keeps_the_name_that_an_instructor_gave(sqlite_room):
    room = sqlite_room
    table = "student_id,first_name,last_name\ns1,Ada,Lovelace\n"
    with room.cohort.database.writing() as connection:
        enter_roster(connection, read_roster(table.encode()).learners, 0.0)
        (person,) = load_students(connection)
        row = people.by_handle(connection, person.handle)
        connection.execute(
            tables.people.update().where(tables.people.c.id == row.id).values(name="Countess")
        )
        for again, name in ((table, "Countess"), (table.replace("Ada", "Augusta"), "Augusta")):
            enter_roster(connection, read_roster(again.encode()).learners, 0.0)
            assert load_students(connection)[0].name.split()[0] == name
