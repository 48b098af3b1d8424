"""Calls for help: a learner raises a hand, and the room sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, update

from bottleneck_lab.cohort.members.people import Person, clean, same_learner
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note

MAX_CALL = 200
"""Characters of what a learner needs help with."""


class Call(NamedTuple):
    """A call for help: since when (seconds since the epoch), and with what."""

    at: float
    text: str


def call_for_help(connection: Connection, person: Person, text: str, at: float) -> None:
    """Show the room that this learner needs help, and with what. A later call replaces it."""
    _clear(connection, person)
    people = tables.people
    # Only on the one who called: somebody merged into them, and separated again, did not.
    values = {"needs_help": at, "help_text": clean(text, MAX_CALL)}
    connection.execute(update(people).where(people.c.id == person.id).values(values))
    note(connection, at, "help", clean(text, MAX_CALL), person=person.id)


def end_call(connection: Connection, person: Person, at: float) -> None:
    """Take a call for help back: it was answered, or is no longer needed."""
    _clear(connection, person)
    note(connection, at, "help", person=person.id)


def _clear(connection: Connection, person: Person) -> None:
    people = tables.people
    merged = people.c.id.in_(same_learner(connection, person))
    connection.execute(update(people).where(merged).values(needs_help=None, help_text=""))


def call_of(rows: Iterable[Row[Any]]) -> Call | None:
    """Return the call of a learner, who may be several people: the one that waits longest."""
    calls = [Call(row.needs_help, row.help_text) for row in rows if row.needs_help is not None]
    return min(calls, default=None)
