"""Pages and streams for everybody: joining, logging in, changes, health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from bottleneck_lab.cohort.members import joining, people, sessions
from bottleneck_lab.cohort.members.secrets import plain_code
from bottleneck_lab.cohort.metrics import render_metrics
from bottleneck_lab.cohort.protocol import Join
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.guard import (
    COOKIE,
    LEARNER,
    OPEN,
    AsAnybody,
    AsLearner,
    Form,
    client,
    form,
    join_as,
    let_in,
)
from bottleneck_lab.cohort.server.state import state
from bottleneck_lab.cohort.settings import load_settings

router = APIRouter()


@router.get("/")
def first(session: AsAnybody) -> Response:
    """Send a browser to the page where its owner belongs."""
    if session is None:
        page = "/login"
    elif session.person.may("assistant"):
        page = "/room"
    else:
        page = "/me"
    return RedirectResponse(page, status_code=303)


@router.get("/join/{code}")
def how_to_join(request: Request, session: AsAnybody, code: str) -> Response:
    """Show the command that learners type, and a form; the page behind the QR code.

    Raises RefusedError if the code is not valid.
    """
    shared, typed = state(request), plain_code(code)
    with shared.cohort.database.reading() as connection:
        joining.require_join_code(connection, typed)
        roster_only = load_settings(connection).roster_only
    return shared.page(
        "join.html", session, code=typed, roster_only=roster_only, same_name="", ids=""
    )


@router.post("/join/{code}", dependencies=[Depends(OPEN)])
def join_here(request: Request, session: AsAnybody, code: str, fields: Form) -> Response:
    """Let a learner in who works in this browser. Asks who it is if the name has joined before."""
    shared = state(request)
    same = {"yes": True, "no": False}.get(fields.get("same", ""))
    name, student_id = fields.get("name", ""), fields.get("student_id", "").strip()
    try:
        joined = join_as(request, Join(plain_code(code), name, student_id or None, same))
    except RefusedError as refused:
        if refused.code not in ("same-name", "on-roster"):
            raise
        with shared.cohort.database.reading() as connection:
            ids = joining.kinds_of_id(connection) if refused.code == "on-roster" else ""
        return shared.page(
            "join.html",
            session,
            409,
            code=plain_code(code),
            roster_only=False,
            same_name=name,
            ids=ids,
        )
    return let_in(request, joined[0], "/me")


@router.get("/login")
def login_page(request: Request, session: AsAnybody) -> Response:
    """Show the form for instructors and assistants."""
    return state(request).page("login.html", session, wrong=False)


@router.post("/login", dependencies=[Depends(OPEN)])
def login(request: Request, fields: Form) -> Response:
    """Check name and password. A wrong one takes as long as a right one."""
    shared, name = state(request), fields.get("name", "")
    # By name too: an attacker with many addresses has no more tries at one instructor.
    for who in (client(request), f"name {name.lower()}"):
        shared.logins.require(who)
    with shared.cohort.database.reading() as connection:
        person = people.check_password(connection, name, fields.get("password", ""))
    if person is None:
        for who in (client(request), f"name {name.lower()}"):
            shared.logins.count(who)
        return shared.page("login.html", None, 403, wrong=True)
    return let_in(request, person, "/")


@router.get("/login/{token}", dependencies=[Depends(OPEN)])
def login_by_link(request: Request, token: str) -> Response:
    """Log in by a link from the terminal. Raises RefusedError if it was used or is too old."""
    database = state(request).cohort.database
    with database.writing() as connection:
        person = sessions.use_link(connection, token, database.clock())
    if person is None:
        raise RefusedError(
            "forbidden",
            "This link has been used, or has expired.",
            "Ask for another: `lab status --web`, or `lab cohort link`.",
        )
    return let_in(request, person, "/")


@router.post("/logout", dependencies=[Depends(LEARNER), Depends(form)])
def logout(request: Request) -> Response:
    """End this browser's session."""
    with state(request).cohort.database.writing() as connection:
        sessions.close_session(connection, request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/login", status_code=303)
    # Some pages are kept for *Back*: not for whoever sits down at this browser next.
    answer.headers["Clear-Site-Data"] = '"cache"'
    return answer


@router.get("/events")
async def events(request: Request, session: AsLearner) -> Response:
    """Stream the changes that concern this session, as an EventSource reads them."""
    return StreamingResponse(
        state(request).hub.stream(session.person), media_type="text/event-stream"
    )


@router.get("/health/live", dependencies=[Depends(OPEN)])
def live() -> Response:
    """Confirm that the server answers."""
    return Response("ok\n", media_type="text/plain")


@router.get("/metrics", dependencies=[Depends(OPEN)])
def metrics(request: Request) -> Response:
    """Return figures for Prometheus."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        text = render_metrics(
            connection, shared.judge, shared.cohort.database.clock(), shared.hub.watchers
        )
    return Response(text, media_type="text/plain; version=0.0.4")


@router.get("/health/ready", dependencies=[Depends(OPEN)])
def ready(request: Request) -> Response:
    """Confirm that the server and its database answer."""
    with state(request).cohort.database.reading() as connection:
        connection.exec_driver_sql("SELECT 1")
    return Response("ok\n", media_type="text/plain")
