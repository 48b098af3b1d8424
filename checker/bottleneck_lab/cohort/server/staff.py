"""The instructor's pages.

Assistants see the room and can help; only instructors decide who is in, what counts and what is
measured again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Connection, select, update
from starlette.concurrency import run_in_threadpool

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.grading.grades import load_students
from bottleneck_lab.cohort.grading.preview import Preview
from bottleneck_lab.cohort.grading.rules import load_rules, set_rules
from bottleneck_lab.cohort.members import people
from bottleneck_lab.cohort.members.changes import former_people
from bottleneck_lab.cohort.members.joining import (
    join_codes,
    new_join_code,
    restore_join_code,
    revoke_join_code,
    revoked_codes,
)
from bottleneck_lab.cohort.members.people import clean
from bottleneck_lab.cohort.members.qr import qr_page
from bottleneck_lab.cohort.members.roster import describe_roster, enter_roster, read_roster
from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.protocol import files_of
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.running import leases
from bottleneck_lab.cohort.server.forms import lab_field, moment_field, number_field
from bottleneck_lab.cohort.server.guard import (
    ASSISTANT,
    INSTRUCTOR,
    AsAssistant,
    AsInstructor,
    Form,
    form,
)
from bottleneck_lab.cohort.server.previews import save_or_preview
from bottleneck_lab.cohort.server.state import State, state
from bottleneck_lab.cohort.settings import change_settings, load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.cohort.view.attempts import load_attempts, load_capture, load_submission
from bottleneck_lab.cohort.view.lab import load_distribution
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.errors import UsageError

router = APIRouter()
MIN_PASSWORD = 12
"""Characters of a password."""


@router.get("/room")
def room(request: Request, session: AsAssistant) -> Response:
    """Show everybody at a glance."""
    return _room(request, session, "room.html")


@router.get("/room/live")
def room_live(request: Request, session: AsAssistant) -> Response:
    """Return the part of the room that changes."""
    return _room(request, session, "_room.html")


def _room(request: Request, session: Session, template: str) -> Response:
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        view = load_room(connection, shared.judge, shared.cohort.database.clock())
        joining = _joining(shared, connection)
    return shared.page(template, session, room=view, **joining)


@router.get("/room/joining")
def joining(request: Request, session: AsAssistant) -> Response:
    """Show how to join and nothing of anybody, for a projector."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        return shared.page("joining.html", session, **_joining(shared, connection))


def _joining(shared: State, connection: Connection) -> dict[str, Any]:
    codes = join_codes(connection)
    qr = qr_page(f"{shared.url}/join/{codes[0]}") if codes else ""
    return {"codes": codes, "qr": qr, "roster_only": load_settings(connection).roster_only}


@router.post("/room/announce")
def announce(request: Request, session: AsAssistant, fields: Form) -> Response:
    """Announce something to all learners, withdraw an announcement, or undo that."""
    database, table = state(request).cohort.database, tables.announcements
    with database.writing() as connection:
        now = database.clock()
        if number := number_field(fields.get("withdraw", "")):
            connection.execute(update(table).where(table.c.id == number).values(withdrawn=now))
        elif number := number_field(fields.get("again", "")):
            connection.execute(update(table).where(table.c.id == number).values(withdrawn=None))
        elif text := clean(fields.get("text", ""), 500):
            connection.execute(table.insert().values(at=now, author=session.person.id, text=text))
        note(connection, now, "announced")
    return RedirectResponse("/room", status_code=303)


@router.post("/room/pause", dependencies=[Depends(INSTRUCTOR)])
def pause(request: Request, fields: Form) -> Response:
    """Pause checks, or resume them. Submissions are taken in all the same."""
    database = state(request).cohort.database
    with database.writing() as connection:
        change_settings(connection, paused=fields.get("paused") == "yes")
        note(connection, database.clock(), "settings")
    return RedirectResponse("/room", status_code=303)


@router.get("/labs/{slug}")
def lab(request: Request, session: AsAssistant, slug: str) -> Response:
    """Show one lab over all learners."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        return _lab(shared, session, connection, lab_field(slug))


def _lab(
    shared: State,
    session: Session,
    connection: Connection,
    slug: str,
    preview: Preview | None = None,
) -> Response:
    distribution = load_distribution(connection, shared.judge, slug)
    rules, zone = load_rules(connection, slug), load_settings(connection).timezone
    attempts = load_attempts(connection, shared.judge, tables.submissions.c.lab == slug)
    names = people.told_apart(connection.execute(select(tables.people)))
    return shared.page(
        "lab.html",
        session,
        lab=load_labs()[slug],
        distribution=distribution,
        rules=rules,
        zone=zone,
        attempts=attempts[:200],
        names=names,
        preview=preview,
    )


_MOMENTS = ("opens", "due", "closes", "feedback_at", "hints_at", "solution_at")


@router.post("/labs/{slug}")
def change_lab(request: Request, session: AsInstructor, slug: str, fields: Form) -> Response:
    """Set the moments of a lab, its budget and how many hints are open."""
    shared, slug = state(request), lab_field(slug)
    numbers = {name: number_field(fields.get(name, "")) for name in ("budget", "hints_open")}

    def change(connection: Connection, now: float) -> None:
        zone = load_settings(connection).timezone
        moments = {name: moment_field(fields.get(name, ""), zone) for name in _MOMENTS}
        set_rules(connection, slug, now, **numbers, **moments)

    def page(connection: Connection, preview: Preview) -> Response:
        return _lab(shared, session, connection, slug, preview)

    return save_or_preview(shared, fields, change, page, f"/labs/{slug}#saved")


@router.post("/labs/{slug}/regrade", dependencies=[Depends(INSTRUCTOR)])
def regrade_lab(request: Request, slug: str, fields: Form) -> Response:
    """Measure a lab's submissions again; with `checker`, those of that version of the checker."""
    shared = state(request)
    with shared.cohort.database.writing() as connection:
        judged = shared.judge.latest(connection, tables.submissions.c.lab == slug)
        chosen = [
            one.submission for one in judged if fields.get("checker", one.checker) == one.checker
        ]
        leases.regrade(connection, chosen, shared.cohort.database.clock())
    return RedirectResponse("/room", status_code=303)


@router.get("/submissions/{handle}")
def submission(
    request: Request, session: AsAssistant, handle: str, against: str = "shipped"
) -> Response:
    """Show one submission: files, verdicts, attempts at measuring it."""
    shared, table = state(request), tables.people
    with shared.cohort.database.reading() as connection:
        whole = load_submission(connection, shared.judge, shared.cohort.blobs, handle, against)
        owner = connection.execute(select(table).where(table.c.handle == whole.person)).one()
        counts = owner.role == "learner" and owner.removed is None
        graded = counts and whole.attempt.lab in workshop_labs(connection)
    return shared.page("submission.html", session, whole=whole, graded=graded)


@router.get("/submissions/{handle}/capture", dependencies=[Depends(ASSISTANT)])
async def capture_report(request: Request, handle: str) -> Response:
    """Show the report of the capture that came with a submission, with causes and findings.

    Raises RefusedError if there is none, or it cannot be read.
    """
    shared = state(request)

    def look() -> tuple[str, str]:
        with shared.cohort.database.reading() as connection:
            return load_capture(connection, handle)

    lab, capture = await run_in_threadpool(look)
    return await shared.reports.page(
        capture, load_labs()[lab].spec.title, lambda: files_of(shared.cohort.blobs.get(capture))
    )


@router.post("/submissions/{handle}/regrade", dependencies=[Depends(INSTRUCTOR), Depends(form)])
def regrade(request: Request, handle: str) -> Response:
    """Measure it again; the verdicts so far stay on record."""
    database = state(request).cohort.database
    with database.writing() as connection:
        leases.regrade(connection, [handle], database.clock())
    return RedirectResponse(f"/submissions/{handle}", status_code=303)


@router.post("/settings/roster", dependencies=[Depends(INSTRUCTOR)])
def roster(request: Request, session: AsInstructor, fields: Form) -> Response:
    """Add the learners of a CSV file, or correct them, and say how many there were.

    Raises RefusedError if it cannot be read.
    """
    database = state(request).cohort.database
    try:
        read = read_roster(fields.files.get("roster", b""))
    except UsageError as error:
        raise RefusedError("bad-request", error.message, error.remedy) from error
    with database.writing() as connection:
        added, corrected = enter_roster(connection, read.learners, database.clock())
    return _settings(request, session, describe_roster(read, added, corrected))


@router.get("/settings")
def settings(request: Request, session: AsInstructor) -> Response:
    """Show the settings of the whole cohort."""
    return _settings(request, session)


def _settings(request: Request, session: Session, done: str = "") -> Response:
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        values = load_settings(connection)
        codes, revoked = join_codes(connection), revoked_codes(connection)
        removed, merged = former_people(connection)
        learners = len(load_students(connection))
        table = tables.people
        staff = connection.execute(
            select(table.c.handle, table.c.name, table.c.role)
            .where(table.c.role != "learner", table.c.removed.is_(None))
            .order_by(table.c.id)
        ).all()
    return shared.page(
        "settings.html",
        session,
        done=done,
        settings=values,
        codes=codes,
        revoked=revoked,
        staff=staff,
        learners=learners,
        removed=removed,
        merged=merged,
        runner_token=shared.cohort.runner_token(),
    )


_FIELDS = ("max_waiting", "min_interval_s", "max_failures", "job_limit_s")


@router.post("/settings", dependencies=[Depends(INSTRUCTOR)])
def change(request: Request, fields: Form) -> Response:
    """Set limits, the leaderboard and who may join. Raises RefusedError for a wrong value."""
    database = state(request).cohort.database
    numbers = {name: number_field(fields[name]) for name in _FIELDS if fields.get(name, "").strip()}
    flags = {name: fields.get(name) == "yes" for name in ("leaderboard", "roster_only")}
    try:
        with database.writing() as connection:
            change_settings(connection, **numbers, **flags)
            note(connection, database.clock(), "settings")
    except msgspec.ValidationError as error:
        raise RefusedError("bad-request", f"{error}.", "Correct that value.") from error
    return RedirectResponse("/settings#saved", status_code=303)


@router.post("/settings/codes", dependencies=[Depends(INSTRUCTOR)])
def codes(request: Request, fields: Form) -> Response:
    """Add a join code, revoke one, or undo that."""
    database = state(request).cohort.database
    with database.writing() as connection:
        if code := fields.get("revoke"):
            revoke_join_code(connection, code, database.clock())
        elif code := fields.get("restore"):
            restore_join_code(connection, code, database.clock())
        else:
            new_join_code(connection, database.clock())
    return RedirectResponse("/settings#saved", status_code=303)


@router.post("/settings/runners", dependencies=[Depends(INSTRUCTOR), Depends(form)])
def new_runner_token(request: Request) -> Response:
    """Draw another token for runners; those with the old one end."""
    state(request).cohort.runner_token(renew=True)
    return RedirectResponse("/settings#saved", status_code=303)


@router.post("/settings/staff", dependencies=[Depends(INSTRUCTOR)])
def staff(request: Request, fields: Form) -> Response:
    """Add an assistant or an instructor. Raises RefusedError if something is missing."""
    name, role = clean(fields.get("name", "")), fields.get("role", "")
    password = _password(fields)
    if not name or role not in ("assistant", "instructor"):
        raise RefusedError("bad-request", "A name and a role are needed.", "Fill in both.")
    database = state(request).cohort.database
    with database.writing() as connection:
        people.add_staff(connection, role, name, password, database.clock())  # type: ignore[arg-type]  # one of the two
    return RedirectResponse("/settings#saved", status_code=303)


@router.post("/settings/staff/{handle}/password", dependencies=[Depends(INSTRUCTOR)])
def new_password(request: Request, handle: str, fields: Form) -> Response:
    """Give one of the staff another password. Raises RefusedError if it is too short."""
    database, password = state(request).cohort.database, _password(fields)
    with database.writing() as connection:
        person = people.by_handle(connection, handle)
        people.renew_password(connection, person, password, database.clock())
    return RedirectResponse("/settings#saved", status_code=303)


def _password(fields: dict[str, str]) -> str:
    password = fields.get("password", "")
    if len(password) < MIN_PASSWORD:
        raise RefusedError(
            "bad-request",
            f"A password has at least {MIN_PASSWORD} characters.",
            "Choose a longer one.",
        )
    return password
