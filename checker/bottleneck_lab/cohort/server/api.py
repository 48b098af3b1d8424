"""The API of learners' clients: JSON both ways; every refusal is a `Refusal`."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from bottleneck_lab.catalog import current_name
from bottleneck_lab.cohort.grading.rules import load_rules
from bottleneck_lab.cohort.members import people, sessions
from bottleneck_lab.cohort.members.calls import call_for_help, end_call
from bottleneck_lab.cohort.members.people import Person
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import (
    MAX_BODY_BYTES,
    MAX_CAPTURE_BYTES,
    Allowed,
    Help,
    Join,
    Joined,
    LoginLink,
    OpenHelp,
    Standing,
    Stored,
    Submission,
    content_of,
    files_of,
)
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.guard import OPEN, ByToken, api_person, bearer, join_as
from bottleneck_lab.cohort.server.state import answer, state
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.handing_in import files_problem
from bottleneck_lab.cohort.submissions.ledger import Ledger
from bottleneck_lab.cohort.view.standing import load_me, load_standing
from bottleneck_lab.cohort.workshop import workshop_labs

router = APIRouter(prefix="/api")
MOST_WAIT_S = 25.0
UPLOAD_S = 60.0
MAX_PACKED_BYTES = MAX_CAPTURE_BYTES * 4 // 3 + (64 << 10)
"""A capture in Base64, with names."""

Received = TypeVar("Received", Help, Join, Submission)


async def _read(request: Request, most_bytes: int) -> bytes:
    """Return the request's body. Raises RefusedError as soon as it is too large."""
    body = bytearray()
    # Counted while it comes: Content-Length may be missing, or lie.
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise RefusedError(
                "too-large",
                f"A request may have at most {most_bytes >> 10} KiB.",
                "Submit source code only.",
            )
    return bytes(body)


async def _body(request: Request, type_: type[Received]) -> Received:
    """Return the request's message. Raises RefusedError if it is too large or not of that type."""
    body = await _read(request, MAX_BODY_BYTES)
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.DecodeError as error:
        raise RefusedError(
            "bad-request",
            f"bottleneck-lab {version('bottleneck-lab')} cannot read this request: {error}.",
            "Install that version, which the server has.",
        ) from error


@router.post("/join", dependencies=[Depends(OPEN)])
async def join(request: Request) -> Response:
    """Let a learner in."""
    message = await _body(request, Join)
    return answer(await run_in_threadpool(_join, request, message))


def _join(request: Request, message: Join) -> Joined:
    shared = state(request)
    person, token = join_as(request, message)
    with shared.cohort.database.reading() as connection:
        labs = workshop_labs(connection)
    return Joined(
        shared.identifier,
        shared.cohort.config.name,
        person.handle,
        person.name,
        token,
        shared.public_key,
        labs,
    )


@router.post("/submissions", dependencies=[Depends(bearer)])
async def submit(request: Request) -> Response:
    """Take in a submission, and answer once it is on the disk."""
    # The token is looked up in the intake, together with those of other requests.
    token = bearer(request)
    state(request).requests.count(token)
    submission = await _body(request, Submission)
    accepted = await asyncio.wrap_future(state(request).intake.offer(token, submission))
    return answer(accepted, 201)


@router.get("/captures/{name}", dependencies=[Depends(api_person)])
def has_capture(request: Request, name: str) -> Response:
    """Confirm that a capture is here already, so that nobody sends it twice.

    Raises RefusedError if it is not.
    """
    if not state(request).cohort.blobs.holds(name):
        raise RefusedError("not-found", "That capture is not here.", "`lab submit` sends it.")
    return answer(Stored(name))


@router.post("/captures")
async def store_capture(request: Request, person: ByToken) -> Response:
    """Store the files of a capture, for a submission that names it.

    Raises RefusedError for too many, too slow or too large ones, and for what is not a capture.
    """
    shared = state(request)
    shared.captures.count(person.handle)
    try:
        # Few at a time, and none for long: each is held in memory until it is on the disk.
        async with shared.uploads, asyncio.timeout(UPLOAD_S):
            content = await _read(request, MAX_PACKED_BYTES)
            return answer(await run_in_threadpool(_store, request, content), 201)
    except TimeoutError as error:
        raise RefusedError(
            "busy", f"A capture took longer than {UPLOAD_S:.0f} s to arrive.", "Try again."
        ) from error


def _store(request: Request, content: bytes) -> Stored:
    try:
        files = files_of(content)
    except msgspec.DecodeError as error:
        raise RefusedError(
            "bad-request", f"This is not a capture: {error}.", "`lab submit` sends it."
        ) from error
    if problem := files_problem(files):
        raise RefusedError("wrong-files", problem, "`lab profile` makes one.")
    (name,) = state(request).cohort.blobs.put([content_of(files)])
    return Stored(name)


@router.get("/submissions/{handle}")
async def submission_standing(
    request: Request, person: ByToken, handle: str, after: int = -1, wait: float = 0.0
) -> Response:
    """Return where one submission is.

    With `after`, only once its version is a later one or `wait` seconds have passed.
    """
    shared = state(request)

    def look() -> Standing:
        with shared.cohort.database.reading() as connection:
            return load_standing(
                connection, shared.judge, person, handle, shared.cohort.database.clock()
            )

    loop = asyncio.get_running_loop()
    end = loop.time() + min(wait, MOST_WAIT_S)
    standing = await run_in_threadpool(look)
    while standing.version <= after and (left_s := end - loop.time()) > 0:
        # Every few seconds all the same: an event may come between the look and the wait.
        await shared.hub.next(person, min(left_s, 5.0))
        standing = await run_in_threadpool(look)
    return answer(standing)


@router.get("/submissions/{handle}/capture")
def made_capture(request: Request, person: ByToken, handle: str) -> Response:
    """Return the capture that a runner made for one of this learner's submissions."""
    shared, table = state(request), tables.submissions
    with shared.cohort.database.reading() as connection:
        own = table.c.person.in_(people.same_learner(connection, person))
        query = select(table.c.made).where(table.c.handle == handle, own)
        made = connection.execute(query).scalar()
    if made is None:
        raise RefusedError(
            "not-found", "There is no capture of yours with that name.", "`lab status` lists them."
        )
    return Response(shared.cohort.blobs.get(made), media_type="application/json")


@router.get("/me")
def me(request: Request, person: ByToken) -> Response:
    """Return the cohort as this learner sees it."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        return answer(load_me(connection, shared.judge, person, shared.cohort.database.clock()))


@router.get("/labs/{slug}/help")
def open_help(request: Request, person: ByToken, slug: str) -> Response:
    """Return what help of a lab this learner may take."""
    database = state(request).cohort.database
    with database.reading() as connection:
        rules = load_rules(connection, current_name(slug), person.id)
        zone = load_settings(connection).timezone
    now = database.clock()
    hints_from, solution_from = (
        iso(at) if at is not None and now < at else None
        for at in (rules.hints_at, rules.solution_at)
    )
    return answer(OpenHelp(rules.hints_open_at(now), hints_from, solution_from, zone))


@router.get("/labs/{slug}/allowed")
def allowed(request: Request, person: ByToken, slug: str) -> Response:
    """Return whether this learner may submit to a lab now. Raises RefusedError if not."""
    database = state(request).cohort.database
    with database.reading() as connection:
        ledger = Ledger(connection, [person], [], database.clock())
        return answer(Allowed(ledger.require_allowed(person, current_name(slug))))


@router.post("/help")
async def help_wanted(request: Request, person: ByToken) -> Response:
    """Call for help, or take the call back."""
    message = await _body(request, Help)
    await run_in_threadpool(_call, request, person, message)
    return answer(message)


def _call(request: Request, person: Person, message: Help) -> None:
    database = state(request).cohort.database
    with database.writing() as connection:
        if message.text is None:
            end_call(connection, person, database.clock())
        else:
            call_for_help(connection, person, message.text, database.clock())


@router.post("/login-link")
def login_link(request: Request, person: ByToken) -> Response:
    """Return a link that opens this learner's own page in a browser, once.

    Raises RefusedError for staff: their token may lie on a machine that learners use.
    """
    if person.may("assistant"):
        raise RefusedError(
            "forbidden",
            "A terminal does not open the pages of instructors and assistants.",
            "Log in at /login, or by the link of `lab cohort link`.",
        )
    database = state(request).cohort.database
    with database.writing() as connection:
        token = sessions.new_link(connection, person, database.clock())
    return answer(LoginLink(f"/login/{token}"))
