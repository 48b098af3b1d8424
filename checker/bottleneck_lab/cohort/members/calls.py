"""Calls for help: a learner raises a hand, and the room sees it."""

from __future__ import annotations

from sqlalchemy import Connection, update

from bottleneck_lab.cohort.members.people import Person, clean, same_learner
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note

MAX_CALL = 200
"""Characters of what a learner needs help with."""


def call_for_help(connection: Connection, person: Person, text: str, at: float) -> None:
    """Show the room that this learner needs help, and with what. A later call replaces it."""
    people = tables.people
    values = {"needs_help": at, "help_text": clean(text, MAX_CALL)}
    merged = people.c.id.in_(same_learner(connection, person))
    connection.execute(update(people).where(merged).values(values))
    note(connection, at, "help", clean(text, MAX_CALL), person=person.id)


def end_call(connection: Connection, person: Person, at: float) -> None:
    """Take a call for help back: it was answered, or is no longer needed."""
    people = tables.people
    values = {"needs_help": None, "help_text": ""}
    merged = people.c.id.in_(same_learner(connection, person))
    connection.execute(update(people).where(merged).values(values))
    note(connection, at, "help", person=person.id)
