"""Roster, grades and exports: what counts, what being late costs, and that no cell becomes a
formula.
"""

from __future__ import annotations

import csv
import io
import json
import time
import zipfile

import pytest
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.grading.exports import (
    EXPORTS,
    NBGRADER,
    export_grades,
    guests,
    render_exports_table,
)
from bottleneck_lab.cohort.grading.grades import (
    DAY_S,
    late_share,
    load_grades,
    override_grade,
)
from bottleneck_lab.cohort.grading.rules import extend, set_rules
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.members.roster import describe_roster, enter_roster, read_roster
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.cohort.settings import LatePolicy, change_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Outcome

from .fake_job import verdict_of
from .serving import log_in, serving
from .test_leases import claim, finish, signed

ROSTERS = {
    "own": (
        "student_id,last_name,first_name,email,section\ns1,Lovelace,Ada,ada@example.org,A\ns2,=cmd|'"
        " /C calc'!A0,Bob,,B\n"
    ),
    "GitHub Classroom": (
        '"identifier","github_username","github_id","name"\n"s1","ada","1","Ada'
        ' Lovelace"\n"s2","bob","",""\n'
    ),
    "Canvas": (
        "Student,ID,SIS User ID,SIS Login ID,Section,Lab (1)\n    Points"
        ' Possible,,,,,10\n"Lovelace, Ada",7,s1,ada,A,\nBob,8,s2,bob,B,\n'
    ),
}


@pytest.mark.parametrize("kind", ROSTERS)
def test_a_roster_is_read_however_it_comes(kind):
    ada, bob = read_roster(("\ufeff" + ROSTERS[kind]).encode()).learners
    if kind == "Canvas":
        assert (ada["canvas_id"], ada["sis_id"], ada["sis_login"]) == ("7", "s1", "ada")
        assert "student_id" not in ada, "Canvas's own number is none"
    else:
        assert (ada["student_id"], bob["student_id"]) == ("s1", "s2")
    assert ada["name"] == "Ada Lovelace"
    if kind != "GitHub Classroom":  # which has a full name; nobody knows how to take it apart
        assert (ada["first_name"], ada["last_name"]) == ("Ada", "Lovelace")
    assert ("name" in bob) is (kind != "GitHub Classroom")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("name\nAda\n", "no column student_id"),
        ("student_id,name\n,Ada\n", "Line 2"),
        ("student_id\ns1\ns1\n", "twice"),
        ("student_id,last_nam\ns1,Lovelace\n", "Column 2 of the roster is called 'last_nam'"),
        ("studnet_id,name\ns1,Ada\n", "Column 1 of the roster is called 'studnet_id'"),
        ("student_id,name\n\ns1,Ada,ada@example.org\n", "Line 3 of the roster has 3 cells"),
        ("student_id,name,email\ns1,Ada\n", "Line 2 of the roster has 2 cells"),
        ("student_id,name\n\n", "no learners"),
        ("student_id,name\n1.23457E+06,Ada\n", "Line 2 .* has 1.23457E\\+06 for an id"),
        ("student_id;name;sis_id\ns1;Ada;1,2E+11\n", "Line 2 .* has 1,2E\\+11 for an id"),
    ],
)
def test_a_roster_that_cannot_be_used_is_refused_with_the_line(text, message):
    with pytest.raises(UsageError, match=message):
        read_roster(text.encode())


@pytest.mark.parametrize(
    "header",
    [
        "Matrikelnummer;Nachname;Vorname;E-Mail;Gruppe",
        "Matrikel-Nr.;Name;Vorname;E-Mail-Adresse;Gruppen",
        "Numéro étudiant;Nom;Prénom;Courriel;Groupe",
        "N° étudiant;Nom de famille;Prénom;Adresse e-mail;Groupe",
        "Matrícula;Apellidos;Nombre;Correo electrónico;Grupo",
        "Número de ID;Apellido(s);Nombre;Dirección de correo;Grupos",
        "ID-Nummer;Nachname;Vorname;E-Mail-Adresse;Gruppe;Abgabe 1 (Punkte)",
    ],
)
def test_a_roster_is_read_in_german_french_and_spanish(header):
    work = ";3" * header.count("Punkte")
    (ada,) = read_roster(f"{header}\n7;Lovelace;Ada;ada@example.org;A{work}\n".encode()).learners
    assert ada == {
        "student_id": "7",
        "first_name": "Ada",
        "last_name": "Lovelace",
        "email": "ada@example.org",
        "section": "A",
        "name": "Ada Lovelace",
    }


def test_a_column_of_names_beside_one_half_is_the_other_half_or_the_whole():
    table = "Matrikelnummer;Name;Vorname\n1;Janssen;Jan\n2;Ada Lovelace;Ada\n3;Thomas;Thomas\n"
    names = [(one["first_name"], one["last_name"]) for one in read_roster(table.encode()).learners]
    assert names == [("Jan", "Janssen"), ("Ada", "Lovelace"), ("Thomas", "Thomas")]


def test_a_roster_says_how_many_it_holds_and_what_is_not_read():
    roster = read_roster(b"student_id,name,diet,,\ns1,Ada,none,,\ns2,Eve,none\n")
    assert describe_roster(roster, 2, 0) == (
        "Read 2 learners from the roster: 2 added, 0 corrected. Columns that are not read: diet."
    )


def test_an_export_is_not_said_to_have_columns_that_are_not_read():
    ours = b"student_id,name,lab,score\ns1,Ada,slow,3\n"
    gradescope = b"First Name,Last Name,SID,Email,slow\nAda,Lovelace,s1,a@b.c,3\n"
    for table in (ours, gradescope):
        assert "not read" not in describe_roster(read_roster(table), 0, 0), table


def test_a_roster_without_names_leaves_names_alone(sqlite_room):
    room = sqlite_room
    full = "student_id,last_name,first_name\ns1,Groß,Änne\n"
    partial = "student_id;Rufname;email\ns1;Klein;a@example.org\ns2;Bob;\n"
    with room.cohort.database.writing() as connection:
        for text in (full, partial):
            roster = read_roster(text.encode())
            counts = enter_roster(connection, roster.learners, room.clock())
    assert "so names stay" in describe_roster(roster, *counts)
    rows = {row.student_id: row for row in room.rows(tables.people)}
    assert (rows["s1"].name, rows["s1"].last_name, rows["s1"].email) == (
        "Änne Groß",
        "Groß",
        "a@example.org",
    )
    assert rows["s2"].name == "s2"


NAMES = "student_id;Last name;First name;Section\r\ns1;Müller;Zoë;A, B\r\ns2;Łukasz;Jan;B\r\n"
LATIN = NAMES.replace("Łukasz", "Lukasz")
WORKBOOK = b"PK\x03\x04" + bytes(60)


@pytest.mark.parametrize(
    "data",
    [
        NAMES.encode("utf-8-sig"),
        NAMES.encode("utf-16"),
        NAMES.encode("utf-16-le"),
        NAMES.replace(";", "\t").encode("utf-16"),
        LATIN.encode("latin-1"),
        ("sep=;\r\n" + LATIN).encode("cp1252"),
        NAMES.replace("A, B", '"A, B"').replace("A, B", "A; B").encode(),
    ],
    ids=["utf-8", "utf-16", "utf-16 unmarked", "unicode text", "latin-1", "sep", "quoted"],
)
def test_a_roster_is_read_as_excel_saves_it(data):
    first, second = read_roster(data).learners
    assert (first["first_name"], first["last_name"]) == ("Zoë", "Müller")
    assert first["section"] in ("A, B", "A; B")
    assert second["last_name"] in ("Łukasz", "Lukasz")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (WORKBOOK, "a spreadsheet's own file"),
        (b"student_id\n\x81\x8d\n", "unknown encoding"),
        (b'student_id,name\ns1,"Ada\0"\n', "unknown encoding"),
        (b"student_id\n" + b"\n".join(b"s%d" % n for n in range(20_001)), "at most 20000"),
    ],
)
def test_a_roster_that_is_no_text_is_refused_in_words(data, message):
    with pytest.raises(UsageError, match=message):
        read_roster(data)


GRADEBOOK = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Lab (1)\n,,,,,Manual Posting\n"
    '    Points Possible,,,,,10\n"Lovelace, Ada",7,s1,ada,"A and B",\nBob,8,,bob,B,\n'
    '"Student, Test",99,,5f2c0e,B,\n'
)


def test_a_canvas_gradebook_keeps_its_ids_and_loses_the_test_student(room):
    with room.cohort.database.writing() as connection:
        enter_roster(connection, read_roster(GRADEBOOK.encode()).learners, room.clock())
    measured(room, room.join("x", student_id="7")[1])
    rows = list(csv.reader(io.StringIO(exported(room, "canvas"))))
    assert rows[2][:6] == ["Bob", "8", "", "bob", "B", ""]
    assert rows[3][:6] == ["Lovelace, Ada", "7", "s1", "ada", "A and B", "100"]
    assert len(rows) == 4


def test_moodle_and_gradescope_have_their_columns(room):
    ada, _ = roster_room(room)
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", room.clock(), due=room.clock() - 3600)
    measured(room, ada)
    (lovelace,) = [
        row
        for row in csv.DictReader(io.StringIO(exported(room, "moodle")))
        if row["ID number"] == "s1"
    ]
    assert lovelace["Email address"] == "ada@example.org"
    assert (lovelace["Last name"], lovelace["slow"], lovelace["wrong"]) == ("Lovelace", "90", "")
    (lovelace,) = [
        row
        for row in csv.DictReader(io.StringIO(exported(room, "gradescope")))
        if row["SID"] == "s1"
    ]
    assert (lovelace["slow"], lovelace["slow - Max Points"]) == ("90", "100")
    assert lovelace["slow - Lateness (H:M:S)"] == "01:00:06"
    assert lovelace["Total Lateness (H:M:S)"] == "01:00:06"
    for kind in ("moodle", "gradescope"):
        again = read_roster(exported(room, kind).encode()).learners
        assert {one["student_id"] for one in again} == {"s1", "s2"}


def measured(room, token, outcome=Outcome.PASS) -> str:
    """Submit work that passes, or comes half way from the shipped code to its target."""
    handle = room.submit(token).receipt.submission
    lease = claim(room)
    lab = find_lab(lease.lab)
    half_way = verdict_of(lab, lab.path, lease.device, outcome, value=3.1)
    finish(
        room,
        lease,
        signed(room, lease, outcome=outcome, reason=half_way.reason, criteria=half_way.criteria),
    )
    return handle


def roster_room(room, text=ROSTERS["own"]):
    with room.cohort.database.writing() as connection:
        enter_roster(connection, read_roster(text.encode()).learners, room.clock())
        change_settings(connection, roster_only=True)
    return [room.join("x", student_id=name)[1] for name in ("s1", "s2")]


def exported(room, kind) -> str:
    with room.cohort.database.reading() as connection:
        data = export_grades(connection, room.cohort, EXPORTS[kind])
    return data.decode("utf-8-sig")


def grades(room):
    with room.cohort.database.reading() as connection:
        return {
            (one.student.student_id or one.student.handle, one.lab): one
            for one in load_grades(connection, verdict_reader_of(room.cohort.public_key))
        }


def test_people_stand_in_one_order_and_nobody_is_called_eve_eve(sqlite_room):
    room = sqlite_room
    text = (
        "student_id,first_name,last_name\ns1,Zoë,Adams\ns2,Eve,\ns3,Ada,Lovelace\n"
        "s4,Jan,van der Berg\ns5,Ayşe,Öztürk\n"
    )
    with room.cohort.database.writing() as connection:
        enter_roster(connection, read_roster(text.encode()).learners, room.clock())
    room.join("Bob")
    judge = verdict_reader_of(room.cohort.public_key)
    with room.cohort.database.reading() as connection:
        names = [row.name for row in load_room(connection, judge, room.clock()).rows]
        grades = load_grades(connection, judge)
    assert names == ["Zoë Adams", "Bob", "Eve", "Ada Lovelace", "Ayşe Öztürk", "Jan van der Berg"]
    assert list(dict.fromkeys(grade.student.name for grade in grades)) == names
    students = [row[0] for row in csv.reader(io.StringIO(exported(room, "canvas")))][2:]
    assert students[:4] == ["Adams, Zoë", "Bob", "Eve", "Lovelace, Ada"]


def test_only_those_on_the_roster_join_and_each_once(room):
    roster_room(room)
    for request, code in (
        (Join("", "x", "s3"), "not-on-roster"),
        (Join("", "x"), "not-on-roster"),
        (Join("", "x", "s1"), "already-joined"),
    ):
        with pytest.raises(people.RefusedError) as refused:
            room.join(request.name, student_id=request.student_id)
        assert refused.value.code == code


def test_a_roster_read_again_corrects_and_doubles_nobody(room):
    with room.cohort.database.writing() as connection:
        assert enter_roster(connection, read_roster(ROSTERS["own"].encode()).learners, 0.0) == (
            2,
            0,
        )
        changed = read_roster(b"student_id,first_name,last_name\ns1,Augusta,King\ns3,New,One\n")
        assert enter_roster(connection, changed.learners, 0.0) == (1, 1)
        assert enter_roster(connection, changed.learners, 0.0) == (0, 0), "nothing is new"
    assert {one.student.name for one in grades(room).values()} == {
        "Augusta King",
        "Bob =cmd|' /C calc'!A0",
        "New One",
    }


def packed(room, kind) -> bytes:
    with room.cohort.database.reading() as connection:
        return export_grades(connection, room.cohort, EXPORTS[kind])


@pytest.fixture
def guest_room(sqlite_room):
    """A room of two learners on the roster, and of Frieda, who joined by name."""
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        enter_roster(connection, read_roster(ROSTERS["own"].encode()).learners, 0.0)
    frieda, token = room.join("Frieda")
    measured(room, token)
    return room, frieda


@pytest.mark.parametrize("kind", ["csv", "nbgrader", "canvas", "moodle", "gradescope", "evidence"])
def test_an_export_of_grades_is_a_roster_again_without_its_guests(guest_room, kind):
    room, _ = guest_room
    again = read_roster(packed(room, kind))
    column = "sis_id" if kind == "canvas" else "student_id"
    assert {one[column] for one in again.learners} == {"s1", "s2"}
    assert again.guests == ["Frieda"]
    with room.cohort.database.writing() as connection:
        added, corrected = enter_roster(connection, again.learners, 0.0)
    assert added == 0, "nobody is new"
    sentence = describe_roster(again, added, corrected)
    assert sentence.endswith("Left out, since they have no student id: Frieda.")


def test_exports_of_an_earlier_version_give_guests_their_handle_and_are_read(guest_room):
    room, frieda = guest_room
    table = exported(room, "csv").replace(f",{frieda.handle},", f"{frieda.handle},{frieda.handle},")
    again = read_roster(table.encode())
    assert ({one["student_id"] for one in again.learners}, again.guests) == (
        {"s1", "s2"},
        ["Frieda"],
    )


def test_an_export_of_guests_alone_is_no_roster(sqlite_room):
    sqlite_room.join("Frieda")
    with pytest.raises(UsageError, match="Nobody in this export has a student id: Frieda"):
        read_roster(packed(sqlite_room, "csv"))


@pytest.mark.parametrize(("kind", "message"), [("json", "This is JSON"), ("files", "graded files")])
def test_an_export_that_is_no_roster_is_refused_by_what_it_is(guest_room, kind, message):
    room, _ = guest_room
    with pytest.raises(UsageError, match=message) as refused:
        read_roster(packed(room, kind))
    assert "lab cohort export csv" in refused.value.remedy


@pytest.mark.parametrize("kind", ["canvas", "moodle", "gradescope", "nbgrader"])
def test_a_guest_has_no_id_in_a_gradebook_and_every_export_says_so(guest_room, kind, tmp_path):
    room, frieda = guest_room
    assert frieda.handle not in exported(room, kind)
    words = ["cohort", "export", kind, "--folder", str(room.cohort.folder)]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "grades.csv")])
    sentence = (
        "1 learner is not on the roster (Frieda); without a student id, the platform will not"
        " recognise them. Merge each into the learner of the roster whom they are, on their page."
    )
    assert sentence in " ".join(done.output.split())
    with room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, room.clock())
    with serving(room.cohort.folder) as (port, _):
        room.cohort.database.clock = time.time
        assert sentence in log_in(room, port, instructor).get("/grades").text


def test_many_guests_are_counted_and_a_room_without_a_roster_says_so(sqlite_room):
    room = sqlite_room
    for number in range(7):
        room.join(f"Guest {number}")
    with room.cohort.database.reading() as connection:
        assert guests(connection).startswith("No learner is on a roster; without a student id")
        assert guests(connection).endswith("Enter one: `lab cohort roster FILE`.")
    with room.cohort.database.writing() as connection:
        enter_roster(connection, read_roster(ROSTERS["own"].encode()).learners, 0.0)
        assert "7 learners are not on the roster (Guest 0, " in guests(connection)
        assert "Guest 4 and 2 more)" in guests(connection)


def test_the_json_has_moments_as_the_csv_has_them(room):
    ada, _ = roster_room(room)
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", room.clock(), due=room.clock() + 60)
    measured(room, ada)
    (row,) = [row for row in csv.DictReader(io.StringIO(exported(room, "csv"))) if row["received"]]
    grades = json.loads(exported(room, "json"))["grades"]
    (one,) = [grade for grade in grades if grade["received"]]
    assert (one["received"], one["due"]) == (row["received"], row["due"])
    assert [one["due"] for one in grades if one["lab"] == "wrong"] == [None, None]


def test_a_file_is_named_after_what_is_in_it():
    assert EXPORTS["csv"].file_name("autumn") == "autumn-grades.csv"
    assert EXPORTS["json"].file_name("autumn") == "autumn-grades.json"
    assert EXPORTS["canvas"].file_name("autumn") == "autumn-canvas.csv"


def test_the_best_submission_counts_and_partial_credit_is_progress(room):
    ada, bob = roster_room(room)
    measured(room, ada, Outcome.FAIL)
    best = measured(room, ada)
    measured(room, ada, Outcome.FAIL)
    measured(room, bob, Outcome.FAIL)
    computed = grades(room)
    assert (
        computed["s1", "slow"].score,
        computed["s1", "slow"].submission,
        computed["s1", "slow"].attempts,
    ) == (100.0, best, 3)
    assert computed["s2", "slow"].score == 50.0
    assert (computed["s2", "wrong"].score, computed["s2", "wrong"].submission) == (0.0, None)
    with room.cohort.database.writing() as connection:
        change_settings(connection, partial_credit=False)
    assert grades(room)["s2", "slow"].score == 0.0


@pytest.mark.parametrize(
    ("late_s", "share"),
    [(-1, 0.0), (600, 0.0), (601, 0.1), (DAY_S - 1, 0.1), (DAY_S + 1, 0.2), (30 * DAY_S, 0.5)],
)
def test_a_day_begun_costs_a_day_and_never_more_than_the_most(late_s, share):
    assert late_share(1000.0 + late_s, 1000.0, LatePolicy()) == pytest.approx(share)
    assert late_share(1000.0 + late_s, None, LatePolicy()) == 0.0


def test_an_extension_counts_also_for_what_was_handed_in_before_it(room):
    ada, _ = roster_room(room)
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", room.clock(), due=room.clock() - 2 * DAY_S, points=50.0)
    measured(room, ada)
    computed = grades(room)["s1", "slow"]
    assert (computed.raw_score, computed.penalty, computed.score) == (50.0, 15.0, 35.0)
    with room.cohort.database.writing() as connection:
        extend(connection, computed.student.id, "slow", room.clock() + 60, 0, room.clock())
    assert grades(room)["s1", "slow"].score == 50.0


def test_exports_have_the_columns_that_their_readers_want(room):
    ada, bob = roster_room(room)
    for token in (ada, bob):
        measured(room, token)
    rows = list(csv.DictReader(io.StringIO(exported(room, "nbgrader"))))
    assert list(rows[0]) == [*NBGRADER, "section"], "nbgrader's own, and what else is known"
    slow = {row["student_id"]: row for row in rows if row["assignment"] == "slow"}
    assert (slow["s1"]["score"], slow["s1"]["max_score"], slow["s1"]["last_name"]) == (
        "100",
        "100",
        "Lovelace",
    )
    canvas = list(csv.reader(io.StringIO(exported(room, "canvas"))))
    assert canvas[0][:6] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "slow"]
    assert canvas[1][0].strip() == "Points Possible"
    assert ["Lovelace, Ada", "", "s1", "", "A", "100"] in [row[:6] for row in canvas]
    assert len(json.loads(exported(room, "json"))["grades"]) == 2 * 5
    plain = list(csv.DictReader(io.StringIO(exported(room, "csv"))))
    assert {row["outcome"] for row in plain if row["lab"] == "slow"} == {"PASS"}


@pytest.mark.parametrize(
    ("kind", "column"),
    [("nbgrader", "comment"), ("gradescope", "slow - Comment"), ("moodle", "slow feedback")],
)
def test_an_override_is_told_from_points_by_the_rules(room, kind, column):
    measured(room, roster_room(room)[0])
    assert "At the board" not in exported(room, kind)
    student = grades(room)["s1", "slow"].student
    with room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, room.clock())
        override_grade(connection, student, "slow", 7.0, "At the board", instructor, 0.0)
    table = exported(room, kind)
    comments = [row[column] for row in csv.DictReader(io.StringIO(table))]
    assert sorted(filter(None, comments)) == ["At the board"]
    assert len(read_roster(table.encode()).learners) == 2, "and it is a roster again"


def test_no_cell_of_any_export_becomes_a_formula(room):
    _, bob = roster_room(room)
    measured(room, bob)
    for kind in ("csv", "nbgrader", "canvas", "moodle", "gradescope"):
        cells = [cell for row in csv.reader(io.StringIO(exported(room, kind))) for cell in row]
        assert not [
            cell for cell in cells if cell.lstrip().startswith(("=", "+", "-", "@", "\t"))
        ], kind
    assert "'=cmd" in exported(room, "nbgrader")


def test_the_files_are_laid_out_for_comparing_programs(room):
    ada, _ = roster_room(room)
    measured(room, ada)
    with room.cohort.database.reading() as connection:
        data = export_grades(connection, room.cohort, EXPORTS["files"])
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert "base/slow/work.py" in names
    (mine,) = [name for name in names if name.startswith("submissions/slow/s1-")]
    assert mine.endswith("/work.py")
    assert all(".." not in name for name in names)


def test_help_page_and_manual_follow_from_the_rows_of_the_table(sqlite_room):
    output = CliRunner().invoke(app, ["cohort", "export", "--help"]).output
    words = " ".join(output.split())
    table = render_exports_table()
    with serving(sqlite_room.cohort.folder) as (port, _):
        with sqlite_room.cohort.database.writing() as connection:
            instructor = people.the_instructor(connection, sqlite_room.clock())
        sqlite_room.cohort.database.clock = time.time
        page = log_in(sqlite_room, port, instructor).get("/grades").text
    for export in EXPORTS.values():
        assert f"{export.name}: {export.purpose}" in words
        assert f"| `{export.name}` | {export.purpose} |" in table
        assert f'href="/export/{export.name}"' in page


def test_a_roster_is_read_through_the_page_as_it_was_saved(sqlite_room):
    with sqlite_room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, sqlite_room.clock())
    with serving(sqlite_room.cohort.folder) as (port, _):
        sqlite_room.cohort.database.clock = time.time
        visitor = log_in(sqlite_room, port, instructor)
        for data, status in ((LATIN.encode("latin-1"), 200), (WORKBOOK, 400)):
            parts = [
                (b'name="csrf"', visitor.csrf().encode()),
                (b'name="roster"; filename="roster.csv"', data),
            ]
            body = b"".join(
                b"--cut\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % part
                for part in parts
            )
            kind = {"Content-Type": "multipart/form-data; boundary=cut"}
            reply = visitor.ask("POST", "/settings/roster", body + b"--cut--\r\n", **kind)
            assert reply.status == status, reply.text
            assert ("Read 2 learners from the roster: 2 added" in reply.text) == (status == 200)
    names = {row.last_name for row in sqlite_room.rows(tables.people)}
    assert {"Müller", "Lukasz"} <= names


def test_an_unknown_export_names_those_there_are(sqlite_room):
    folder = str(sqlite_room.cohort.folder)
    done = CliRunner().invoke(app, ["cohort", "export", "excel", "--folder", folder])
    assert "no export 'excel'" in done.exception.message
    assert "nbgrader" in done.exception.remedy
