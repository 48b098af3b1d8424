"""Accounts elsewhere, and whose they are here."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, func, or_, select, update

from bottleneck_lab.cohort.members.people import (
    PERSON_COLUMNS,
    Person,
    Role,
    add_person,
    as_person,
    clean,
)
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note


class Profile(msgspec.Struct, frozen=True):
    """A person, as a provider describes them. `email` is empty unless it has been verified."""

    issuer: str
    subject: str
    name: str
    role: Role = "learner"
    email: str = ""
    student_id: str = ""
    first_name: str = ""
    last_name: str = ""


def sign_in(connection: Connection, profile: Profile, at: float) -> Person:
    """Return whose account this is: known from before, on the roster, or new.

    The role is the provider's at every sign-in. Raises RefusedError for somebody who was removed,
    and for a learner who is not on the roster where only those may join.
    """
    people, table = tables.people, tables.identities
    account = (table.c.issuer == profile.issuer) & (table.c.subject == profile.subject)
    number = connection.execute(select(table.c.person).where(account)).scalar()
    if number is None:
        number = on_roster(connection, profile)
        if number is None:
            number = _add(connection, profile, at)
        link(connection, profile, number)
        note(connection, at, "joined", person=number)
    own = people.c.id == number
    joined = func.coalesce(people.c.joined, at)
    connection.execute(update(people).where(own).values(role=profile.role, seen=at, joined=joined))
    row = connection.execute(select(*PERSON_COLUMNS).where(own, people.c.removed.is_(None))).first()
    if row is None:
        raise RefusedError(
            "forbidden", "You were removed from this cohort.", "Ask your instructor."
        )
    return as_person(row)


def link(connection: Connection, profile: Profile, person: int) -> None:
    """Record whose account this is."""
    values = {"issuer": profile.issuer, "subject": profile.subject, "person": person}
    connection.execute(tables.identities.insert().values(values))


def subjects(connection: Connection, issuer: str) -> dict[int, str]:
    """Return the accounts at a provider by learner, who may be merged from several people."""
    people, table = tables.people, tables.identities
    learner = func.coalesce(people.c.merged_into, people.c.id)
    query = (
        select(learner, table.c.subject)
        .join(people, people.c.id == table.c.person)
        .where(table.c.issuer == issuer, people.c.removed.is_(None))
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def on_roster(connection: Connection, profile: Profile) -> int | None:
    """Return the one learner on the roster with that id, else that address, and no account yet."""
    people, table = tables.people, tables.identities
    has_account = select(table.c.person).where(table.c.issuer == profile.issuer)
    free = (
        (people.c.role == "learner")
        & people.c.removed.is_(None)
        & or_(people.c.student_id.is_not(None), people.c.sis_id != "", people.c.canvas_id != "")
        & people.c.id.not_in(has_account)
    )
    for column, value in (
        (people.c.student_id, profile.student_id),
        (people.c.sis_id, profile.student_id),
        (func.lower(people.c.email), profile.email.lower()),
    ):
        if value and profile.role == "learner":
            query = select(people.c.id).where(free, column == value)
            numbers = connection.execute(query).scalars().all()
            if len(numbers) == 1:
                return int(numbers[0])
    return None


def _add(connection: Connection, profile: Profile, at: float) -> int:
    if profile.role == "learner" and load_settings(connection).roster_only:
        raise RefusedError(
            "not-on-roster",
            "You are not on this cohort's roster.",
            "Ask your instructor to add you.",
        )
    return add_person(connection, profile.role, at=at, **details(profile)).id


def details(profile: Profile) -> dict[str, str]:
    """Return the columns of a person that a profile fills in."""
    return {
        "name": clean(profile.name) or clean(profile.email) or "Somebody",
        "first_name": clean(profile.first_name),
        "last_name": clean(profile.last_name),
        "email": clean(profile.email),
    }
