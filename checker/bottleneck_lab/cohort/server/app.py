"""The application: what all requests share, and how every error is answered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottleneck_lab.cohort.members.people import Session
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.server import api, common, learner, staff
from bottleneck_lab.cohort.server.api import answer
from bottleneck_lab.cohort.server.guard import HEADERS, LoginNeededError, find, state
from bottleneck_lab.cohort.server.hub import Hub
from bottleneck_lab.cohort.server.limits import Limit
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.structs import inspect_structs
from bottleneck_lab.cohort.submissions.intake import Intake
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.report.words import lab_name

if TYPE_CHECKING:
    from bottleneck_lab.cohort.folder import Cohort

ROUTERS = (api.router, common.router, staff.router, learner.router)
STATIC = Path(__file__).with_name("static")


class State:
    """What all requests share."""

    def __init__(self, cohort: Cohort, url: str) -> None:
        self.cohort = cohort
        self.url = url
        self.public_key = cohort.public_key
        self.judge = verdict_reader_of(self.public_key)
        self.intake = Intake(cohort)
        self.hub = Hub(cohort.database)
        self.joins = Limit(400, 60)
        self.wrong_codes = Limit(30, 600)
        self.logins = Limit(10, 600)
        self.requests = Limit(240, 60)
        self.captures = Limit(20, 600)
        self.uploads = asyncio.Semaphore(4)
        self.reading = threading.Lock()
        self.templates = _templates()
        with cohort.database.reading() as connection:
            self.identifier = connection.execute(select(tables.cohort.c.id)).scalar_one()

    def page(
        self, name: str, session: Session | None, status: int = 200, **values: Any
    ) -> Response:
        """A page from its template."""
        shared = {
            "cohort": self.cohort.config.name,
            "session": session,
            "url": self.url,
            "csrf": partial(_csrf, session),
        }
        text = self.templates.get_template(name).render({**shared, **values})
        return Response(text, status, media_type="text/html; charset=utf-8")


def _csrf(session: Session | None) -> Markup:
    """The hidden field that every form of a page carries."""
    return Markup('<input type="hidden" name="csrf" value="{}">').format(
        session.csrf if session else ""
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
        iso=iso, plain=plain, figure=figure, counted=counted, lab_name=lab_name
    )
    return environment


def plain(text: object) -> str:
    """Text that learners wrote, without characters that a browser would act on or that hide others."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in str(text))


def counted(count: int, noun: str) -> str:
    """`1 hint`, `2 hints`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def figure(value: float | None, unit: str = "") -> str:
    """A measured number with its unit, as verdicts show it."""
    return "–" if value is None else format_figure(value, unit)


def create_app(cohort: Cohort, url: str) -> FastAPI:
    """The application of an opened cohort; `url` is where learners reach it."""

    inspect_structs()
    shared = State(cohort, url)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        follower = asyncio.create_task(shared.hub.follow())
        with shared.intake:
            yield
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.shared = shared
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC))
    app.exception_handler(RefusedError)(_refused)
    app.exception_handler(LoginNeededError)(_login)
    app.exception_handler(LabError)(_broken)
    for gone in (OperationalError, InterfaceError):
        app.exception_handler(gone)(_no_database)
    app.add_middleware(_Headers)
    return app


class _Headers:
    """Adds the security headers to every answer. Plain ASGI: Starlette's own middleware costs as
    much as the rest of a request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, with the headers put before those of the answer; where that has one of its own,
        it holds.
        """

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *(each for each in _RAW_HEADERS if each[0] not in own),
                    *message["headers"],
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)


_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def _refused(request: Request, refused: Any) -> Response:

    headers = {"Retry-After": f"{refused.retry_after_s:.0f}"} if refused.retry_after_s else {}
    if request.url.path.startswith("/api/"):
        response = answer(refused.answer(), refused.status)
    else:
        response = state(request).page(
            "problem.html", find(request), refused.status, problem=refused
        )
    response.headers.update(headers)
    return response


def _login(_request: Request, _needed: Any) -> Response:
    return RedirectResponse("/login", status_code=303)


def _broken(request: Request, error: Any) -> Response:
    return _refused(request, RefusedError("busy", error.message, error.remedy))


def _no_database(request: Request, _error: Any) -> Response:

    refused = RefusedError(
        "busy", "The cohort's database does not answer.", "Try again in a moment.", 2.0
    )
    if request.url.path.startswith("/api/"):
        return answer(refused.answer(), refused.status)
    return Response(
        f"{refused.message} {refused.remedy}\n", refused.status, media_type="text/plain"
    )
