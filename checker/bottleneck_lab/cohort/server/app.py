"""The application: its routes, its security headers, and how every error is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.running.dispatch import UnavailableError
from bottleneck_lab.cohort.server import (
    api,
    cases,
    common,
    grades,
    labs,
    learner,
    people,
    runners,
    staff,
    workshop,
)
from bottleneck_lab.cohort.server.guard import HEADERS, Fields, LoginNeededError, session_of
from bottleneck_lab.cohort.server.state import State, answer, state
from bottleneck_lab.cohort.server.typed import page_of_form, refill
from bottleneck_lab.cohort.structs import inspect_structs
from bottleneck_lab.errors import LabError

if TYPE_CHECKING:
    from bottleneck_lab.cohort.folder import Cohort

ROUTERS = (
    api.router,
    common.router,
    staff.router,
    workshop.router,
    grades.router,
    people.router,
    learner.router,
    labs.router,
    cases.router,
    runners.router,
)
STATIC = Path(__file__).with_name("static")


def create_app(cohort: Cohort, url: str) -> FastAPI:
    """Make the application of an opened cohort; `url` is where learners reach it."""
    inspect_structs()  # before threads decode any of them
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
    if cohort.config.oidc or cohort.config.lti:
        # The packages that this needs are an extra of their own.
        from bottleneck_lab.cohort.server import sign_in  # noqa: PLC0415

        sign_in.mount(app, shared)
    app.mount("/static", StaticFiles(directory=STATIC))
    app.exception_handler(RefusedError)(_refused)
    for unknown in (HTTPException, RequestValidationError):
        app.exception_handler(unknown)(_unknown)
    app.exception_handler(LoginNeededError)(
        lambda _request, _error: RedirectResponse("/login", status_code=303)
    )
    app.exception_handler(LabError)(_failed)
    # A database that restarts is no fault of the request: clients try again by themselves.
    for gone in (OperationalError, InterfaceError, UnavailableError):
        app.exception_handler(gone)(_no_database)
    app.add_middleware(_Headers)
    return app


class _Headers:
    """Add the security headers to every answer.

    Plain ASGI, since Starlette's own middleware costs as much as the rest of a request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Put the headers before those of the answer, except where the answer has its own."""

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


async def _refused(request: Request, refused: Any) -> Response:
    if request.url.path.startswith("/api/"):
        response = answer(refused.answer(), refused.status)
    elif (again := await _form_again(request, refused)) is not None:
        response = again
    else:
        response = await run_in_threadpool(_problem, request, refused, refused.status)
    if refused.retry_after_s:
        response.headers["Retry-After"] = f"{refused.retry_after_s:.0f}"
    return response


async def _failed(request: Request, error: Any) -> Response:
    return await _refused(request, RefusedError("busy", error.message, error.remedy))


def _problem(request: Request, problem: LabError, status: int) -> Response:
    return state(request).page("problem.html", session_of(request), status, problem=problem)


async def _form_again(request: Request, refused: RefusedError) -> Response | None:
    """Return the page of the form that was refused, with what was typed; None without one."""
    fields: Fields | None = getattr(request.state, "typed", None)
    if request.method == "GET" and request.query_params:
        fields = Fields()
        fields.update(request.query_params)
    page = await page_of_form(request) if fields is not None else None
    if fields is None or page is None:
        return None
    # A link with a query is no form, and has nothing that could be typed again.
    if request.method == "GET" and f'action="{request.url.path}"' not in page[1]:
        return None
    notice = state(request).render(
        "_refused.html",
        problem=refused,
        typed=any(fields.values()),
        files=any(fields.files.values()),
    )
    path, text = page
    text = refill(text, path, request.url.path, fields, notice)
    return Response(text, refused.status, media_type="text/html; charset=utf-8")


async def _unknown(request: Request, error: Any) -> Response:
    """Answer a request for what there is not: in words, for people and for programs."""
    path, status = request.url.path, getattr(error, "status_code", 400)
    message, remedy = f"There is no page at {path}.", "Your own page is at /me."
    if path == "/courses" or path.startswith(("/oidc/", "/lti/")):
        message = "This cohort has neither accounts nor courses of an institution."
        remedy = "A section `[oidc]` or `[[lti]]` in the `cohort.toml` of its folder adds them."
    elif status != 404:
        message, remedy = "This address does not take that.", "Follow the links of the pages."
    problem = RefusedError("not-found" if status == 404 else "bad-request", message, remedy)
    if path.startswith("/api/"):
        return answer(problem.answer(), status)
    return await run_in_threadpool(_problem, request, problem, status)


def _no_database(request: Request, _error: Any) -> Response:
    refused = RefusedError(
        "busy", "The cohort's database does not answer.", "Try again in a moment.", 2.0
    )
    if request.url.path.startswith("/api/"):
        return answer(refused.answer(), refused.status)
    # Not a page: a page looks for the browser's session, which is in that database.
    return Response(
        f"{refused.message} {refused.remedy}\n", refused.status, media_type="text/plain"
    )
