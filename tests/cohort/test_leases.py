"""One lease an attempt, one verdict a submission: fair, and nothing forged is recorded."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.cohort.running import leases
from bottleneck_lab.cohort.running.leases import ForgedError, StaleError
from bottleneck_lab.cohort.running.queue_order import Waiting, in_turn
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import VerdictReader
from bottleneck_lab.grading.attest import sign
from bottleneck_lab.grading.verdict import Outcome

from .conftest import MINI
from .fake_job import verdict_of

ALL = ("cpu", "virtual", "cuda")


def claim(room, slot="cpu0"):
    with room.cohort.database.writing() as connection:
        return leases.claim(connection, "r", ALL, lambda _one: slot, room.clock())


def signed(room, lease, key=None, **changes) -> str:
    """The document of a verdict as the runner makes it; `changes` are of the verdict before it is
    signed.
    """
    lab = find_lab(lease.lab)
    verdict = msgspec.structs.replace(
        verdict_of(lab, lab.path, lease.device), **{"binding": lease.binding, **changes}
    )
    return msgspec.json.encode(sign(verdict, key or room.cohort.key())).decode()


def finish(room, lease, document=None, nonce=None):
    with room.cohort.database.writing() as connection:
        key = room.cohort.key().public_key()
        leases.finish(
            connection,
            nonce or lease.nonce,
            document or signed(room, lease),
            key,
            "test",
            room.clock(),
        )


def states(room) -> list[str]:
    return [row.state for row in room.rows(tables.submissions)]


def test_everybody_has_a_turn(room):
    (_, ada), (_, bob) = room.join("Ada"), room.join("Bob")
    first = [room.submit(ada).receipt.submission for _ in range(3)]
    (bobs,) = [room.submit(bob).receipt.submission]
    order = []
    for _ in range(4):
        lease = claim(room)
        order.append(lease.submission)
        room.clock.now += 1
        finish(room, lease)
    assert order == [first[0], bobs, *first[1:]]


waiting_lists = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=25)


@given(waiting_lists)
def test_nobody_waits_for_another_ones_second_while_the_own_first_is_open(items):
    from collections import Counter

    waiting = [
        Waiting(at, str(at), person, "slow", "cpu", float(queued))
        for at, (person, queued) in enumerate(items)
    ]
    order = in_turn(waiting, Counter(), {})
    assert sorted(order) == sorted(waiting)
    before: Counter[int] = Counter()
    ranks = []
    for one in order:
        ranks.append(before[one.person])
        before[one.person] += 1
    assert ranks == sorted(ranks)


def test_a_submission_has_one_lease_at_a_time(room):
    _, ada = room.join()
    room.submit(ada)
    assert claim(room) is not None
    assert claim(room) is None
    assert states(room) == ["running"]


def test_the_database_itself_refuses_a_second_active_lease(room):
    from sqlalchemy.exc import IntegrityError

    _, ada = room.join()
    room.submit(ada)
    lease = claim(room)
    row = room.rows(tables.leases)[0]
    values = {**row._mapping, "id": row.id + 1, "nonce": "another"}
    with pytest.raises(IntegrityError), room.cohort.database.writing() as connection:
        connection.execute(tables.leases.insert().values(values))
    finish(room, lease)


def test_what_a_dead_runner_held_is_measured_again_and_its_late_verdict_refused(room):
    _, ada = room.join()
    room.submit(ada)
    late = claim(room)
    room.clock.now += 61
    with pytest.raises(StaleError):
        finish(room, late)
    with room.cohort.database.writing() as connection:
        assert leases.expire(connection, room.clock()) == 1
    second = claim(room)
    with pytest.raises(StaleError):
        finish(room, late)
    finish(room, second)
    with pytest.raises(StaleError):
        finish(room, second)
    (verdict,) = room.rows(tables.verdicts)
    assert second.nonce in verdict.document


def test_a_lease_that_is_renewed_lasts(room):
    _, ada = room.join()
    room.submit(ada)
    lease = claim(room)
    for _ in range(3):
        room.clock.now += 40
        with room.cohort.database.writing() as connection:
            assert leases.renew(connection, [lease.nonce, "unknown"], room.clock()) == {lease.nonce}
    finish(room, lease)
    assert states(room) == ["done"]


def test_the_machines_fault_is_tried_again_and_a_fail_never(room):
    _, ada = room.join()
    room.submit(ada)
    for attempt in range(3):
        lease = claim(room)
        finish(
            room,
            lease,
            signed(room, lease, outcome=Outcome.ERROR, summary="The machine is too busy."),
        )
        assert states(room) == ["queued" if attempt < 2 else "failed"]
    room.submit(ada)
    lease = claim(room)
    finish(room, lease, signed(room, lease, outcome=Outcome.FAIL, reason="wrong output"))
    assert claim(room) is None
    assert states(room) == ["failed", "done"]
    assert [row.counts for row in room.rows(tables.submissions)] == [False, True]


def test_a_submission_that_ends_every_runner_is_set_aside_and_not_tried_for_ever(room):
    _, ada = room.join()
    room.submit(ada)
    for _ in range(3):
        lease = claim(room)
        with room.cohort.database.writing() as connection:
            leases.give_up(
                connection, lease.nonce, "The check ended without a result.", room.clock()
            )
    assert claim(room) is None
    (row,) = room.rows(tables.submissions)
    assert (row.state, row.note, row.counts) == (
        "failed",
        "The check ended without a result.",
        False,
    )


def test_a_runner_that_stops_in_order_is_nobodys_fault(room):
    _, ada = room.join()
    room.submit(ada)
    for _ in range(10):
        lease = claim(room)
        with room.cohort.database.writing() as connection:
            leases.give_up(
                connection, lease.nonce, "The runner was stopped.", room.clock(), blame=False
            )
    assert states(room) == ["queued"]


def forgeries(room, lease, others) -> dict[str, str]:
    """Documents that are not this lease's verdict, by the way in which they were made."""
    genuine = signed(room, lease)
    stranger = Ed25519PrivateKey.generate()
    binding = lease.binding
    return {
        "signed by another key": signed(room, lease, stranger),
        "not signed": (
            msgspec.json.encode(msgspec.structs.replace(_decoded(genuine), signature=None)).decode()
        ),
        "self-attested": (
            msgspec.json.encode(
                msgspec.structs.replace(
                    _decoded(genuine), signature=None, attestation="self-attested"
                )
            ).decode()
        ),
        "outcome changed": signed(room, lease, outcome=Outcome.FAIL).replace('"FAIL"', '"PASS"'),
        "figure changed": genuine.replace('"value":3.0', '"value":9.0'),
        "another submission's": signed(room, others),
        "another learner's name": signed(
            room, lease, binding=msgspec.structs.replace(binding, learner="eve")
        ),
        "another attempt's": signed(
            room, lease, binding=msgspec.structs.replace(binding, nonce="0" * 32)
        ),
        "another cohort's": signed(
            room, lease, binding=msgspec.structs.replace(binding, cohort="elsewhere")
        ),
        "bound to nothing": signed(room, lease, binding=None),
        "another lab's": signed(room, lease, lab="wrong"),
        "another edition's": signed(room, lease, lab_hash="0" * 64),
        "a receipt": room.rows(tables.submissions)[0].receipt,
        "what a hostile worker prints": '{"outcome":"PASS"}',
        "no JSON": "PASS",
        "nothing": " ",
        "two answers": genuine[:-1] + ',"outcome":"PASS"}',
    }


def _decoded(document: str):
    from bottleneck_lab.grading.verdict import Verdict

    return msgspec.json.decode(document, type=Verdict)


def test_no_forged_verdict_is_recorded(room):
    (_, ada), (_, bob) = room.join("Ada"), room.join("Bob")
    room.submit(ada)
    room.submit(bob)
    lease, others = claim(room), claim(room)
    for how, document in forgeries(room, lease, others).items():
        with pytest.raises(ForgedError):
            finish(room, lease, document)
        assert room.rows(tables.verdicts) == [], how
    with pytest.raises(StaleError):
        finish(room, lease, nonce="guessed")
    finish(room, lease)
    assert len(room.rows(tables.verdicts)) == 1


@pytest.mark.parametrize(
    "tamper",
    [
        lambda verdicts: verdicts.update().values(document=verdicts.c.document.concat(" ")),
        lambda verdicts: verdicts.update().values(document='{"outcome":"PASS"}'),
        lambda verdicts: verdicts.update().where(verdicts.c.id == 2).values(submission=1, round=1),
    ],
    ids=["spaces", "replaced", "moved to another"],
)
def test_a_row_changed_in_the_database_shows_as_altered_and_never_as_a_pass(room, tamper):
    (_, ada), (_, bob) = room.join("Ada"), room.join("Bob")
    room.submit(ada)
    room.submit(bob)
    for outcome in (Outcome.FAIL, Outcome.PASS):
        lease = claim(room)
        finish(room, lease, signed(room, lease, outcome=outcome))
    with room.cohort.database.writing() as connection:
        connection.execute(tamper(tables.verdicts))
    with room.cohort.database.reading() as connection:
        shown = {
            one.person: one for one in VerdictReader(room.cohort.public_key).latest(connection)
        }
    passed = [person for person, one in shown.items() if one.outcome is Outcome.PASS]
    assert passed in ([], [2])
    assert shown[1].problem or shown[1].outcome is Outcome.FAIL


def test_an_outcome_changed_in_the_database_is_not_believed(room):
    _, ada = room.join()
    room.submit(ada)
    lease = claim(room)
    finish(room, lease, signed(room, lease, outcome=Outcome.FAIL))
    document = room.rows(tables.verdicts)[0].document.replace('"FAIL"', '"PASS"', 1)
    with room.cohort.database.writing() as connection:
        connection.execute(tables.verdicts.update().values(document=document))
    with room.cohort.database.reading() as connection:
        (shown,) = VerdictReader(room.cohort.public_key).latest(connection)
    assert shown.outcome is None
    assert shown.problem.startswith("This record was altered")


def test_regrading_keeps_the_verdicts_before(room):
    _, ada = room.join()
    handle = room.submit(ada).receipt.submission
    finish(room, claim(room))
    with room.cohort.database.writing() as connection:
        assert leases.regrade(connection, [handle, "unknown"], room.clock()) == 1
    lease = claim(room)
    finish(room, lease, signed(room, lease, outcome=Outcome.FAIL))
    with room.cohort.database.reading() as connection:
        judge = VerdictReader(room.cohort.public_key)
        assert [judged.outcome for judged, _, _ in judge.all_of(connection, handle)] == [
            Outcome.PASS,
            Outcome.FAIL,
        ]
        assert [one.outcome for one in judge.latest(connection)] == [Outcome.FAIL]


def test_nothing_is_begun_while_the_cohort_is_paused(room):
    _, ada = room.join()
    with room.cohort.database.writing() as connection:
        change_settings(connection, paused=True)
    room.submit(ada)
    assert claim(room) is None
    with room.cohort.database.writing() as connection:
        change_settings(connection, paused=False)
    assert claim(room) is not None


def test_who_needs_the_whole_machine_is_not_passed_by(room):
    (_, ada), (_, bob) = room.join("Ada"), room.join("Bob")
    room.submit(ada)
    room.submit(bob)
    assert claim(room, slot=None) is None
    assert states(room) == ["queued", "queued"]


def test_a_regrade_measures_the_lab_as_it_was_corrected(room, tmp_path, monkeypatch):
    """An edition is part of the signed verdict: the old one stays genuine beside the new one."""
    _, ada = room.join()
    handle = room.submit(ada).receipt.submission
    first = claim(room)
    finish(room, first)
    course = tmp_path / "course"
    shutil.copytree(MINI, course)
    (course / "labs" / "slow" / "README.md").write_text("A corrected brief.\n")
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(course))
    load_labs.cache_clear()
    with room.cohort.database.writing() as connection:
        assert leases.regrade(connection, [handle], room.clock()) == 1
    second = claim(room)
    assert second.lab_hash == find_lab("slow").content_hash() != first.lab_hash
    finish(room, second, signed(room, second, outcome=Outcome.FAIL, reason="correct but slow"))
    with room.cohort.database.reading() as connection:
        rounds = VerdictReader(room.cohort.public_key).all_of(connection, handle)
    assert [(one.problem, one.outcome) for one, _, _ in rounds] == [
        (None, Outcome.PASS),
        (None, Outcome.FAIL),
    ]
