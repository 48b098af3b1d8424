"""Taking in submissions: stored before it is acknowledged, once for each request, and a clear word
for every refusal.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.grading.rules import extend, set_rules
from bottleneck_lab.cohort.members import joining, people, sessions
from bottleneck_lab.cohort.protocol import MAX_FILE_BYTES, Join, content_of
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.blobs import Blobs
from bottleneck_lab.cohort.submissions.intake import Intake
from bottleneck_lab.cohort.submissions.receipts import receipt_problem
from bottleneck_lab.cohort.view.lab import _histogram, load_distribution
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import MachineError

from ..processes import PATIENCE_S
from .test_exports import measured


def test_an_acknowledged_submission_is_stored_and_its_receipt_verifies_offline(room):
    _, ada = room.join()
    submission = room.submission()
    accepted = room.intake.offer(ada, submission).result(PATIENCE_S)
    receipt = accepted.receipt
    assert room.cohort.blobs.get(receipt.content_sha256) == content_of(submission.files)
    assert (accepted.ahead, accepted.wait_s, accepted.left) == (0, None, None)
    key = load_pem_public_key(room.cohort.public_key.encode())
    assert receipt_problem(receipt, key) is None
    for name in ("learner", "submission", "lab", "content_sha256", "received_at", "signature"):
        assert receipt_problem(msgspec.structs.replace(receipt, **{name: "00"}), key) is not None, (
            name
        )


def test_anybody_verifies_a_receipt_with_the_cohorts_public_key(sqlite_room, tmp_path):
    _, ada = sqlite_room.join()
    receipt = sqlite_room.submit(ada).receipt
    file, key = (
        tmp_path / "receipt.json",
        str(sqlite_room.cohort.key_file.with_name("cohort.pem.pub")),
    )
    for name, exit_code, message in (("slow", 0, "genuine receipt"), ("wrong", 1, "not what key")):
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(receipt, lab=name)))
        done = CliRunner().invoke(app, ["verify", str(file), "--key", key])
        assert (done.exit_code, message in done.output) == (exit_code, True)
    file.write_bytes(msgspec.json.encode(receipt))
    for learner, exit_code in ((receipt.learner, 0), ("0" * 12, 1)):
        words = ["verify", str(file), "--key", key, "--learner", learner]
        assert CliRunner().invoke(app, words).exit_code == exit_code


def test_the_same_request_again_is_answered_alike_and_stored_once(room):
    _, ada = room.join()
    submission = room.submission()
    answers = [room.intake.offer(ada, submission) for _ in range(5)]
    assert len({each.result(PATIENCE_S).receipt.submission for each in answers}) == 1
    assert len(room.rows(tables.submissions)) == 1


def test_staff_try_the_queue_before_a_lab_opens_and_count_nowhere(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        change_settings(connection, roster_only=True)
        set_rules(connection, "slow", 0.0, opens=room.clock() + 3600, budget=1)
        instructor = people.the_instructor(connection, room.clock())
        link = sessions.new_link(connection, instructor, room.clock())
        person, token = joining.join(connection, Join(link, "whoever"), room.clock())
        learner = people.add_person(connection, "learner", "Ada", 0.0, student_id="1")
    assert person.id == instructor.id
    _, ada = room.join(student_id="1")
    with pytest.raises(RefusedError, match="opens at"):
        room.submit(ada)
    measured(room, token)
    assert room.submit(token, tool="torch").left is None
    with room.cohort.database.reading() as connection:
        judge = verdict_reader_of(room.cohort.public_key)
        view = load_room(connection, judge, room.clock())
        assert load_distribution(connection, judge, "slow").learners == 0
    assert [(row.handle, row.cells[0].attempts) for row in view.rows] == [(learner.handle, 0)]


def test_a_key_is_its_owners_alone(room):
    (_, ada), (_, bob) = room.join("Ada"), room.join("Bob")
    submission = room.submission()
    receipts = [
        room.intake.offer(token, submission).result(PATIENCE_S).receipt for token in (ada, bob)
    ]
    assert len({receipt.submission for receipt in receipts}) == 2
    with pytest.raises(RefusedError, match="another submission"):
        room.submit(ada, lab="wrong", key=submission.key)


def test_many_at_once_are_all_stored(room):
    tokens = [room.join(f"learner {number}")[1] for number in range(60)]
    submissions = [room.submission(f"# right {number}\n") for number in range(60)]
    with ThreadPoolExecutor(20) as pool:
        accepted = list(
            pool.map(
                lambda pair: room.intake.offer(*pair).result(PATIENCE_S),
                zip(tokens, submissions, strict=True),
            )
        )
    assert len({one.receipt.submission for one in accepted}) == 60
    stored = {row.blob for row in room.rows(tables.submissions)}
    assert stored == {hashlib.sha256(content_of(one.files)).hexdigest() for one in submissions}


REFUSED = {
    "unknown-lab": {"lab": "nothing", "lab_hash": "0" * 64},
    "other-lab-version": {"lab_hash": "0" * 64},
    "bad-request": {"device": "cuda"},
    "wrong-files": {"files": {"work.py": b"", "../../etc/passwd": b""}},
    "too-large": {"files": {"work.py": b"#" * (MAX_FILE_BYTES + 1)}},
}


@pytest.mark.parametrize(("code", "fields"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_measured_is_refused_with_the_reason(sqlite_room, code, fields):
    _, ada = sqlite_room.join()
    submission = sqlite_room.submission()
    with pytest.raises(RefusedError) as refused:
        sqlite_room.intake.offer(ada, msgspec.structs.replace(submission, **fields)).result(
            PATIENCE_S
        )
    assert refused.value.code == code
    assert refused.value.remedy
    assert sqlite_room.rows(tables.submissions) == []


def refusal(room, token, **fields) -> str:
    with pytest.raises(RefusedError) as refused:
        room.submit(token, **fields)
    return refused.value.code


def test_a_missing_file_is_refused(sqlite_room):
    _, ada = sqlite_room.join()
    assert refusal(sqlite_room, ada, files={"diagnosis.toml": b""}) == "wrong-files"


def test_nobody_submits_without_having_joined_or_after_being_removed(sqlite_room):
    from bottleneck_lab.cohort.members import changes

    who, ada = sqlite_room.join()
    assert refusal(sqlite_room, "guessed") == "not-joined"
    with sqlite_room.cohort.database.writing() as connection:
        changes.remove(connection, who, sqlite_room.clock())
    assert refusal(sqlite_room, ada) == "not-joined"


def test_two_at_once_by_one_learner_are_too_fast(sqlite_room):
    _, ada = sqlite_room.join()
    sqlite_room.submit(ada)
    with pytest.raises(RefusedError) as refused:
        sqlite_room.intake.offer(ada, sqlite_room.submission()).result(PATIENCE_S)
    assert (refused.value.code, refused.value.retry_after_s) == ("too-fast", 5.0)
    sqlite_room.clock.now += 4.8
    with pytest.raises(RefusedError) as refused:
        sqlite_room.intake.offer(ada, sqlite_room.submission()).result(PATIENCE_S)
    assert refused.value.remedy == "Wait 1 s."


def test_only_so_many_of_a_learner_wait(sqlite_room):
    _, ada = sqlite_room.join()
    for _ in range(3):
        sqlite_room.submit(ada)
    assert refusal(sqlite_room, ada) == "too-many-waiting"


def test_a_budget_is_counted_down_and_can_be_extended(sqlite_room):
    who, ada = sqlite_room.join()
    with sqlite_room.cohort.database.writing() as connection:
        set_rules(connection, "slow", sqlite_room.clock(), budget=2)
    assert [sqlite_room.submit(ada).left for _ in range(2)] == [1, 0]
    assert refusal(sqlite_room, ada) == "budget-spent"
    with sqlite_room.cohort.database.writing() as connection:
        extend(connection, who.id, "slow", None, 1, sqlite_room.clock())
    assert sqlite_room.submit(ada).left == 0


def test_a_closed_lab_takes_nothing_but_from_those_with_an_extension(sqlite_room):
    (who, ada), (_, bob) = sqlite_room.join("Ada"), sqlite_room.join("Bob")
    now = sqlite_room.clock()
    with sqlite_room.cohort.database.writing() as connection:
        set_rules(connection, "slow", now, due=now - 200, closes=now - 100)
        extend(connection, who.id, "slow", now + 500, 0, now)
    assert refusal(sqlite_room, bob) == "late"
    assert sqlite_room.submit(ada).receipt


def test_an_altered_blob_is_noticed_and_not_measured(sqlite_room):
    _, ada = sqlite_room.join()
    name = sqlite_room.submit(ada).receipt.content_sha256
    sqlite_room.cohort.blobs.path(name).write_bytes(b'{"work.py":""}')
    with pytest.raises(MachineError, match="altered"):
        sqlite_room.cohort.blobs.get(name)
    sqlite_room.runner().step()
    assert sqlite_room.rows(tables.verdicts) == []
    assert "altered" in sqlite_room.rows(tables.submissions)[0].note


def test_what_a_killed_server_stored_for_nobody_goes_at_the_next_start(sqlite_room):
    _, ada = sqlite_room.join()
    kept = sqlite_room.submit(ada).receipt.content_sha256
    (orphan,) = sqlite_room.cohort.blobs.put([b"never acknowledged"])
    for name in (kept, orphan):
        os.utime(sqlite_room.cohort.blobs.path(name), (0, 0))
    with Intake(sqlite_room.cohort):
        pass
    assert sqlite_room.cohort.blobs.path(kept).exists()
    assert not sqlite_room.cohort.blobs.path(orphan).exists()


def test_orphans_are_collected_once_they_are_old_and_nothing_else(tmp_path):
    blobs = Blobs(tmp_path / "blobs")
    kept, old, young = blobs.put([b"kept", b"old", b"young"])
    for name in (kept, old):
        os.utime(blobs.path(name), (0, 0))
    assert blobs.collect([kept]) == 1
    assert (blobs.get(kept), blobs.get(young)) == (b"kept", b"young")
    assert not blobs.path(old).exists()
    blobs.close()


@pytest.mark.parametrize("target", [2.0, 1.5, 0.0, None])
def test_a_histogram_of_one_figure_is_one_narrow_bin_around_it(target):
    edges, counts = _histogram([1.5, 1.5], target)
    assert counts == [2]
    assert edges[0] < 1.5 < edges[1]
    assert edges[1] - edges[0] <= 0.1
