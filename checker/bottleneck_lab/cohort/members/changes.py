"""Corrections of who is who: rename, merge, remove, and the way back from each."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select, update

from bottleneck_lab.cohort.members.people import Person, by_handle, checked_name, is_staff
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note


class FormerPerson(msgspec.Struct, frozen=True):
    """Somebody who was removed, or merged into `other`. `since` in seconds since the epoch."""

    handle: str
    name: str
    since: float | None
    other: str = ""


def rename(connection: Connection, person: Person, name: str, at: float) -> None:
    """Give somebody another name. Raises RefusedError for an empty or too long one."""
    new = checked_name(name)
    people = tables.people
    connection.execute(update(people).where(people.c.id == person.id).values(name=new))
    note(connection, at, "renamed", f"{person.name} is now {new}.", person=person.id)


def merge(connection: Connection, person: Person, into: Person, at: float) -> None:
    """Let the submissions of `person` count for `into`, and both tokens stay valid.

    Nothing is moved: receipts and verdicts are signed for the learner who submitted, and would
    not verify for another. Raises RefusedError for oneself, staff, or somebody who is merged into
    somebody else.
    """
    people = tables.people
    target = connection.execute(select(people.c.merged_into).where(people.c.id == into.id)).scalar()
    if person.id == into.id or target is not None or {person.role, into.role} != {"learner"}:
        raise RefusedError(
            "bad-request",
            f"{person.name} cannot be merged into {into.name}.",
            "Choose two learners, and the one that both are to be.",
        )
    # Whoever was merged into the first one before follows: a merge is never of several steps.
    group = (people.c.id == person.id) | (people.c.merged_into == person.id)
    connection.execute(update(people).where(group).values(merged_into=into.id, claims=None))
    note(connection, at, "merged", f"{person.name} is {into.name}.", person=person.id)


def separate(connection: Connection, handle: str, at: float) -> None:
    """Undo a merge: the submissions count for the learner who made them again."""
    people = tables.people
    connection.execute(update(people).where(people.c.handle == handle).values(merged_into=None))
    note(connection, at, "merged", f"{handle} stands alone again.")


def decide_claim(connection: Connection, person: Person, *, same: bool, at: float) -> None:
    """Accept or decline that `person` is the learner whom they claim to be.

    Raises RefusedError if they claim nothing.
    """
    people = tables.people
    earlier = connection.execute(select(people.c.claims).where(people.c.id == person.id)).scalar()
    if earlier is None:
        raise RefusedError(
            "not-found", f"{person.name} claims to be nobody else.", "Go back to the room."
        )
    if same:
        row = connection.execute(select(people).where(people.c.id == earlier)).one()
        merge(connection, person, Person(row.id, row.handle, row.role, row.name, ""), at)
    else:
        connection.execute(update(people).where(people.c.id == person.id).values(claims=None))
        note(connection, at, "merged", f"{person.name} is somebody else.", person=person.id)


def remove(connection: Connection, person: Person, at: float) -> None:
    """Remove somebody. Token, sessions and links end at once; submissions stay on record.

    Whoever was merged into them stands alone again, or their work would count for nobody. The token
    is kept, so that `restore` brings them back without joining again.
    """
    people, sessions = tables.people, tables.sessions
    query = select(people.c.handle).where(people.c.merged_into == person.id)
    freed = connection.execute(query).scalars().all()
    for handle in freed:
        separate(connection, handle, at)
    connection.execute(update(people).where(people.c.id == person.id).values(removed=at))
    connection.execute(sessions.delete().where(sessions.c.person == person.id))
    # The log says who was freed: to bring the learner back, merges them again.
    note(connection, at, "removed", " ".join(freed), person=person.id)


def restore(connection: Connection, handle: str, at: float) -> None:
    """Undo a removal: the learner's token and submissions count again.

    Whoever the removal freed counts for them again, except those who were merged into somebody else
    or removed since. Raises RefusedError for one of the staff whose name another has meanwhile.
    """
    people, events = tables.people, tables.events
    query = select(people.c.name).where(people.c.handle == handle, people.c.role != "learner")
    name = connection.execute(query).scalar()
    if name is not None and is_staff(connection, name):
        raise RefusedError(
            "already-joined",
            f"Somebody else is called '{name}' now.",
            "Rename them first: a name logs one person in.",
        )
    connection.execute(update(people).where(people.c.handle == handle).values(removed=None))
    person = by_handle(connection, handle)
    removals = (
        select(events.c.text)
        .where(events.c.kind == "removed", events.c.person == person.id)
        .order_by(events.c.id.desc())
    )
    freed = connection.execute(removals).scalars().first() or ""
    alone = select(people.c.handle).where(
        people.c.handle.in_(freed.split()),
        people.c.merged_into.is_(None),
        people.c.removed.is_(None),
    )
    for other in connection.execute(alone).scalars().all():
        merge(connection, by_handle(connection, other), person, at)
    note(connection, at, "restored", handle)


def former_people(connection: Connection) -> tuple[list[FormerPerson], list[FormerPerson]]:
    """Return who was removed, latest first, and who was merged into somebody else, by name."""
    people, other = tables.people, tables.people.alias()
    removed = connection.execute(
        select(people.c.handle, people.c.name, people.c.removed)
        .where(people.c.removed.is_not(None))
        .order_by(people.c.removed.desc())
    )
    merged = connection.execute(
        select(people.c.handle, people.c.name, people.c.joined, other.c.name)
        .join(other, other.c.id == people.c.merged_into)
        .order_by(people.c.name)
    )
    return [FormerPerson(*row) for row in removed], [FormerPerson(*row) for row in merged]
