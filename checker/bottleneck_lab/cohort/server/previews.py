"""Forms whose values decide grades: nothing is saved that changes points which nobody has seen."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Connection

from bottleneck_lab.cohort.grading.preview import Preview, trying
from bottleneck_lab.cohort.server.state import State


def save_or_preview(
    shared: State,
    fields: dict[str, str],
    change: Callable[[Connection, float], None],
    page: Callable[[Connection, Preview], Response],
    saved: str,
) -> Response:
    """Make a change and go on to the page `saved`, or show on the same page what it would do.

    It is shown where the form asks for that, or where points would change and the form does not say
    that these very changes were shown. `page` is drawn as if it were saved: with what was typed.
    """
    database = shared.cohort.database
    with database.writing() as connection:
        now = database.clock()
        with trying(connection, shared.judge, lambda: change(connection, now)) as attempt:
            preview = attempt.preview
            seen = not preview.changes or fields.get("seen") == preview.digest
            attempt.keep = seen and fields.get("action") != "preview"
            if not attempt.keep:
                return page(connection, preview)
    return RedirectResponse(saved, status_code=303)
