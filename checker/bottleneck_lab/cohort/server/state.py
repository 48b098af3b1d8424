"""State that all requests share: the cohort, its limits, and the templates of its pages."""

from __future__ import annotations

import asyncio
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import msgspec
from fastapi import Request
from fastapi.responses import Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sqlalchemy import select

from bottleneck_lab.cohort.members.sessions import Session
from bottleneck_lab.cohort.moments import iso, local, local_iso
from bottleneck_lab.cohort.protocol import VERSION_HEADER
from bottleneck_lab.cohort.server.hub import Hub
from bottleneck_lab.cohort.server.limits import Limit
from bottleneck_lab.cohort.server.reports import Reports
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.intake import Intake
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.grading.diagnosis import stretch_rule
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.report.verdict_words import (
    SIGNS,
    describe_doubt,
    describe_open_gain,
    describe_standing,
    format_measured,
    format_target,
    mark_of,
)
from bottleneck_lab.wording import counted, spell_duration

if TYPE_CHECKING:
    from bottleneck_lab.cohort.folder import Cohort


KEEPS_TYPED = {
    *("case.html", "grade.html", "grading.html", "join.html", "lab.html"),
    *("my_lab.html", "person.html", "runsheet.html", "workshop.html"),
}
"""Pages that browsers keep, with what was typed, for whoever goes back to one: on a page that must
not be stored, a form that was refused would be empty. None of them shows a secret.
"""


class State:
    """Hold what all requests share. It lives as `app.state.shared`, one per process."""

    def __init__(self, cohort: Cohort, url: str) -> None:
        self.cohort = cohort
        self.url = url
        self.public_key = cohort.public_key
        self.judge = verdict_reader_of(self.public_key)
        self.intake = Intake(cohort)
        self.hub = Hub(cohort.database)
        # A room joins within a minute, often from behind one address translator, so the limit by
        # address is generous; guessing a code of 59 bits at 30 in ten minutes is hopeless.
        self.joins = Limit(400, 60)
        self.wrong_codes = Limit(30, 600)
        self.logins = Limit(10, 600)
        self.requests = Limit(240, 60)
        self.captures = Limit(20, 600)
        self.uploads = asyncio.Semaphore(4)  # each holds up to MAX_PACKED_BYTES in memory
        self.reports = Reports()
        self.templates = _templates()
        self.templates.filters["moment"] = self._moment
        with cohort.database.reading() as connection:
            self.identifier = connection.execute(select(tables.cohort.c.id)).scalar_one()
            # Of every page; only the server's own page of the workshop changes it.
            self.zone = load_settings(connection).timezone

    def _moment(self, at: float | str) -> str:
        """Format a moment for people: seconds since the epoch, or ISO 8601 as it came."""
        try:
            return local_iso(at if isinstance(at, str) else iso(at), self.zone)
        except ValueError:  # what a learner's machine calls a moment
            return plain(at)

    def render(self, name: str, **values: Any) -> str:
        """Render a template, or a part of a page."""
        return self.templates.get_template(name).render(values)

    def page(
        self, name: str, session: Session | None, status: int = 200, **values: Any
    ) -> Response:
        """Render a template as a response. Every form of a page carries `csrf()`."""

        def csrf() -> Markup:
            field = Markup('<input type="hidden" name="csrf" value="{}">')
            return field.format(session.csrf if session else "")

        shared = {
            "cohort": self.cohort.config.name,
            "session": session,
            "url": self.url,
            "csrf": csrf,
            "config": self.cohort.config,
            "zone": self.zone,
        }
        text = self.render(name, **{**shared, **values})
        page = Response(text, status, media_type="text/html; charset=utf-8")
        if name in KEEPS_TYPED:
            page.headers["Cache-Control"] = "private, max-age=0, must-revalidate"
        return page


def state(request: Request) -> State:
    """Return the state of the application that this request came to."""
    return cast("State", request.app.state.shared)


def answer(message: msgspec.Struct, status: int = 200) -> Response:
    """Return a message as a JSON response."""
    return Response(
        msgspec.json.encode(message),
        status,
        {VERSION_HEADER: version("bottleneck-lab")},
        media_type="application/json",
    )


def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("bottleneck_lab.cohort.server"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        iso=iso,
        local=local,
        plain=plain,
        prose=prose,
        figure=figure,
        counted=counted,
        duration=spell_duration,
        points=points,
        holding=holding,
        doubt=describe_doubt,
        open_gain=describe_open_gain,
        measured=format_measured,
        target=format_target,
        standing=describe_standing,
        sign=lambda result: SIGNS[mark_of(result)],
        stretch_rule=stretch_rule,
    )
    return environment


def plain(text: object) -> str:
    """Replace characters that a browser would act on or that hide others.

    For text that learners wrote: a direction override could make a name read as another's.
    """
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in str(text))


def prose(text: object) -> Markup:
    """Return sentences as HTML, with what stands in backticks as code."""
    # Escaped first: the sentence may quote what a learner wrote.
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(plain(text)))))


def points(value: float) -> str:
    """Format points, with the hundredths that `to_points` leaves only where there are any."""
    return f"{value:.2f}".removesuffix("0")


def holding(criterion: CriterionResult) -> str:
    """Return how a criterion stands: a sign and a word."""
    mark = mark_of(criterion)
    return f"{SIGNS[mark]} {mark}"


def figure(value: float | None, unit: str = "") -> str:
    """Format a measured number with its unit, as verdicts show it; a dash for None."""
    return "–" if value is None else format_figure(value, unit)
