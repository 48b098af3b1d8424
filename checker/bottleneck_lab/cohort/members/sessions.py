"""How people get in with a browser: links that log in once, and sessions."""

from __future__ import annotations

from secrets import token_hex

import msgspec
from sqlalchemy import Connection, select, update

from bottleneck_lab.cohort.members.people import PERSON_COLUMNS, Person, as_person
from bottleneck_lab.cohort.members.secrets import digest, new_token
from bottleneck_lab.cohort.store import tables

LINK_S = 900.0
"""How long a login link can be used, once."""
SESSION_S = 12 * 3600.0
"""How long a browser stays logged in."""


def new_link(connection: Connection, person: Person, at: float) -> str:
    """Return the token of a link that logs this person in, once, within a quarter of an hour."""
    # Hexadecimal: behind `lab join` a leading dash would make it an option.
    token = token_hex(32)
    connection.execute(
        tables.login_links.insert().values(
            token_sha256=digest(token), person=person.id, expires=at + LINK_S
        )
    )
    return token


def use_link(connection: Connection, token: str, at: float) -> Person | None:
    """Use a link up and return its owner; None for a used, expired or unknown one."""
    links, people = tables.login_links, tables.people
    fresh = (
        (links.c.token_sha256 == digest(token)) & links.c.used.is_(None) & (links.c.expires > at)
    )
    # One statement: of two browsers that open a link at once, one gets in.
    if not connection.execute(update(links).where(fresh).values(used=at)).rowcount:
        return None
    query = select(*PERSON_COLUMNS).join(links, links.c.person == people.c.id)
    row = connection.execute(
        query.where(links.c.token_sha256 == digest(token), people.c.removed.is_(None))
    ).first()
    return as_person(row) if row else None


class Session(msgspec.Struct, frozen=True):
    """A browser that is logged in; every form that changes something carries `csrf`."""

    person: Person
    csrf: str


def open_session(connection: Connection, person: Person, at: float) -> str:
    """Open a session and return the token for the cookie. Clears sessions that have run out."""
    # The cookie holds the token, the database its digest: a copy of it lets nobody in.
    token, table = new_token(), tables.sessions
    connection.execute(table.delete().where(table.c.expires < at))
    connection.execute(
        table.insert().values(
            token_sha256=digest(token),
            person=person.id,
            csrf=new_token(),
            created=at,
            expires=at + SESSION_S,
        )
    )
    return token


def find_session(connection: Connection, token: str, at: float) -> Session | None:
    """Return the session of a cookie; None if it is none or has run out."""
    table, people = tables.sessions, tables.people
    query = select(*PERSON_COLUMNS, table.c.csrf).join(people, people.c.id == table.c.person)
    row = connection.execute(
        query.where(
            table.c.token_sha256 == digest(token), table.c.expires > at, people.c.removed.is_(None)
        )
    ).first()
    return Session(as_person(row), row.csrf) if row else None


def close_session(connection: Connection, token: str) -> None:
    """Log a browser out."""
    connection.execute(
        tables.sessions.delete().where(tables.sessions.c.token_sha256 == digest(token))
    )
