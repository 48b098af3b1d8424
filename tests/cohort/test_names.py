"""A lab has one name, the learner's: older names are accepted everywhere and printed nowhere."""

from __future__ import annotations

import time

import msgspec
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from bottleneck_lab import catalog
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.grading.exports import EXPORTS, export_grades
from bottleneck_lab.cohort.grading.rules import load_rules, set_rules
from bottleneck_lab.cohort.members.joining import join_codes
from bottleneck_lab.cohort.members.membership import Membership, remember
from bottleneck_lab.cohort.members.people import the_instructor
from bottleneck_lab.cohort.protocol import Join, Receipt
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.receipts import sign_receipt, verify_receipt
from bottleneck_lab.cohort.view.verdicts import VerdictReader
from bottleneck_lab.grading.attest import sign

from ..processes import PATIENCE_S
from .conftest import opened_room
from .fake_job import verdict_of
from .serving import Visitor, log_in, serving
from .test_leases import claim, finish
from .test_migrations import downgrade

OLD, NEW = "slow-loop", "slow"
"""Older and present name of a lab of the miniature course, in these tests."""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A cohort on the course as it is shipped."""
    monkeypatch.delenv("BOTTLENECK_LAB_CONTENT")
    catalog.load_labs.cache_clear()
    with opened_room(tmp_path / "cohort") as room:
        room.cohort.database.clock = room.clock = time.time
        yield room


@pytest.fixture
def renamed(monkeypatch):
    """Give the lab of the miniature course an older name."""
    labs = catalog.load_labs()
    spec = msgspec.structs.replace(labs[NEW].spec, aliases=[OLD])
    monkeypatch.setitem(labs, NEW, msgspec.structs.replace(labs[NEW], spec=spec))


def aliases() -> dict[str, str]:
    """Every older name in the course, with the name of today."""
    return {old: lab.slug for lab in catalog.load_labs().values() for old in lab.spec.aliases}


def test_learners_see_only_the_names_of_today(course):
    with course.cohort.database.writing() as connection:
        code, instructor = join_codes(connection)[0], the_instructor(connection, 0.0)
    with serving(course.cohort.folder) as (port, _):
        url = f"http://127.0.0.1:{port}"
        joined = Client(url).join(Join(code, "Ada"))
        remember(Membership(url, joined))
        output = CliRunner().invoke(app, ["status"]).output
        room = log_in(course, port, instructor).get("/room").text
        mine = log_in(course, port, instructor).get("/me").text
    assert len(aliases()) >= 5
    for old, new in aliases().items():
        assert new in output
        assert f">{new}<" in room
        for text in (output, room, mine):
            assert old not in text


def test_an_older_client_may_use_the_older_name(room, renamed):
    _, token = room.join()
    with room.cohort.database.writing() as connection:
        set_rules(connection, NEW, 0.0, budget=1)
    submission = room.submission()
    accepted = room.intake.offer(token, msgspec.structs.replace(submission, lab=OLD)).result(
        PATIENCE_S
    )
    assert accepted.receipt.lab == NEW
    assert [row.lab for row in room.rows(tables.submissions)] == [NEW]
    room.clock.now += 60
    again = room.intake.offer(token, msgspec.structs.replace(submission, lab=OLD)).result(
        PATIENCE_S
    )
    assert again.receipt == accepted.receipt
    with pytest.raises(RefusedError, match=f"for '{NEW}'") as refused:
        room.intake.offer(token, room.submission(lab=OLD)).result(PATIENCE_S)
    assert refused.value.code == "budget-spent"
    with serving(room.cohort.folder) as (port, _):
        hints = Visitor(port, token=token).get(f"/api/labs/{OLD}/help")
    assert hints.status == 200


def age(room, receipt: Receipt, document: str) -> None:
    """Put the cohort's database back to the version before names were changed, under old names."""
    old = sign_receipt(msgspec.structs.replace(receipt, lab=OLD), room.cohort.key())
    with room.cohort.database.writing() as connection:
        downgrade(connection, "0002")
        for table, column in (("labs", "slug"), ("submissions", "lab"), ("extensions", "lab")):
            connection.execute(sa.text(f"UPDATE {table} SET {column} = '{OLD}'"))
        connection.execute(
            sa.text("UPDATE submissions SET receipt = :receipt"),
            {"receipt": msgspec.json.encode(old).decode()},
        )
        connection.execute(sa.text("UPDATE verdicts SET document = :text"), {"text": document})
        connection.execute(sa.text(f"UPDATE events SET text = '{OLD}' WHERE text = '{NEW}'"))


def test_a_cohort_of_an_older_version_has_the_names_of_today_once_opened(
    room, renamed, tmp_path, database_url
):
    person, token = room.join()
    with room.cohort.database.writing() as connection:
        set_rules(connection, NEW, 0.0, points=40.0, due=1.0)
        connection.execute(
            tables.extensions.insert().values(person=person.id, lab=NEW, due=5.0, extra_budget=1)
        )
    accepted = room.submit(token)
    lease = claim(room)
    finish(room, lease)
    lab = catalog.find_lab(NEW)
    verdict = msgspec.structs.replace(
        verdict_of(lab, lab.path, "cpu"), binding=lease.binding, lab=OLD
    )
    document = msgspec.json.encode(sign(verdict, room.cohort.key())).decode()
    age(room, accepted.receipt, document)

    with open_cohort(room.cohort.folder) as cohort, cohort.database.reading() as connection:
        assert load_rules(connection, NEW, person.id).points == 40.0
        assert load_rules(connection, NEW, person.id).due == 5.0
        judge = VerdictReader(cohort.public_key)
        (one,) = judge.latest(connection)
        assert (one.lab, one.problem, one.passed) == (NEW, None, True)
        for export in EXPORTS.values():
            assert OLD.encode() not in export_grades(connection, cohort, export)
    assert OLD not in {row.text for row in room.rows(tables.events)}
    output = (
        CliRunner()
        .invoke(app, ["cohort", "regrade", OLD, "--folder", str(room.cohort.folder)])
        .output
    )
    assert "Queued again: 1 submission." in output

    file = tmp_path / "receipt.json"
    (row,) = room.rows(tables.submissions)
    file.write_text(row.receipt)
    sentence = verify_receipt(file, room.cohort.key().public_key()).sentence
    assert f"'{NEW}'" in sentence
    assert OLD not in sentence


def test_regrade_refuses_a_name_that_is_neither_lab_nor_submission(sqlite_room):
    folder = str(sqlite_room.cohort.folder)
    done = CliRunner().invoke(app, ["cohort", "regrade", "sloww", "--folder", folder])
    assert "neither a lab nor a measured submission" in str(done.exception)
