"""Grades that can be trusted: rules with a preview, overrides, evidence, and loud alterations."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import time
import zipfile
from contextlib import contextmanager

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.grading.exports import EXPORTS, export_grades
from bottleneck_lab.cohort.grading.grades import DAY_S
from bottleneck_lab.cohort.grading.rules import set_rules
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.room import STUCK_FAILED, load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import ExitCode, MachineError
from bottleneck_lab.grading.attest import verify_bytes
from bottleneck_lab.grading.verdict import Outcome, Standing

from .serving import Visitor, log_in, serving
from .test_exports import exported, grades, measured
from .test_leases import claim, finish, signed


@contextmanager
def pages(room):
    """A served room with an instructor, and a way to log anybody in."""
    with room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, room.clock())
    clock, room.cohort.database.clock = room.cohort.database.clock, time.time
    with serving(room.cohort.folder) as (port, _):
        yield log_in(room, port, instructor), lambda person: log_in(room, port, person), port
    room.cohort.database.clock = clock


def run(room, *words: str):
    return CliRunner().invoke(app, ["cohort", *words, "--folder", str(room.cohort.folder)])


def changed(page: str) -> dict[str, tuple[float, float]]:
    """Return the totals before and after of those whose points change, as a preview shows them."""
    rows = re.findall(r'<a href="/people/\w+">([^<]+)</a></th>\n(.+?)</tr>', page, re.DOTALL)
    pairs = {name: re.findall(r"([\d.]+) → ([\d.]+)", cells)[-1:] for name, cells in rows}
    return {name: (float(pair[0][0]), float(pair[0][1])) for name, pair in pairs.items() if pair}


def saved(visitor, path: str, **fields: str) -> bool:
    """Save a form, confirming what it does to points if that is asked; return whether it was."""
    answer = visitor.post(path, action="save", **fields)
    if answer.status == 200:
        assert "Nothing is saved yet" in answer.text
        (digest,) = set(re.findall(r'name="seen" value="(\w+)"', answer.text))
        answer = visitor.post(path, action="save", seen=digest, **fields)
    return answer.status == 303


def break_verdict(connection, _handle: str) -> None:
    (document,) = connection.execute(tables.verdicts.select()).mappings()
    forged = document["document"].replace('"FAIL"', '"PASS"')
    connection.execute(update(tables.verdicts).values(document=forged))


def move_time(connection, handle: str) -> None:
    table = tables.submissions
    moved = update(table).where(table.c.handle == handle).values(received=table.c.received - 3600)
    connection.execute(moved)


def remove_verdict(connection, _handle: str) -> None:
    connection.execute(tables.verdicts.delete())


@pytest.mark.parametrize("alter", [break_verdict, move_time, remove_verdict])
def test_an_altered_record_is_loud_in_export_status_and_room(room, alter, tmp_path):
    person, token = room.join("Ada")
    handle = measured(room, token, Outcome.FAIL)
    assert run(room, "status").exit_code == 0
    with room.cohort.database.writing() as connection:
        alter(connection, handle)

    status = run(room, "status")
    assert status.exit_code == ExitCode.ERROR
    assert f"ALTERED: Ada's submission {handle} in slow" in status.output
    assert json.loads(run(room, "status", "--json").output)["altered"][0]["submission"] == handle

    refused = run(room, "export", "canvas", "-o", str(tmp_path / "grades.csv"))
    assert isinstance(refused.exception, MachineError)
    assert handle in refused.exception.message
    assert not (tmp_path / "grades.csv").exists()
    target = tmp_path / "all.csv"
    assert run(room, "export", "csv", "--allow-altered", "-o", str(target)).exit_code == 0
    rows = list(csv.DictReader(io.StringIO(target.read_text("utf-8-sig"))))
    (row,) = [row for row in rows if row["submission"] == handle]
    assert (row["outcome"], row["score"], row["altered"]) == ("ALTERED", "0", handle)

    with pages(room) as (instructor, visit, _):
        for path in ("/room", "/grades", f"/people/{person.handle}/grades/slow"):
            assert "not what this cohort signed" in instructor.get(path).text, path
        assert "This record was altered" in instructor.get(f"/submissions/{handle}").text
        page = instructor.get("/export/canvas")
        assert (page.status, handle in page.text) == (409, True)
        assert instructor.get("/export/canvas?altered=include").status == 200
        assert "This record was altered" in visit(person).get("/me").text


def test_what_mends_an_altered_record_is_said_and_so_is_the_receipts_time(sqlite_room):
    room = sqlite_room
    person, token = room.join("Ada")
    handle = measured(room, token, Outcome.FAIL)
    true = iso(room.clock())
    with room.cohort.database.writing() as connection:
        break_verdict(connection, handle)
    assert f"Measure it again (`lab cohort regrade {handle}`)" in run(room, "status").output
    with room.cohort.database.writing() as connection:
        move_time(connection, handle)
    assert "measuring it again does not mend this" in run(room, "status").output
    with pages(room) as (instructor, visit, port):
        page = instructor.get(f"/people/{person.handle}/grades/slow").text
        assert f"its time: {iso(room.clock() - 3600)} in the database, {true} on its rec" in page
        assert "as its signed receipt says" not in page
        assert "the record was altered" in visit(person).get("/me").text
        labs = Visitor(port, token=token).get("/api/me").json()["labs"]
    (slow,) = [lab for lab in labs if lab["slug"] == "slow"]
    assert (slow["points"], slow["reason"]) == (0.0, "the record was altered, so it scores nothing")


def test_an_older_round_does_not_come_back_into_force(room):
    _, token = room.join("Ada")
    handle = measured(room, token)
    assert "Queued again: 1 submission." in run(room, "regrade", handle).output
    lease = claim(room)
    finish(room, lease, signed(room, lease, outcome=Outcome.FAIL, reason="correct but slow"))
    verdicts = tables.verdicts
    with room.cohort.database.writing() as connection:
        connection.execute(verdicts.delete().where(verdicts.c.round == 1))
    assert "its latest verdict is gone" in run(room, "status").output


def test_an_override_needs_a_comment_and_can_be_withdrawn(room):
    person, token = room.join("Ada")
    measured(room, token, Outcome.FAIL)
    with pages(room) as (instructor, visit, port):
        path = f"/people/{person.handle}/grades/slow"
        assert instructor.post(path, points="90", comment=" ").status == 400
        assert instructor.post(path, points="-1", comment="no").status == 400
        assert "slow is worth 100 points" in instructor.post(path, points="400", comment="no").text
        assert instructor.post(path, points="", comment="no").status == 400
        assert instructor.post(path, points="87,5", comment="Shown at the board").status == 303
        assert "87.5†" in instructor.get("/grades").text
        mine = visit(person).get("/me").text
        assert "87.5 of 100" in mine
        assert "Shown at the board" in mine
        labs = Visitor(port, token=token).get("/api/me").json()["labs"]
        assert [(lab["points"], lab["comment"]) for lab in labs if lab["slug"] == "slow"] == [
            (87.5, "Shown at the board")
        ]
        override = grades(room)[person.handle, "slow"].override
        assert (override.points, override.author) == (87.5, "Instructor")
        moodle = list(csv.DictReader(io.StringIO(exported(room, "moodle"))))
        assert moodle[0]["slow feedback"] == "Shown at the board"
        assert instructor.post(path, action="withdraw").status == 303
        page = instructor.get(path).text
        assert page.index("withdrew the override of slow") < page.index("Shown at the board")
    assert grades(room)[person.handle, "slow"].score == 50.0
    log = [row.text for row in room.rows(tables.events) if row.kind == "graded"]
    assert log[0] == "Instructor set slow to 87.5 points: Shown at the board"
    assert "withdrew" in log[1]


def test_rules_are_previewed_over_the_room_before_they_count(room):
    (_, ada), (bob_person, bob) = room.join("Ada"), room.join("Bob")
    measured(room, ada)
    measured(room, bob)
    room.clock.now += 60
    measured(room, bob, Outcome.FAIL)
    fields = {"scoring": "latest", "per_day": "10", "most": "50", "grace_min": "10"}
    fields |= {"points-slow": "30", "points-wrong": "70"}
    with pages(room) as (instructor, _, _):
        page = instructor.post("/grades/rules", action="preview", **fields).text
        assert changed(page) == {"Ada": (100.0, 30.0), "Bob": (100.0, 0.0)}
        assert grades(room)[bob_person.handle, "slow"].score == 100.0
        assert saved(instructor, "/grades/rules", **fields)
        assert instructor.post("/grades/rules", **{**fields, "per_day": "101"}).status == 400
        assert instructor.post("/grades/rules", **{**fields, "points-slow": "x"}).status == 400
    grade = grades(room)[bob_person.handle, "slow"]
    assert (grade.score, grade.max_score, grade.outcome) == (0.0, 30.0, "FAIL")


def test_a_learner_sees_points_and_what_being_late_has_cost(room):
    person, token = room.join("Ada")
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=room.clock() - 1.5 * DAY_S)
    measured(room, token)
    with pages(room) as (_, visit, port):
        page = visit(person).get("/me").text
        assert "80.0 of 100" in page
        assert "20.0 off: 36.0 h late" in page
        with room.cohort.database.writing() as connection:
            set_rules(connection, "slow", 0.0, feedback_at=4e9)
        labs = Visitor(port, token=token).get("/api/me").json()["labs"]
        assert [lab["points"] for lab in labs if lab["slug"] == "slow"] == [None]


def test_partial_credit_is_a_sum_on_the_page_and_grace_is_named(sqlite_room):
    person, token = sqlite_room.join("Ada")
    with sqlite_room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=sqlite_room.clock() - 294)
    measured(sqlite_room, token, Outcome.FAIL)
    with pages(sqlite_room) as (instructor, _, _):
        page = instructor.get(f"/people/{person.handle}/grades/slow").text
    assert "5 minutes late, within the 10 minutes of grace" in page
    assert "Partial credit: 0.5 of 1 earned, of 100.0 points" in page
    rows = re.findall(r'<th scope="row">(.+?)</th><td>(.+?)</td>.*?>([^>]+)</td></tr>', page)
    assert rows == [
        ("right-answers", "correctness", "does not count"),
        ("speedup", "target", "0.5"),
    ]


def test_every_figure_follows_from_a_signed_verdict_in_the_export_of_evidence(room, tmp_path):
    person, token = room.join("Ada")
    handle = measured(room, token)
    with room.cohort.database.reading() as connection:
        data = export_grades(connection, room.cohort, EXPORTS["evidence"])
    archive = zipfile.ZipFile(io.BytesIO(data))
    rows = csv.DictReader(io.StringIO(archive.read("grades.csv").decode("utf-8-sig")))
    (row,) = [row for row in rows if row["submission"]]
    document = archive.read(f"verdicts/{handle}.json")
    assert row["verdict_sha256"] == hashlib.sha256(document).hexdigest()
    assert verify_bytes(document, room.cohort.key().public_key()).ok
    assert archive.read("cohort.pem.pub").decode() == room.cohort.public_key
    archive.extractall(tmp_path)
    words = ["verify", str(tmp_path / "verdicts" / f"{handle}.json")]
    words += ["--key", str(tmp_path / "cohort.pem.pub"), "--learner"]
    assert CliRunner().invoke(app, [*words, row["handle"]]).exit_code == 0
    by_name = CliRunner().invoke(app, [*words, person.name])
    assert by_name.exit_code == ExitCode.FAIL
    assert "--learner takes a handle" in " ".join(by_name.output.split())
    receipt = json.loads(archive.read(f"receipts/{handle}.json"))
    assert receipt["received_at"] == row["received"]
    with pages(room) as (instructor, _, _):
        assert instructor.get(f"/submissions/{handle}/verdict").body == document


def test_an_instructor_sees_how_like_the_reference_work_is(room):
    _, token = room.join("Ada")
    reference = (find_lab("slow").solution / "work.py").read_text()
    copied = reference.replace("values", "numbers") + "\n# all mine\n"
    handles = [room.submit(token, text).receipt.submission for text in (copied, "# right\n")]
    with pages(room) as (instructor, _, _):
        texts = [instructor.get(f"/submissions/{handle}").text for handle in handles]
        assert "is 100% like the reference solution" in texts[0]
        assert "is 0% like the reference solution" in texts[1]


def test_weights_are_the_instructors(room):
    person, token = room.join("Ada")
    measured(room, token, Outcome.FAIL)
    fields = {"partial_credit": "yes", "weight-target": "0", "points-slow": "100"}
    with pages(room) as (instructor, _, _):
        assert saved(instructor, "/grades/rules", **fields)
        assert grades(room)[person.handle, "slow"].score == 0.0
        why = instructor.get(f"/people/{person.handle}/grades/slow").text
        assert "better than the shipped code in nothing that has a weight" in why
        page = instructor.get("/grades/rules").text
        assert 'name="weight-target" inputmode="decimal" size="6" value="0"' in page
        assert 'name="weight-mechanism" inputmode="decimal" size="6" value="1"' in page


def test_the_references_code_earns_nothing_and_the_page_says_so(room):
    person, token = room.join("Ada")
    room.submit(token)
    lease = claim(room)
    finish(room, lease, signed(room, lease, diagnosis=Standing(named=True, copied=True)))
    grade = grades(room)[person.handle, "slow"]
    assert (grade.score, grade.outcome) == (0.0, "PASS")
    with pages(room) as (instructor, _, _):
        why = instructor.get(f"/people/{person.handle}/grades/slow").text
        assert "none: the code is the reference solution" in why
    (row,) = [
        each for each in csv.DictReader(io.StringIO(exported(room, "csv"))) if each["outcome"]
    ]
    assert row["reason"] == "none: the code is the reference solution's"
    assert row["handle"] == person.handle


def test_trying_again_what_is_passed_makes_nobody_stuck(sqlite_room):
    room = sqlite_room
    _, token = room.join("Ada")
    measured(room, token)
    for _ in range(STUCK_FAILED):
        measured(room, token, Outcome.FAIL)
    judge = verdict_reader_of(room.cohort.public_key)
    with room.cohort.database.reading() as connection:
        (row,) = load_room(connection, judge, room.clock()).rows
    assert (row.passed, row.failed, row.stuck) == (1, 0, False)
