"""People of a cohort: who they are, their roles and their names."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from secrets import token_hex
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Row, func, or_, select, update

from bottleneck_lab.cohort.members.secrets import digest, hash_password, password_is
from bottleneck_lab.cohort.protocol import MAX_NAME
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note

Role = Literal["learner", "assistant", "instructor"]
ROLES: tuple[Role, ...] = ("learner", "assistant", "instructor")
"""Each may do what those before it may."""


class Person(msgspec.Struct, frozen=True):
    """Somebody who is known and has not been removed."""

    id: int
    handle: str
    role: Role
    name: str
    pseudonym: str
    on_leaderboard: bool = False

    def may(self, role: Role) -> bool:
        """Return True if this person has the role, or one above it."""
        return ROLES.index(self.role) >= ROLES.index(role)


PERSON_COLUMNS = [tables.people.c[name] for name in Person.__struct_fields__]


def in_order(rows: Iterable[Row[Any]]) -> list[Row[Any]]:
    """Return people as every page and every export lists them: by last name where one is known.

    Names are compared without accents and case.
    """

    def plain(text: str) -> str:
        letters = unicodedata.normalize("NFKD", text.casefold())
        return "".join(char for char in letters if not unicodedata.combining(char))

    # Not by the database: SQLite knows case only in ASCII, and puts Öztürk behind Zuse.
    return sorted(
        rows, key=lambda row: (plain(row.last_name or row.name), plain(row.first_name), row.id)
    )


def known_as(person: Any) -> str:
    """Return the id by which people know somebody: Canvas's own number only where there is nothing
    else, and the handle where there is no id at all.
    """
    ids = (person.student_id, person.sis_login, person.sis_id, person.canvas_id)
    return str(next((each for each in ids if each), person.handle))


def told_apart(everybody: Iterable[Any]) -> dict[int, str]:
    """Return the names of people by their number; those that several have with their ids."""
    people = list(everybody)
    counts = Counter(one.name.casefold() for one in people)
    return {
        one.id: f"{one.name} ({known_as(one)})" if counts[one.name.casefold()] > 1 else one.name
        for one in people
    }


def as_person(row: Any) -> Person:
    """Return the person of a row that begins with a person's columns."""
    return Person(*row[: len(PERSON_COLUMNS)])


def clean(text: str, most: int = MAX_NAME) -> str:
    """Return text that somebody typed on one line, without control and direction characters."""
    # Category C are control, format and private characters (direction overrides among them), Z are
    # separators; NFC makes two ways of typing an accent one name.
    kept = "".join(
        char
        for char in unicodedata.normalize("NFC", text)
        if unicodedata.category(char)[0] not in "CZ" or char == " "
    )
    return " ".join(kept.split())[:most]


def checked_name(text: str, most: int = MAX_NAME) -> str:
    """Return a name as `clean` leaves it. Raises RefusedError for an empty or too long one."""
    name = clean(text, most=10 * MAX_NAME)
    if not name:
        raise RefusedError(
            "bad-request",
            "A name is needed.",
            "Any name or pseudonym will do: `lab join URL CODE --name NAME`.",
        )
    if len(name) > most:
        raise RefusedError(
            "bad-request",
            f"A name has at most {most} characters; this one has {len(name)}.",
            "Choose a shorter one.",
        )
    return name


def add_person(connection: Connection, role: Role, name: str, at: float, **fields: Any) -> Person:
    """Add somebody, with a pseudonym for the leaderboard that tells nothing."""
    handle = token_hex(6)
    values = {
        "handle": handle,
        "role": role,
        "name": name,
        "pseudonym": f"learner-{handle[:4]}",
        "created": at,
        **fields,
    }
    result = connection.execute(tables.people.insert().values(on_leaderboard=False, **values))
    key = result.inserted_primary_key
    assert key is not None
    return Person(key[0], handle, role, name, values["pseudonym"])


def correct_person(connection: Connection, number: int, values: dict[str, Any]) -> bool:
    """Give columns of a person other values; return False if they had them already."""
    people = tables.people
    differs = or_(*(people.c[name].is_distinct_from(value) for name, value in values.items()))
    query = update(people).where(people.c.id == number, differs)
    return bool(connection.execute(query.values(values)).rowcount)


def add_staff(connection: Connection, role: Role, name: str, password: str, at: float) -> Person:
    """Add an instructor or an assistant, who logs in with name and password.

    Raises RefusedError if the name is taken.
    """
    if is_staff(connection, name):
        raise RefusedError(
            "already-joined",
            f"Somebody is already called '{name}'.",
            f"Choose another name, or give {name} a new password: add `--new-password`, or look"
            " under Settings.",
        )
    return add_person(connection, role, clean(name), at, password_hash=hash_password(password))


def is_staff(connection: Connection, name: str) -> bool:
    """Return True if an instructor or assistant has that name."""
    return _staff_row(connection, name) is not None


def find_staff(connection: Connection, name: str) -> Person:
    """Return the instructor or assistant of that name. Raises RefusedError if there is none."""
    row = _staff_row(connection, name)
    if row is None:
        raise RefusedError(
            "not-found",
            f"No instructor or assistant is called '{name}'.",
            "Settings lists them, under Instructors and assistants.",
        )
    return as_person(row)


def renew_password(connection: Connection, person: Person, password: str, at: float) -> None:
    """Give an instructor or assistant another password. Whoever is logged in as them is logged out.

    Raises RefusedError for a learner.
    """
    if not person.may("assistant"):
        raise RefusedError(
            "bad-request", f"{person.name} is a learner.", "Learners have no password."
        )
    table = tables.people
    values = {"password_hash": hash_password(password)}
    connection.execute(update(table).where(table.c.id == person.id).values(values))
    # Who knew the old password may be logged in, or hold a link that still works.
    for access in (tables.sessions, tables.login_links):
        connection.execute(access.delete().where(access.c.person == person.id))
    note(connection, at, "settings", f"{person.name} has a new password.")


def _staff_row(connection: Connection, name: str) -> Any | None:
    people = tables.people
    query = select(*PERSON_COLUMNS, people.c.password_hash).where(
        func.lower(people.c.name) == clean(name).lower(),
        people.c.role != "learner",
        people.c.removed.is_(None),
    )
    return connection.execute(query).first()


def check_password(connection: Connection, name: str, password: str) -> Person | None:
    """Return the instructor or assistant with that name and password; None if either is wrong."""
    row = _staff_row(connection, name)
    good = password_is(row.password_hash if row else None, password)
    return as_person(row) if row and good else None


def by_tokens(connection: Connection, tokens: Iterable[str]) -> dict[str, Person]:
    """Return the owners of tokens; those that are nobody's, or were revoked, are left out."""
    people, digests = tables.people, {digest(token): token for token in tokens}
    query = select(*PERSON_COLUMNS, people.c.token_sha256).where(
        people.c.token_sha256.in_(digests), people.c.removed.is_(None)
    )
    return {digests[row.token_sha256]: as_person(row) for row in connection.execute(query)}


def by_token(connection: Connection, token: str) -> Person:
    """Return the owner of a token. Raises RefusedError when it is nobody's, or was revoked."""
    owners = by_tokens(connection, [token])
    if token not in owners:
        raise unknown_token()
    return owners[token]


def unknown_token() -> RefusedError:
    """Return the refusal of a token that is nobody's."""
    return RefusedError(
        "not-joined",
        "This cohort does not know you, or no longer does.",
        "Join again with `lab join URL CODE`; on a roster, add `--id STUDENT_ID`.",
    )


def learner_of(connection: Connection, person: Person) -> int:
    """Return the number under which a learner's work counts: if merged, that of the other."""
    people = tables.people
    return int(
        connection.execute(
            select(func.coalesce(people.c.merged_into, people.c.id)).where(people.c.id == person.id)
        ).scalar_one()
    )


def same_learner(connection: Connection, person: Person) -> list[int]:
    """Return the numbers of all people who are this learner: of those merged, and of the other."""
    people, root = tables.people, learner_of(connection, person)
    group = select(people.c.id).where((people.c.id == root) | (people.c.merged_into == root))
    return list(connection.execute(group).scalars())


def merged_group(connection: Connection, person: Person) -> list[Person]:
    """Return all people who are this learner, the one for whom the others count first."""
    people, root = tables.people, learner_of(connection, person)
    rows = connection.execute(
        select(*PERSON_COLUMNS)
        .where(people.c.id.in_(same_learner(connection, person)))
        .order_by(people.c.id != root, people.c.id)
    )
    return [as_person(row) for row in rows]


def by_handle(connection: Connection, handle: str) -> Person:
    """Return the person with that handle. Raises RefusedError if there is none."""
    people = tables.people
    row = connection.execute(
        select(*PERSON_COLUMNS).where(people.c.handle == handle, people.c.removed.is_(None))
    ).first()
    if row is None:
        raise RefusedError(
            "not-found", "There is nobody with that name here.", "Go back to the list."
        )
    return as_person(row)


def name_of(connection: Connection, handle: str) -> str:
    """Return the name of somebody who exists, removed or not."""
    people = tables.people
    query = select(people.c.name).where(people.c.handle == handle)
    return str(connection.execute(query).scalar_one())


def the_instructor(connection: Connection, at: float) -> Person:
    """Return the first instructor, who is added if there is none yet.

    Without a password: only a link from the terminal lets them in.
    """
    people = tables.people
    query = (
        select(*PERSON_COLUMNS)
        .where(people.c.role == "instructor", people.c.removed.is_(None))
        .order_by(people.c.id)
    )
    row = connection.execute(query).first()
    if row is None:
        return add_person(connection, "instructor", "Instructor", at)
    return as_person(row)


def let_join_again(connection: Connection, person: Person) -> None:
    """Let somebody on the roster join again from another machine; the old token ends."""
    values = {"token_sha256": None, "joined": None}
    connection.execute(update(tables.people).where(tables.people.c.id == person.id).values(values))
    connection.execute(tables.sessions.delete().where(tables.sessions.c.person == person.id))
