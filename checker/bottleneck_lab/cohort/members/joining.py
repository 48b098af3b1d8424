"""Joining a cohort: the codes that let learners in, and who they are then."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, or_, select, update

from bottleneck_lab.cohort.members.people import (
    PERSON_COLUMNS,
    Person,
    add_person,
    as_person,
    checked_name,
)
from bottleneck_lab.cohort.members.secrets import digest, new_code, new_token, plain_code
from bottleneck_lab.cohort.members.sessions import use_link
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note


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
        select(people.c.id, people.c.name, people.c.joined, *(people.c[each] for each in _IDS))
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
        alike = [row for row in named if row.name.casefold() == name.casefold()]
        # Whoever is on the roster and not there yet has their id to say so.
        if all(row.joined is None and any(getattr(row, each) for each in _IDS) for row in alike):
            raise RefusedError(
                "on-roster",
                f"{name} is on the roster and has not joined yet.",
                f"If that is you, join with `--id` and your {kinds_of_id(connection)}. If not:"
                " --other, or another name.",
            )
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


_IDS = ("student_id", "sis_id", "sis_login", "canvas_id")
"""Ids with which a learner of a roster can join."""


def kinds_of_id(connection: Connection) -> str:
    """Name the ids by which learners of the roster join, such as "SIS user id or SIS login id"."""
    people = tables.people
    ids = connection.execute(
        select(*(func.count(func.nullif(people.c[name], "")).label(name) for name in _IDS)).where(
            people.c.role == "learner", people.c.removed.is_(None)
        )
    ).one()
    # Of GitHub Classroom and of tables of one's own, the login is no information system's.
    login = "login" if ids.student_id and not ids.sis_id else "SIS login id"
    names = {"student_id": "student id", "sis_id": "SIS user id", "sis_login": login}
    kinds = [name for column, name in names.items() if getattr(ids, column)]
    return " or ".join(kinds) or "number in Canvas (its column ID)"


def _not_on_roster(connection: Connection, student_id: str) -> RefusedError:
    """Return the refusal of an id that is nobody's, or of whoever names none."""
    if not student_id:
        return RefusedError(
            "not-on-roster",
            "Only those on this cohort's roster can join.",
            "Name your student id with `--id`, or ask your instructor to add you.",
        )
    people = tables.people
    rows = connection.execute(
        select(*(people.c[name] for name in _IDS)).where(
            people.c.role == "learner", people.c.removed.is_(None)
        )
    )
    ids = {each for row in rows for each in row if each}
    if not ids:
        return RefusedError(
            "not-on-roster",
            "This cohort has no roster, so no student id is on it.",
            "Join without `--id`.",
        )
    # Spreadsheets take an id for a number and drop its leading zeros; people type a login in the
    # case of their name.
    plain = student_id.lstrip("0").casefold()
    alike = [each for each in ids if each.lstrip("0").casefold() == plain]
    remedy = "Check how your institution writes it, or ask your instructor to add you."
    if len(alike) == 1:
        remedy = f"The roster has {alike[0]}: if that is yours, join with it (`--id {alike[0]}`)."
    return RefusedError(
        "not-on-roster", f"'{student_id[:40]}' is not on this cohort's roster.", remedy
    )


def _from_roster(connection: Connection, student_id: str, access: dict[str, Any]) -> Person:
    """Let in a learner who is on the roster and has not joined. Raises RefusedError otherwise.

    The ids of Canvas's student information system count too: of its own, learners know nothing.
    """
    people = tables.people
    known = [people.c[name] == student_id for name in _IDS]
    query = select(*PERSON_COLUMNS, people.c.joined, people.c.student_id)
    query = query.where(or_(*known), people.c.removed.is_(None))
    rows = connection.execute(query).all() if student_id else []
    # What is one learner's id and another's login means the former.
    row = next((one for one in rows if one.student_id == student_id or len(rows) == 1), None)
    if row is None:
        raise _not_on_roster(connection, student_id)
    if row.joined is not None:
        raise RefusedError(
            "already-joined",
            "Somebody has already joined with that student id.",
            "If that was you on another machine, ask your instructor to let you join again.",
        )
    connection.execute(update(people).where(people.c.id == row.id).values(**access))
    return as_person(row)
