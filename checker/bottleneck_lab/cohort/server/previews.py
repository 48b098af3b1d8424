"""Forms that decide grades: no change of points is saved before somebody has seen it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Connection

from bottleneck_lab.cohort.grading.preview import Preview, trying
from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.server.state import State, state

_OWN_FIELDS = {"action", "seen"}
"""Fields of a form that say what to do with it: a page that asks has its own."""


def save_or_preview(
    shared: State,
    fields: dict[str, str],
    change: Callable[[Connection, float], None],
    page: Callable[[Connection, Preview], Response],
    saved: str,
) -> Response:
    """Make a change and go on to the page `saved`, or show on the same page what it would do.

    It is shown where the form asks for that, or where points or ids would change and the form does
    not say that these very changes were shown. `page` is drawn as if it were saved: with what was
    typed.
    """
    database = shared.cohort.database
    with database.writing() as connection:
        now = database.clock()
        with trying(connection, shared.judge, lambda: change(connection, now)) as attempt:
            preview = attempt.preview
            seen = not preview.asks or fields.get("seen") == preview.digest
            attempt.keep = seen and fields.get("action") != "preview"
            if not attempt.keep:
                return page(connection, preview)
    return RedirectResponse(saved, status_code=303)


def do_or_preview(
    request: Request,
    session: Session,
    fields: dict[str, str],
    change: Callable[[Connection, float], None],
    label: Callable[[Connection], str],
    done: str,
) -> Response:
    """Make a change that a button asks for and go on to the page `done`, or ask first.

    A page of its own asks where points or ids would change: it shows which, and `label` is its
    title and its button. `label` reads the database after the change.
    """
    shared = state(request)

    def page(connection: Connection, preview: Preview) -> Response:
        return shared.page(
            "confirm.html",
            session,
            label=label(connection),
            path=request.url.path,
            fields={name: each for name, each in fields.items() if name not in _OWN_FIELDS},
            preview=preview,
        )

    return save_or_preview(shared, fields, change, page, done)
