"""Grades that can be trusted: rules with a preview, overrides, evidence, and loud alterations."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import time
import zipfile
from contextlib import contextmanager
from datetime import datetime

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from sqlalchemy import update
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.grading.evidence import verify_evidence
from bottleneck_lab.cohort.grading.exports import EXPORTS, export_grades
from bottleneck_lab.cohort.grading.grades import DAY_S, override_grade
from bottleneck_lab.cohort.grading.rules import extend, set_rules
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.members.changes import merge
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.room import STUCK_FAILED, STUCK_MIN, load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.cohort.workshop import choose_labs
from bottleneck_lab.errors import ExitCode, MachineError, UsageError
from bottleneck_lab.grading.attest import verify_bytes
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Standing

from .fake_job import verdict_of
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
    pairs = {name: re.findall(r"([\d.]+) → ([\d.]+)", cells)[:1] for name, cells in rows}
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
        assert "feedback is released" not in instructor.get(path).text
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
        plain = list(csv.DictReader(io.StringIO(exported(room, "csv"))))
        assert [row["reason"] for row in plain if row["lab"] == "slow"] == ["overridden"]
        assert instructor.post(path, action="withdraw").status == 303
        page = instructor.get(path).text
        assert page.index("withdrew the override of slow") < page.index("Shown at the board")
    assert grades(room)[person.handle, "slow"].score == 50.0
    log = [row.text for row in room.rows(tables.events) if row.kind == "graded"]
    assert log[0] == "Instructor set slow to 87.5 points: Shown at the board"
    assert "withdrew" in log[1]


def test_a_lab_made_worth_less_than_an_override_gives_no_more_than_it_is_worth(sqlite_room):
    room = sqlite_room
    person, token = room.join("Ada")
    measured(room, token, Outcome.FAIL)
    with pages(room) as (instructor, _, _):
        path = f"/people/{person.handle}/grades/slow"
        assert instructor.post(path, points="87.5", comment="Shown at the board").status == 303
        fields = {"points-slow": "40", "points-wrong": "70"}
        page = instructor.post("/grades/rules", action="preview", **fields).text
        assert changed(page) == {"Ada": (87.5, 40.0)}
        words = "overridden: no more than the lab is worth"
        assert f"87.5 → 40.0<br><small>{words}" in page
        assert saved(instructor, "/grades/rules", **fields)
        assert "worth less now than when the points were set" in instructor.get(path).text
    with room.cohort.database.reading() as connection:
        data = export_grades(connection, room.cohort, EXPORTS["evidence"])
    key = load_pem_public_key(room.cohort.public_key.encode())
    assert verify_evidence(data, key).ok
    assert grades(room)[person.handle, "slow"].score == 40.0


def test_points_are_one_figure_on_pages_in_the_terminal_and_in_exports(sqlite_room):
    room = sqlite_room
    person, token = room.join("Ada")
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, points=67.333, due=room.clock() - 1.5 * DAY_S)
    measured(room, token, Outcome.FAIL)
    score = grades(room)[person.handle, "slow"].score
    assert score == pytest.approx(67.333 / 2 * 0.8, abs=0.01)
    assert score == round(score, 2)
    with pages(room) as (instructor, visit, port):
        assert f">{score}*" in instructor.get("/grades").text
        assert f"{score} of 67.333</a>" in visit(person).get("/me").text
        (mine,) = Visitor(port, token=token).get("/api/me").json()["labs"][:1]
        assert mine["points"] == score
    (line,) = list(csv.DictReader(io.StringIO(exported(room, "csv"))))[:1]
    assert float(line["score"]) == score


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
        assert "20.0 off: 1 d 12 h 6 s late" in page
        with room.cohort.database.writing() as connection:
            set_rules(connection, "slow", 0.0, feedback_at=4e9)
        labs = Visitor(port, token=token).get("/api/me").json()["labs"]
        assert [lab["points"] for lab in labs if lab["slug"] == "slow"] == [None]


def test_partial_credit_is_a_sum_on_the_page_and_grace_is_named(sqlite_room):
    person, token = sqlite_room.join("Ada")
    with sqlite_room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=sqlite_room.clock() - 294)
    measured(sqlite_room, token, Outcome.FAIL)
    with pages(sqlite_room) as (instructor, visit, _):
        page = instructor.get(f"/people/{person.handle}/grades/slow").text
        assert "5 min late, within the 10 minutes of grace" in page
        mine = visit(person).get("/me/labs/slow/grade").text
    assert "What earned 50.0 of 100.0 points" in page
    for text in (page, mine):
        rows = re.findall(r'row">([\w-]+)</th><td[^>]+Points">([^<]+)</td><td class="cell', text)
        assert rows == [("right-answers", "does not count"), ("speedup", "50.0 of 100.0")]
        assert re.search(r"That is 50% of the way from the shipped code's [\d.]+x to [\d.]+x", text)


def test_of_equal_points_the_pass_counts_and_its_reason_stands_in_the_sum(sqlite_room):
    room = sqlite_room
    ada, token = room.join("Ada")
    lab, handles = find_lab("slow"), []
    for outcome in (Outcome.FAIL, Outcome.PASS, Outcome.PASS):
        handles.append(room.submit(token).receipt.submission)
        lease = claim(room)
        judged = verdict_of(lab, lab.path, lease.device, outcome, value=3.1)
        criteria = list(judged.criteria)
        if outcome is Outcome.PASS:  # an answer corrected after a report costs half
            criteria.append(CriterionResult("cause", "diagnosis", True, "", corrected=True))
        changes = {"outcome": outcome, "reason": judged.reason, "criteria": criteria}
        finish(room, lease, signed(room, lease, **changes))
    reason = "all but answers that were corrected after a report had shown the figure"
    with pages(room) as (instructor, _, port):
        page = instructor.get(f"/people/{ada.handle}/grades/slow").text
        assert f'<br>{reason}</td><td class="number">50.0</td>' in page
        counting = re.search(
            r'<tr class="total"><th scope="row"><a href="/submissions/(\w+)"', page
        )
        assert counting[1] == handles[1]
        labs = Visitor(port, token=token).get("/api/me").json()["labs"]
    assert (labs[0]["points"], labs[0]["reason"]) == (50.0, reason)


def test_exports_and_grades_say_what_is_not_measured_yet(sqlite_room, tmp_path):
    room = sqlite_room
    _, token = room.join("Ada")
    measured(room, token)
    export = ("export", "csv", "-o", str(tmp_path / "grades.csv"), "--replace")
    assert "not measured" not in run(room, *export).output
    room.submit(token)
    sentence = "1 submission is not measured yet"
    assert sentence in run(room, *export).output
    with pages(room) as (instructor, _, _):
        assert sentence in instructor.get("/grades").text


def test_a_criterion_has_the_same_points_whatever_else_is_earned(sqlite_room):
    """Each of seven criteria has 14.29 points, whoever earns what; the rest has its own line."""
    room, lab = sqlite_room, find_lab("slow")
    judged = verdict_of(lab, lab.path, "cpu", Outcome.FAIL, value=3.1)
    expected = {6: ("92.86", "−0.02"), 2: ("35.71", "−0.01"), 0: ("7.14", "")}
    learners = {}
    for right in expected:
        learners[right], token = room.join(f"Ada {right}")
        room.submit(token)
        answers = [CriterionResult(f"q{n}", "diagnosis", n < right, "") for n in range(6)]
        changes = {"outcome": Outcome.FAIL, "reason": judged.reason}
        lease = claim(room)
        finish(room, lease, signed(room, lease, criteria=[*judged.criteria, *answers], **changes))
    with pages(room) as (instructor, _, _):
        for right, (raw, rounding) in expected.items():
            page = instructor.get(f"/people/{learners[right].handle}/grades/slow").text
            assert f"What earned {raw} of 100.0 points" in page
            shown = dict(re.findall(r'row">([\w-]+)</th><td[^>]+Points">([^<]+)</td>', page))
            assert shown.pop("right-answers") == "does not count"
            assert shown.pop("Rounding", "") == rounding
            assert shown.pop("speedup") == "7.14 of 14.29"
            figures = ["14.29 of 14.29"] * right + ["0.0 of 14.29"] * (6 - right)
            assert list(shown.values()) == figures


def test_points_lead_to_their_submission_and_back_also_of_somebody_merged(sqlite_room):
    room = sqlite_room
    (ada, _), (twin, second) = room.join("Ada"), room.join("Ada L.")
    handle = measured(room, second)
    due = room.clock() - 2 * DAY_S
    with room.cohort.database.writing() as connection:
        merge(connection, twin, ada, 0.0)
        set_rules(connection, "slow", 0.0, due=due)
        extend(connection, ada.id, "slow", due + 3 * DAY_S, 0, 0.0)
    with pages(room) as (instructor, _, _):
        table = instructor.get("/grades").text
        assert f'<a href="/people/{ada.handle}" aria-label="Ada, all labs: 100.0">' in table
        for person in (ada, twin):
            page = instructor.get(f"/people/{person.handle}/grades/slow").text
            assert "slow of <a" in page
            assert f'by the <a href="/submissions/{handle}">submission of' in page
            assert "by an extension (for everybody else" in page
        path = f"/people/{twin.handle}/grades/slow"
        assert (
            f'href="{path}">Points of Ada L. in slow</a>'
            in instructor.get(f"/submissions/{handle}").text
        )
        assert instructor.post(path, points="50", comment="As agreed").status == 303
    assert grades(room)[ada.handle, "slow"].score == 50.0


def handed_in_as_shipped(room, *answers: CriterionResult):
    """Return a learner, with the token, whose shipped code fails beside these answers."""
    person, token = room.join("Ada")
    room.submit(token)
    lease = claim(room)
    lab = find_lab(lease.lab)
    shipped = verdict_of(lab, lab.path, lease.device, Outcome.FAIL, value=0.9)
    criteria = [*shipped.criteria, *answers]
    changes = {"outcome": Outcome.FAIL, "reason": shipped.reason, "criteria": criteria}
    finish(room, lease, signed(room, lease, **changes))
    return person, token


def test_nothing_earned_is_explained_by_criterion_too(sqlite_room):
    room = sqlite_room
    person, _ = handed_in_as_shipped(room)
    with pages(room) as (instructor, _, _):
        page = instructor.get(f"/people/{person.handle}/grades/slow").text
    rows = re.findall(r'row">([\w-]+)</th><td[^>]+Points">([^<]+)</td><td class="cell', page)
    assert rows == [("right-answers", "does not count"), ("speedup", "0.0 of 100.0")]


def test_right_answers_that_earn_nothing_are_told_the_rule_on_every_surface(sqlite_room):
    room = sqlite_room
    right = CriterionResult("cause", "diagnosis", True, "Right.")
    person, token = handed_in_as_shipped(room, right)
    rule = "answers alone earn nothing; credit begins where the work beats the shipped code"
    with pages(room) as (instructor, _, port):
        path = f"/people/{person.handle}/grades/slow"
        assert f"none: {rule}" in instructor.get(path).text
        labs = Visitor(port, token=token).get("/api/me").json()["labs"]
        assert labs[0]["reason"] == f"none: {rule}", "as `lab status` prints it"
        assert rule in exported(room, "csv")
        fields = {"partial_credit": "yes", "answers_alone": "yes"}
        assert saved(instructor, "/grades/rules", **fields)
        assert "in part, for right answers, which count alone here" in instructor.get(path).text


def test_one_page_says_for_learner_and_instructor_how_points_add_up(sqlite_room):
    room = sqlite_room
    (ada, token), (bob, _) = room.join("Ada"), room.join("Bob")
    handles = [measured(room, token, outcome) for outcome in (Outcome.FAIL, Outcome.PASS)]
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=room.clock() - 1.5 * DAY_S, points=80.0)
    with pages(room) as (instructor, visit, _):
        page = instructor.get(f"/people/{ada.handle}/grades/slow").text
        mine = visit(ada).get("/me/labs/slow/grade").text
        for text, path in ((page, "/submissions"), (mine, "/me/submissions")):
            steps = re.findall(r'row">([^<]+)</th><td.*?<td class="number">([^<]+)</td>', text)
            assert steps == [
                ("The lab is worth", "80.0"),
                ("Earned", "80.0"),
                ("Lateness", "−16.0"),
                ("Points by the rules", "64.0"),
            ]
            assert "which costs 20%: 2 days begun at 10% each, at most 50%" in text
            assert [f'href="{path}/{one}"' in text for one in handles] == [True, True]
            assert text.count("</a> counts</th>") == 1
        assert f'href="/submissions/{handles[0]}"' not in mine
        none = visit(bob).get("/me/labs/slow/grade").text
        assert "nothing has been measured so far" in none
        with room.cohort.database.writing() as connection:
            set_rules(connection, "slow", 0.0, feedback_at=4e9)
        assert visit(ada).get("/me/labs/slow/grade").status == 403


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


def evidence_of(room) -> bytes:
    with room.cohort.database.reading() as connection:
        return export_grades(connection, room.cohort, EXPORTS["evidence"])


def recomputed(archive: zipfile.ZipFile) -> dict[tuple[str, str], float]:
    """Return every score, by learner and lab, by arithmetic on the export's files alone."""
    signed_grades = json.loads(archive.read("grades.json"))
    rules, scores = signed_grades["rules"], {}
    for figure in signed_grades["figures"]:
        earned = [0.0]
        for handle in figure["submissions"]:
            verdict = json.loads(archive.read(f"verdicts/{handle}.json"))
            receipt = json.loads(archive.read(f"receipts/{handle}.json"))
            assert receipt["submission"] == verdict["binding"]["submission"] == handle
            (target,) = [one for one in verdict["criteria"] if one["kind"] == "target"]
            shipped, goal = signed_grades["labs"][figure["lab"]]["scales"]["cpu"][target["id"]]
            sure = target["value"] if target["low"] is None else target["low"]
            share = 1.0 if target["holds"] else (sure - shipped) / (goal - shipped)
            received, due = (
                datetime.fromisoformat(at) for at in (receipt["received_at"], figure["due"])
            )
            late = (received - due).total_seconds()
            days = math.ceil(late / 86400) if late > rules["late"]["grace_s"] else 0
            kept = 1 - min(rules["late"]["most"], days * rules["late"]["per_day"])
            earned.append(rules["points"][figure["lab"]] * share * kept)
        override = figure["override"]
        scores[figure["learner"], figure["lab"]] = override["points"] if override else max(earned)
    return scores


@pytest.fixture
def graded(sqlite_room):
    """Ada a day late and better at her second try; Bob with more time and then overridden."""
    room = sqlite_room
    (ada, adas), (bob, bobs) = room.join("Ada Łovelace"), room.join("Bob")
    due = room.clock() - 0.5 * DAY_S
    with room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, 0.0)
        for lab in ("slow", "wrong"):
            set_rules(connection, lab, 0.0, due=due, points=80.0)
        choose_labs(connection, ["slow", "wrong"], 0.0)
        extend(connection, bob.id, "slow", room.clock() + DAY_S, 0, 0.0)
    for token, outcome in ((adas, Outcome.FAIL), (adas, Outcome.PASS), (bobs, Outcome.FAIL)):
        measured(room, token, outcome)
    with room.cohort.database.writing() as connection:
        override_grade(connection, bob, "wrong", 12.5, "At the board", instructor, 0.0)
    return room, ada, bob


def test_an_export_of_evidence_is_enough_to_compute_every_figure_again(graded, tmp_path):
    room, ada, bob = graded
    data = evidence_of(room)
    archive = zipfile.ZipFile(io.BytesIO(data))
    exported_scores = {
        (row["handle"], row["lab"]): float(row["score"])
        for row in csv.DictReader(io.StringIO(archive.read("grades.csv").decode("utf-8-sig")))
    }
    assert exported_scores == {
        (ada.handle, "slow"): 72.0,
        (bob.handle, "slow"): 40.0,
        (ada.handle, "wrong"): 0.0,
        (bob.handle, "wrong"): 12.5,
    }
    assert recomputed(archive) == pytest.approx(exported_scores)
    (tmp_path / "evidence.zip").write_bytes(data)
    (tmp_path / "key.pub").write_text(room.cohort.public_key)
    words = ["verify", str(tmp_path / "evidence.zip"), "--key", str(tmp_path / "key.pub")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "4 figures, computed again from 3 signed verdicts" in " ".join(done.output.split())
    refused = CliRunner().invoke(app, [*words, "--learner", ada.handle])
    assert isinstance(refused.exception, UsageError), "it would be ignored"


def change_json(name: str, *path: str | int, value):
    """Return a change of one value in a JSON file of an archive."""

    def change(files: dict[str, bytes]) -> None:
        name_ = next(each for each in files if each.startswith(name))
        whole = part = json.loads(files[name_])
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value
        files[name_] = json.dumps(whole).encode()

    return change


def swap_verdicts(files: dict[str, bytes]) -> None:
    first, second = [name for name in files if name.startswith("verdicts/")][:2]
    files[first], files[second] = files[second], files[first]


def raise_a_score(files: dict[str, bytes]) -> None:
    files["grades.csv"] = files["grades.csv"].replace(b",72,", b",80,")


def remove(kind: str):
    """Return a change that takes one file of a kind out of an archive."""
    return lambda files: files.pop(next(name for name in files if name.startswith(kind)))


def add_verdict(files: dict[str, bytes]) -> None:
    files["verdicts/more.json"] = b"{}"


def break_receipt(files: dict[str, bytes]) -> None:
    files[next(name for name in files if name.startswith("receipts/"))] = b"[]"


def break_table(files: dict[str, bytes]) -> None:
    files["grades.csv"] = b"\xff" + files["grades.csv"].replace(b",72,", b",many,")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_json("grades.json", "rules", "late", "per_day", value=0.0), "is not what key"),
        (change_json("grades.json", "figures", 0, "due", value=None), "is not what key"),
        (change_json("grades.json", "more", value=1), "is not what key"),
        (change_json("verdicts/", "outcome", value="PASS"), "content was changed"),
        (change_json("receipts/", "received_at", value="2020-01-01T00:00:00Z"), "not what key"),
        (swap_verdicts, "do not belong"),
        (raise_a_score, "grades.csv and grades.json differ in Ada"),
        (change_json("grades.json", "labs", value=1), "is not what key"),
        (change_json("grades.json", "signature", value=1), "is not what key"),
        (remove("verdicts/"), "The verdict of Ada Łovelace's submission"),
        (remove("receipts/"), "The receipt of Ada Łovelace's submission"),
        (remove("grades.csv"), "grades.csv is missing"),
        (remove("cohort.pem.pub"), "cohort.pem.pub is missing"),
        (add_verdict, "verdicts/more.json is in the file, but no figure names it"),
        (break_receipt, "its receipt is not one"),
        (break_table, "grades.csv and grades.json differ in Ada"),
    ],
    ids=[
        *("rule", "due", "more", "verdict", "receipt", "swapped", "table", "labs", "signature"),
        *("no verdict", "no receipt", "no table", "no key", "extra", "broken", "broken table"),
    ],
)
def test_whatever_is_changed_in_an_export_of_evidence_is_noticed(graded, change, problem):
    room, *_ = graded
    with zipfile.ZipFile(io.BytesIO(evidence_of(room))) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    result = verify_evidence(packed.getvalue(), room.cohort.key().public_key())
    assert not result.ok
    assert problem in result.sentence


def test_a_verdict_missing_in_an_export_of_evidence_fails_like_an_altered_one(graded, tmp_path):
    room, *_ = graded
    target = tmp_path / "evidence.zip"
    with zipfile.ZipFile(io.BytesIO(evidence_of(room))) as archive:
        missing = next(name for name in archive.namelist() if name.startswith("verdicts/"))
        with zipfile.ZipFile(target, "w") as rest:
            for name in set(archive.namelist()) - {missing}:
                rest.writestr(name, archive.read(name))
    (tmp_path / "key.pub").write_text(room.cohort.public_key)
    words = ["verify", str(target), "--key", str(tmp_path / "key.pub")]
    done = CliRunner().invoke(app, words)
    handle = missing.removeprefix("verdicts/").removesuffix(".json")
    assert done.exit_code == ExitCode.FAIL
    assert " ".join(done.output.split()).endswith(
        f"✗ The verdict of Ada Łovelace's submission {handle} to slow is missing."
    )


def test_a_damaged_file_in_an_export_of_evidence_is_named(graded):
    room, *_ = graded
    packed = io.BytesIO()
    archive = zipfile.ZipFile(io.BytesIO(evidence_of(room)))
    with zipfile.ZipFile(packed, "w") as stored:
        for name in archive.namelist():
            stored.writestr(name, archive.read(name))
    data = packed.getvalue().replace(b'"received_at"', b'"received_ab"', 1)
    result = verify_evidence(data, room.cohort.key().public_key())
    assert not result.ok
    assert re.fullmatch(r"The receipt of .* is damaged\.", result.sentence)


def test_what_is_no_evidence_is_refused_in_words(graded, tmp_path):
    room, *_ = graded
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        archive.writestr("notes.txt", "nothing")
    with pytest.raises(UsageError, match="not an export of evidence"):
        verify_evidence((tmp_path / "files.zip").read_bytes(), room.cohort.key().public_key())


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
        assert "<li>slow: target 0%, diagnosis 100%</li>" in page
        assert "weights: correctness 1, target 0, mechanism 1, diagnosis 1" in page, "also folded"
        assert "together 500: slow 100, " in page
        assert "anybody with the code joins" in instructor.get("/settings").text


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


def test_a_first_submission_is_progress_and_twenty_idle_minutes_after_it_are_not(sqlite_room):
    room = sqlite_room
    _, token = room.join("Ada")
    room.clock.now += 60 * (STUCK_MIN + 1)
    measured(room, token, Outcome.FAIL)
    assert only_row(room).stuck is False, "handed in a moment ago, whenever they joined"
    assert round(only_row(room).idle_min) == 0
    room.clock.now += 60 * (STUCK_MIN + 1)
    assert only_row(room).stuck is True, "nothing since"
    for failed in range(1, STUCK_FAILED + 1):
        measured(room, token, Outcome.FAIL)
        assert only_row(room).failed == failed
    measured(room, token)
    room.clock.now += 60 * (STUCK_MIN + 1)
    assert (only_row(room).failed, only_row(room).stuck) == (0, False)


def only_row(room):
    with room.cohort.database.reading() as connection:
        judge = verdict_reader_of(room.cohort.public_key)
        (row,) = load_room(connection, judge, room.clock()).rows
    return row


def test_trying_again_what_is_passed_makes_nobody_stuck(sqlite_room):
    room = sqlite_room
    _, token = room.join("Ada")
    measured(room, token)
    for _ in range(STUCK_FAILED):
        measured(room, token, Outcome.FAIL)
    row = only_row(room)
    assert (row.passed, row.failed, row.stuck) == (1, 0, False)
