"""A learner's own pages, and the leaderboard."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import update
from starlette.concurrency import run_in_threadpool

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.cohort.members import sessions
from bottleneck_lab.cohort.members.calls import call_for_help, end_call
from bottleneck_lab.cohort.members.people import checked_name
from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.protocol import files_of
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server.guard import AsLearner, Form, form
from bottleneck_lab.cohort.server.state import state
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.attempts import load_capture, load_known_record, load_submission
from bottleneck_lab.cohort.view.leaderboard import load_leaderboard
from bottleneck_lab.cohort.view.standing import load_me, load_standing
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.workspace.commitments import hides_causes

router = APIRouter()
MAX_PSEUDONYM = 40


@router.get("/me")
def me(request: Request, session: AsLearner) -> Response:
    """Show the learner's own page."""
    return _me(request, session, "me.html")


@router.get("/me/live")
def me_live(request: Request, session: AsLearner) -> Response:
    """Return the part of the page that changes."""
    return _me(request, session, "_me.html")


def _me(request: Request, session: Session, template: str) -> Response:
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        me = load_me(connection, shared.judge, session.person, shared.cohort.database.clock())
        leaderboard = load_settings(connection).leaderboard
    return shared.page(template, session, me=me, leaderboard=leaderboard)


@router.get("/me/submissions/{handle}")
def my_submission(
    request: Request, session: AsLearner, handle: str, against: str = "shipped"
) -> Response:
    """Show one's own submission: what was changed, and the verdict, once that is released."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        standing = load_standing(
            connection, shared.judge, session.person, handle, shared.cohort.database.clock()
        )
        whole = load_submission(connection, shared.judge, shared.cohort.blobs, handle, against)
    verdict = msgspec.json.decode(standing.verdict, type=Verdict) if standing.verdict else None
    return shared.page(
        "my_submission.html", session, standing=standing, verdict=verdict, whole=whole
    )


@router.get("/me/submissions/{handle}/capture")
async def my_capture(request: Request, session: AsLearner, handle: str) -> Response:
    """Show the report of the capture of one's own submission.

    Causes and findings appear once a diagnosis of that lab was committed, as in a terminal.
    Raises RefusedError if there is no capture, or it cannot be read.
    """
    shared = state(request)

    def look() -> tuple[Lab, str, bool]:
        with shared.cohort.database.reading() as connection:
            now = shared.cohort.database.clock()
            load_standing(connection, shared.judge, session.person, handle, now)  # one's own
            slug, capture = load_capture(connection, handle)
            lab = load_labs()[slug]
            record = load_known_record(connection, session.person, slug)
            return lab, capture, hides_causes(lab, record)

    lab, capture, blind = await run_in_threadpool(look)
    return await shared.reports.page(
        capture, lab.spec.title, lambda: files_of(shared.cohort.blobs.get(capture)), blind=blind
    )


@router.post("/me/terminal", dependencies=[Depends(form)])
def connect_terminal(request: Request, session: AsLearner) -> Response:
    """Show the command by which `lab` in a terminal submits as this learner."""
    database = state(request).cohort.database
    with database.writing() as connection:
        token = sessions.new_link(connection, session.person, database.clock())
    return state(request).page("terminal.html", session, token=token)


@router.post("/me/help")
def call(request: Request, session: AsLearner, fields: Form) -> Response:
    """Call for help, or take the call back."""
    database = state(request).cohort.database
    with database.writing() as connection:
        if fields.get("action") == "end":
            end_call(connection, session.person, database.clock())
        else:
            text = fields.get("text", "")
            call_for_help(connection, session.person, text, database.clock())
    return RedirectResponse("/me", status_code=303)


@router.post("/me/leaderboard")
def show_me(request: Request, session: AsLearner, fields: Form) -> Response:
    """Appear on the leaderboard under a pseudonym, or no longer.

    Raises RefusedError for a pseudonym that is too long.
    """
    table = tables.people
    pseudonym = fields.get("pseudonym", "").strip() or session.person.pseudonym
    pseudonym = checked_name(pseudonym, MAX_PSEUDONYM)
    values = {"on_leaderboard": fields.get("shown") == "yes", "pseudonym": pseudonym}
    with state(request).cohort.database.writing() as connection:
        connection.execute(update(table).where(table.c.id == session.person.id).values(values))
    return RedirectResponse("/me", status_code=303)


@router.get("/leaderboard")
def leaderboard(request: Request, session: AsLearner) -> Response:
    """Show the leaderboard. Raises RefusedError in a cohort without one."""
    shared = state(request)
    with shared.cohort.database.reading() as connection:
        if not load_settings(connection).leaderboard:
            raise RefusedError(
                "not-found", "This cohort has no leaderboard.", "Your own page is at /me."
            )
        rows = load_leaderboard(connection, shared.judge, shared.cohort.database.clock())
    return shared.page("leaderboard.html", session, rows=rows)
