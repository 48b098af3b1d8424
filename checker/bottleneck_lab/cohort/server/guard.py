"""Authentication and permission: tokens for programs, cookies and CSRF tokens for browsers.

Every route declares the role that it needs; a test walks all routes and fails for one without.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from bottleneck_lab.cohort.members.joining import join
from bottleneck_lab.cohort.members.people import Person, Role, by_token
from bottleneck_lab.cohort.members.sessions import Session, find_session, open_session
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.state import state

COOKIE = "bottleneck_lab"
MAX_FORM_BYTES = 1 << 20
MAX_FILES = 32

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class LoginNeededError(Exception):
    """Somebody who is not logged in wants a page that needs it: the browser goes to the login."""


def client(request: Request) -> str:
    """Return the address that a request comes from, for limits."""
    return request.client.host if request.client else "unknown"


def bearer(request: Request) -> str:
    """Return the token of a program. Raises RefusedError without one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise RefusedError(
            "not-joined", "This needs a learner's token.", "Join with `lab join URL CODE`."
        )
    return token


def api_person(request: Request) -> Person:
    """Return the learner whose token a request carries. Raises RefusedError if it is nobody's."""
    shared, token = state(request), bearer(request)
    shared.requests.count(token)
    with shared.cohort.database.reading() as connection:
        return by_token(connection, token)


def runner_token(request: Request) -> None:
    """Let only runners pass that have the cohort's token for them. Raises RefusedError."""
    shared = state(request)
    shared.wrong_codes.require(client(request))
    if not hmac.compare_digest(bearer(request), shared.cohort.runner_token()):
        shared.wrong_codes.count(client(request))
        raise RefusedError(
            "forbidden",
            "This is not the token of this cohort's runners, or no longer.",
            "`lab cohort token` on the server's machine prints the present one.",
        )


def session_of(request: Request) -> Session | None:
    """Return the browser's session; None if it has none."""
    token = request.cookies.get(COOKIE)
    if not token:
        return None
    database = state(request).cohort.database
    with database.reading() as connection:
        return find_session(connection, token, database.clock())


class Needs:
    """Let only those with a role pass; `None` marks a route that is open to everybody."""

    def __init__(self, role: Role | None) -> None:
        self.role = role

    def __call__(self, request: Request) -> Session | None:
        """Return the session. Raises LoginNeededError, or RefusedError for a lesser role."""
        session = session_of(request)
        if self.role is None:
            return session
        if session is None:
            raise LoginNeededError
        if not session.person.may(self.role):
            raise RefusedError("forbidden", "This page is not for you.", "Your own page is at /me.")
        return session


OPEN = Needs(None)
LEARNER = Needs("learner")
ASSISTANT = Needs("assistant")
INSTRUCTOR = Needs("instructor")

AsAnybody = Annotated[Session | None, Depends(OPEN)]
AsLearner = Annotated[Session, Depends(LEARNER)]
AsAssistant = Annotated[Session, Depends(ASSISTANT)]
AsInstructor = Annotated[Session, Depends(INSTRUCTOR)]
ByToken = Annotated[Person, Depends(api_person)]


class Fields(dict[str, str]):
    """Fields of a form by name, with the content of uploaded files in `files`."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}


async def read_form(request: Request) -> Fields:
    """Return the fields of a form, whoever sent it. Raises RefusedError if it is too large."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_FORM_BYTES:
        raise RefusedError("too-large", "This form is too large.", "Send less.")
    fields = Fields()
    for name, value in (await request.form(max_files=MAX_FILES, max_fields=1000)).items():
        if isinstance(value, str):
            fields[name] = value
        else:
            fields.files[name] = await value.read()
    return fields


async def form(request: Request) -> Fields:
    """Return the fields of a form that this browser's own page sent.

    Raises RefusedError for a foreign origin, a form that is too large, or a missing CSRF token.
    """
    origin = request.headers.get("origin")
    # Browsers send "null" from sandboxed pages and some redirects; the CSRF token decides then.
    if origin and origin != "null" and urlsplit(origin).netloc != request.headers.get("host"):
        raise RefusedError(
            "forbidden", "This form was sent from another site.", "Use the page itself."
        )
    fields = await read_form(request)
    session = await run_in_threadpool(session_of, request)
    # Compared in constant time: an attacker learns nothing from how long a wrong one takes.
    if session is not None and not hmac.compare_digest(fields.pop("csrf", ""), session.csrf):
        raise RefusedError(
            "forbidden",
            "This form was not sent from its own page.",
            "Reload the page and try again.",
        )
    # For the page that says what to change, should this be refused. Only what the browser's own
    # page sent: another site's fields are not shown on it.
    request.state.typed = fields
    return fields


Form = Annotated[Fields, Depends(form)]


def join_as(request: Request, message: Join) -> tuple[Person, str]:
    """Let a learner in by a join code, and return who it is, with the token.

    Raises RefusedError as `joining.join` does, and for too many joins or wrong codes.
    """
    shared = state(request)
    shared.joins.count(client(request))
    shared.wrong_codes.require(client(request))
    try:
        with shared.cohort.database.writing() as connection:
            return join(connection, message, shared.cohort.database.clock())
    except RefusedError as refused:
        if refused.code in ("wrong-code", "not-on-roster"):
            shared.wrong_codes.count(client(request))
        raise


def let_in(request: Request, person: Person, where: str) -> Response:
    """Open a session for this browser, and send it on to the page `where`."""
    database = state(request).cohort.database
    with database.writing() as connection:
        token = open_session(connection, person, database.clock())
    answer = RedirectResponse(where, status_code=303)
    # Behind a TLS proxy the request itself is plain HTTP; the public URL tells.
    secure = request.url.scheme == "https" or state(request).url.startswith("https:")
    answer.set_cookie(
        COOKIE, token, httponly=True, samesite="lax", secure=secure, path="/", max_age=12 * 3600
    )
    return answer


def declared(dependant: Any) -> set[Any]:
    """Return every guard that a route's dependencies name, for the test that walks all routes."""
    guards = {each.call for each in dependant.dependencies}
    return guards.union(*(declared(each) for each in dependant.dependencies))
