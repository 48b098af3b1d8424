"""People of a cohort: joining by code, roles, sessions and login links."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from secrets import token_hex
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Row, func, or_, select, update

from bottleneck_lab.cohort.members.secrets import (
    digest,
    hash_password,
    new_code,
    new_token,
    password_is,
    plain_code,
)
from bottleneck_lab.cohort.protocol import MAX_NAME, Join
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note

Role = Literal["learner", "assistant", "instructor"]
ROLES: tuple[Role, ...] = ("learner", "assistant", "instructor")
"""Each may do what those before it may."""
LINK_S = 900.0
"""How long a login link can be used, once."""
SESSION_S = 12 * 3600.0
"""How long a browser stays logged in."""


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


def new_join_code(connection: Connection, at: float) -> str:
    """Add a join code and return it; earlier ones stay valid until they are revoked."""
    code = new_code()
    connection.execute(tables.join_codes.insert().values(code=code, created=at, uses=0))
    return code


def revoke_join_code(connection: Connection, code: str, at: float) -> None:
    """Let nobody join with this code any more; who has joined stays."""
    table = tables.join_codes
    connection.execute(update(table).where(table.c.code == code).values(revoked=at))
    note(connection, at, "settings", "A join code was revoked.")


def restore_join_code(connection: Connection, code: str, at: float) -> None:
    """Make a code valid again that was revoked."""
    table = tables.join_codes
    connection.execute(update(table).where(table.c.code == code).values(revoked=None))
    note(connection, at, "settings", "A join code is valid again.")


def revoked_codes(connection: Connection) -> list[str]:
    """Return the codes that were revoked, latest first."""
    table = tables.join_codes
    query = select(table.c.code).where(table.c.revoked.is_not(None))
    return list(connection.execute(query.order_by(table.c.revoked.desc())).scalars())


def join_codes(connection: Connection) -> list[str]:
    """Return the codes that are valid, newest first."""
    table = tables.join_codes
    query = (
        select(table.c.code)
        .where(table.c.revoked.is_(None))
        .order_by(table.c.created.desc(), table.c.code)
    )
    return list(connection.execute(query).scalars())


def require_join_code(connection: Connection, code: str) -> None:
    """Raise RefusedError if a join code is not valid."""
    if code not in join_codes(connection):
        raise RefusedError(
            "wrong-code",
            "That join code is not valid, or no longer valid.",
            "Ask your instructor for the current one.",
        )


def join(connection: Connection, request: Join, at: float) -> tuple[Person, str]:
    """Let a learner in and return who it is, with the token.

    The code may be a link's, drawn for one learner: then it is they who work in a terminal too.

    Raises RefusedError for a wrong code, an empty or too long name, somebody who is not on the
    roster, and a name that has joined before while `request.same` leaves open who it is.
    """
    token = new_token()
    access = {"joined": at, "seen": at, "token_sha256": digest(token)}
    if owner := use_link(connection, request.code, at):
        table = tables.people
        connection.execute(update(table).where(table.c.id == owner.id).values(**access))
        return owner, token
    code = plain_code(request.code)
    require_join_code(connection, code)
    uses = tables.join_codes
    connection.execute(update(uses).where(uses.c.code == code).values(uses=uses.c.uses + 1))
    # Whoever names a student id means the roster, also where joining without one is allowed.
    if load_settings(connection).roster_only or request.student_id is not None:
        person = _from_roster(connection, request.student_id or "", access)
    else:
        name = checked_name(request.name)
        person = _new_learner(connection, name, request.same, at, access)
    note(connection, at, "joined", person=person.id)
    return person, token


def _new_learner(
    connection: Connection, name: str, same: bool | None, at: float, access: dict[str, Any]
) -> Person:
    """Add a learner. Raises RefusedError if somebody of that name has joined and `same` is None.

    Who says to be the same stays a separate learner until an instructor has confirmed it: a name
    proves nothing. Who is another one gets a number, so that the room can tell them apart.
    """
    people = tables.people
    named = connection.execute(
        select(people.c.id, people.c.name)
        .where(
            people.c.role == "learner", people.c.removed.is_(None), people.c.merged_into.is_(None)
        )
        .order_by(people.c.id)
    ).all()
    taken = {row.name.casefold(): row.id for row in reversed(named)}
    earlier = taken.get(name.casefold())
    if earlier is None:
        return add_person(connection, "learner", name, at, **access)
    if same is None:
        raise RefusedError(
            "same-name",
            f"Somebody called '{name}' has already joined.",
            "If that was you, on another machine or before: --same. If not: --other, or another"
            " name.",
        )
    number = 2
    while f"{name} ({number})".casefold() in taken:
        number += 1
    claims = earlier if same else None
    return add_person(connection, "learner", f"{name} ({number})", at, claims=claims, **access)


def _from_roster(connection: Connection, student_id: str, access: dict[str, Any]) -> Person:
    """Let in a learner who is on the roster and has not joined. Raises RefusedError otherwise.

    The ids of Canvas's student information system count too: of its own, learners know nothing.
    """
    people = tables.people
    known = [people.c[name] == student_id for name in ("student_id", "sis_id", "sis_login")]
    query = select(*PERSON_COLUMNS, people.c.joined, people.c.student_id)
    query = query.where(or_(*known), people.c.removed.is_(None))
    rows = connection.execute(query).all() if student_id else []
    # What is one learner's id and another's login means the former.
    row = next((one for one in rows if one.student_id == student_id or len(rows) == 1), None)
    if row is None:
        raise RefusedError(
            "not-on-roster",
            "That student id is not on this cohort's roster."
            if student_id
            else "Only those on this cohort's roster can join.",
            "Name your student id with `--id`, or ask your instructor to add you.",
        )
    if row.joined is not None:
        raise RefusedError(
            "already-joined",
            "Somebody has already joined with that student id.",
            "If that was you on another machine, ask your instructor to let you join again.",
        )
    connection.execute(update(people).where(people.c.id == row.id).values(**access))
    return as_person(row)


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
    if _staff_row(connection, name) is not None:
        raise RefusedError(
            "already-joined", f"Somebody is already called '{name}'.", "Choose another name."
        )
    return add_person(connection, role, clean(name), at, password_hash=hash_password(password))


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
        "Join again with `lab join URL CODE`.",
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
