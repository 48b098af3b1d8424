"""One lease per attempt, one verdict per submission and round. The database decides; a late runner
is turned away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Row, func, select, update

from bottleneck_lab.catalog import Device, current_name, load_labs
from bottleneck_lab.cohort.protocol import Tool
from bottleneck_lab.cohort.running.queue_order import Waiting, load_queue
from bottleneck_lab.cohort.running.workers import load_runners
from bottleneck_lab.cohort.settings import Settings, load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.attest import verify_bytes
from bottleneck_lab.grading.verdict import Binding, Outcome, Verdict

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

COUNTED = (Outcome.PASS, Outcome.FAIL)
"""Outcomes that count against a learner's budget; the others say nothing about the work."""


class Lease(msgspec.Struct, frozen=True):
    """The right to measure one submission until it expires.

    `job` is the executor's name for the work under way, `tool` the profiler to run in place of a
    check.
    """

    nonce: str
    submission: str
    learner: str
    cohort: str
    lab: str
    device: Device
    lab_hash: str
    blob: str
    capture: str | None
    circumstances: str
    slot: str
    taken: float
    job: str | None = None
    tool: Tool | None = None

    @property
    def binding(self) -> Binding:
        """Return the binding that the verdict must carry."""
        return Binding(self.cohort, self.learner, self.submission, self.nonce)


class StaleError(LabError):
    """The lease has expired, was given up, or has its verdict already."""

    def __init__(self) -> None:
        super().__init__(
            "This lease is no longer valid.",
            "There is nothing to do: another attempt has taken over.",
        )


class ForgedError(LabError):
    """A verdict that the cohort's key did not sign for this lease."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"This verdict is not recorded: {why}.",
            "Look at the runner's log; somebody may have tampered with the verdict.",
        )


Choose = Callable[[Waiting], str | None]
"""The slot for the submission that is next, or None while there is none."""


def peek(connection: Connection, runner: str, devices: Iterable[Device]) -> Waiting | None:
    """Return the submission that is next for this runner on these devices.

    None if none is, or in a pause. What needs a data set that the runner's machine lacks is left to
    others, or waits until the data set is there.
    """
    if load_settings(connection).paused or not (waiting := load_queue(connection)):
        return None
    known = set(devices)
    own = next((one for one in load_runners(connection) if one.name == runner), None)
    possible = (
        one for one in waiting if one.device in known and not (own and own.lacks_for(one.lab))
    )
    return next(possible, None)


def claim(
    connection: Connection, runner: str, devices: Iterable[Device], choose: Choose, now: float
) -> Lease | None:
    """Lease the submission that is next among those that this runner can measure.

    Returns None if there is none, or no room for it.
    """
    first = peek(connection, runner, devices)
    # The next one waits for room rather than let others pass: what needs the whole machine would
    # otherwise never get it.
    if first is None or (slot := choose(first)) is None:
        return None
    # The nonce goes into the signed verdict: one of an earlier attempt cannot be handed in again.
    nonce = token_hex(16)
    values = {
        "submission": first.id,
        "lab_hash": connection.execute(
            select(tables.submissions.c.lab_hash).where(tables.submissions.c.id == first.id)
        ).scalar_one(),
        "nonce": nonce,
        "runner": runner,
        "slot": slot,
        "state": "active",
        "taken": now,
        "expires": now + load_settings(connection).lease_s,
    }
    connection.execute(tables.leases.insert().values(values))
    _change(connection, first.id, now, "leased", state="running")
    return load_lease(connection, nonce)


_LEASE = (
    select(
        tables.leases.c.nonce,
        tables.submissions.c.handle,
        tables.people.c.handle,
        select(tables.cohort.c.id).scalar_subquery(),
        tables.submissions.c.lab,
        tables.submissions.c.device,
        tables.leases.c.lab_hash,
        tables.submissions.c.blob,
        tables.submissions.c.capture,
        tables.submissions.c.circumstances,
        tables.leases.c.slot,
        tables.leases.c.taken,
        tables.leases.c.job,
        tables.submissions.c.tool,
    )
    .join(tables.submissions, tables.submissions.c.id == tables.leases.c.submission)
    .join(tables.people, tables.people.c.id == tables.submissions.c.person)
)


def _as_lease(row: Any) -> Lease:
    return Lease(*row)


def load_lease(connection: Connection, nonce: str) -> Lease:
    """Return the lease of that nonce, whatever its state."""
    return _as_lease(connection.execute(_LEASE.where(tables.leases.c.nonce == nonce)).one())


def active_leases(connection: Connection, runner: str) -> list[Lease]:
    """Return the leases that a runner holds."""
    query = _LEASE.where(tables.leases.c.runner == runner, tables.leases.c.state == "active")
    return [_as_lease(row) for row in connection.execute(query)]


def set_job(connection: Connection, lease: Lease, job: str) -> None:
    """Record what the executor calls this work, so that a runner that starts again finds it."""
    connection.execute(
        update(tables.leases).where(tables.leases.c.nonce == lease.nonce).values(job=job)
    )


def renew(connection: Connection, nonces: list[str], now: float) -> set[str]:
    """Prolong these leases and return those that were still valid."""
    table, until = tables.leases, now + load_settings(connection).lease_s
    # One that has expired stays so: another runner may be measuring by now.
    valid = (table.c.nonce.in_(nonces)) & (table.c.state == "active") & (table.c.expires > now)
    kept = set(connection.execute(select(table.c.nonce).where(valid)).scalars())
    connection.execute(update(table).where(table.c.nonce.in_(kept)).values(expires=until))
    return kept


def finish(
    connection: Connection,
    nonce: str,
    document: str,
    key: Ed25519PublicKey,
    checker: str,
    now: float,
) -> None:
    """Record the signed verdict of a lease, or queue the submission again where the machine was at
    fault.

    Raises StaleError when the lease is not valid any more, ForgedError when the document is not
    this lease's verdict as the cohort's key signed it.
    """
    # In this order: a late runner must learn that it is late, whatever it brings.
    row = _require_valid(connection, nonce, now)
    verdict = _require_genuine(load_lease(connection, nonce), document, key)
    settings = load_settings(connection)
    # An error of the machine is no verdict on the work: another attempt may be luckier.
    if verdict.outcome is Outcome.ERROR and row.failures + 1 < settings.max_failures:
        _requeue(connection, row, verdict.summary, settings, now)
        return
    _end(connection, row.lease, "done", None, now)
    values = {
        "submission": row.id,
        "round": row.round,
        "lease": row.lease,
        "checker": checker,
        "recorded": now,
        "document": document,
    }
    connection.execute(tables.verdicts.insert().values(values))
    failed = verdict.outcome is Outcome.ERROR
    _change(
        connection,
        row.id,
        now,
        "verdict",
        state="failed" if failed else "done",
        note=verdict.summary if failed else None,
        counts=verdict.outcome in COUNTED,
    )


def finish_capture(
    connection: Connection, nonce: str, blob: str | None, now: float, why: str | None = None
) -> None:
    """Record the capture that was made under a lease; without `blob`, why there is none.

    Raises StaleError when the lease is not valid any more.
    """
    row = _require_valid(connection, nonce, now)
    _end(connection, row.lease, "done", None, now)
    state = "uncaptured" if blob is None else "captured"
    _change(connection, row.id, now, "captured", state=state, made=blob, note=why)


def give_up(
    connection: Connection, nonce: str, why: str, now: float, *, blame: bool = True
) -> None:
    """End a lease without a verdict, and queue the submission again.

    With `blame` it counts as a failure of the machine. A lease that is over stays so.
    """
    table = tables.leases
    row = connection.execute(
        _held().where(table.c.nonce == nonce, table.c.state == "active")
    ).first()
    if row is not None:
        _requeue(connection, row, why, load_settings(connection), now, blame=blame)


def expire(connection: Connection, now: float) -> int:
    """Queue again whatever was not renewed in time, and return how many."""
    table = tables.leases
    late = connection.execute(
        _held().where(table.c.state == "active", table.c.expires <= now)
    ).all()
    settings = load_settings(connection)
    for row in late:
        _requeue(connection, row, "The runner stopped responding.", settings, now)
    return len(late)


def regrade(connection: Connection, submissions: list[str], now: float) -> int:
    """Queue these for a further round, where a verdict stands or the machine failed.

    They are measured with the lab as it is now, which may have been corrected since. Returns how
    many. Old verdicts stay on record.
    """
    table = tables.submissions
    editions = {slug: lab.content_hash() for slug, lab in load_labs().items()}
    query = select(table.c.id, table.c.lab, table.c.lab_hash, table.c.round, table.c.tool).where(
        table.c.handle.in_(submissions), table.c.state.in_(("done", "failed"))
    )
    rows = connection.execute(query).all()
    for row in rows:
        _change(
            connection,
            row.id,
            now,
            "requeued",
            state="queued",
            # A further round: the unique key on submission and round keeps the old verdict.
            round=row.round + 1,
            failures=0,
            queued=now,
            note=None,
            counts=row.tool is None,
            lab_hash=editions.get(row.lab, row.lab_hash),
        )
    return len(rows)


def _held() -> Any:
    table, leases = tables.submissions, tables.leases
    columns = (
        table.c.id,
        table.c.round,
        table.c.failures,
        leases.c.id.label("lease"),
        leases.c.expires,
    )
    return select(*columns).join(leases, leases.c.submission == table.c.id)


def _require_valid(connection: Connection, nonce: str, now: float) -> Row[Any]:
    table = tables.leases
    row: Row[Any] | None = connection.execute(
        _held().where(table.c.nonce == nonce, table.c.state == "active")
    ).first()
    if row is None or row.expires <= now:
        raise StaleError
    return row


def _require_genuine(lease: Lease, document: str, key: Ed25519PublicKey) -> Verdict:
    checked = verify_bytes(document.encode(), key)
    if not checked.ok or checked.verdict is None:
        raise ForgedError(checked.sentence.rstrip("."))
    if problem := binding_problem(checked.verdict, lease.binding, lease.lab, lease.lab_hash):
        raise ForgedError(problem)
    return checked.verdict


def binding_problem(verdict: Verdict, binding: Binding, lab: str, lab_hash: str) -> str | None:
    """Explain why a rightly signed verdict is not that of this submission and attempt.

    Returns None when it is. A verdict signed before its lab was renamed keeps the older name.
    """
    if verdict.binding != binding:
        return "it was signed for another submission, learner or attempt"
    if (current_name(verdict.lab), verdict.lab_hash) != (lab, lab_hash):
        return "it is of another lab, or of another edition of it"
    return None


def _requeue(
    connection: Connection,
    row: Row[Any],
    why: str,
    settings: Settings,
    now: float,
    *,
    blame: bool = True,
) -> None:
    _end(connection, row.lease, "lost", why, now)
    failures = row.failures + blame
    if failures >= settings.max_failures:
        _change(
            connection,
            row.id,
            now,
            "failed",
            state="failed",
            failures=failures,
            note=why,
            counts=False,
        )
    else:
        # `queued` stays: who has waited once does not go to the end of the line.
        _change(
            connection,
            row.id,
            now,
            "requeued",
            state="queued",
            failures=failures,
            note=f"Measured again: {why}",
        )


def _end(connection: Connection, lease: int, state: str, why: str | None, now: float) -> None:
    connection.execute(
        update(tables.leases)
        .where(tables.leases.c.id == lease)
        .values(state=state, ended=now, why=why)
    )


def _change(connection: Connection, submission: int, now: float, kind: str, **values: Any) -> None:
    table = tables.submissions
    # Clients that wait for a change name the version that they have seen.
    connection.execute(
        update(table).where(table.c.id == submission).values(version=table.c.version + 1, **values)
    )
    about = connection.execute(
        select(table.c.person, table.c.handle).where(table.c.id == submission)
    ).one()
    note(connection, now, kind, person=about.person, submission=about.handle)


def queue_length(connection: Connection) -> dict[str, int]:
    """Return how many submissions are in each state."""
    table = tables.submissions
    rows = connection.execute(select(table.c.state, func.count()).group_by(table.c.state))
    return {row[0]: row[1] for row in rows}
