"""The API of runners on other machines: work out, results in. The server signs; they hold no key.

Every message names its runner, and concerns that runner's leases alone.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.running.dispatch import LocalDispatcher
from bottleneck_lab.cohort.running.leases import StaleError, peek
from bottleneck_lab.cohort.running.messages import (
    MAX_RUNNER_BYTES,
    Claim,
    Claimed,
    Conclusion,
    Done,
    GiveUp,
    Leave,
    Next,
    Offer,
    Register,
    Registered,
    SignOfLife,
)
from bottleneck_lab.cohort.server.guard import runner_token
from bottleneck_lab.cohort.server.state import answer, state
from bottleneck_lab.errors import LabError

router = APIRouter(prefix="/api/runner", dependencies=[Depends(runner_token)])
M = TypeVar("M", Claim, Conclusion, GiveUp, Leave, Next, Register, SignOfLife)


async def _message(request: Request) -> bytes:
    """Return the body. Raises RefusedError as soon as it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_RUNNER_BYTES:
            raise RefusedError("too-large", "This message is too large.", "Send less.")
    return bytes(body)


Body = Annotated[bytes, Depends(_message)]


def _decoded(body: bytes, type_: type[M]) -> M:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.DecodeError as error:
        raise RefusedError(
            "bad-request",
            f"This is not a runner of this version: {error}.",
            "Install the server's version on the runner.",
        ) from error


@router.post("/register")
def register(request: Request, body: Body) -> Response:
    """Let a runner begin. Raises RefusedError for another version, or one that cannot help."""
    message = _decoded(body, Register)
    if message.version != (own := version("bottleneck-lab")):
        raise RefusedError(
            "bad-request",
            f"The runner has version {message.version}, this server {own}.",
            "Install the server's version on the runner.",
        )
    try:
        held = _dispatcher(request, message.status.name).register(message.status)
    except LabError as error:
        raise RefusedError("cannot-help", error.message, error.remedy) from error
    return answer(Registered(held))


@router.post("/beat")
def beat(request: Request, body: Body) -> Response:
    """Take a runner's sign of life, and prolong its leases."""
    message = _decoded(body, SignOfLife)
    return answer(_dispatcher(request, message.status.name).beat(message.status, message.nonces))


@router.post("/next")
def next_(request: Request, body: Body) -> Response:
    """Return what is next on some devices, without leasing it."""
    message = _decoded(body, Next)
    with state(request).cohort.database.reading() as connection:
        return answer(Offer(peek(connection, message.runner, message.devices)))


@router.post("/claim")
def claim(request: Request, body: Body) -> Response:
    """Lease a submission, if it still is the next one."""
    message = _decoded(body, Claim)
    work = _dispatcher(request, message.runner).claim(
        message.devices, lambda waiting: message.slot if waiting.id == message.id else None
    )
    return answer(Claimed(work))


@router.post("/give-up")
def give_up(request: Request, body: Body) -> Response:
    """End a lease without a verdict."""
    message = _decoded(body, GiveUp)
    _dispatcher(request, message.runner).give_up(message.nonce, message.why, blame=message.blame)
    return answer(Done())


@router.post("/verdict")
def verdict(request: Request, body: Body) -> Response:
    """Sign and record what was measured. Raises RefusedError for what is not to be recorded."""
    message = _decoded(body, Conclusion)
    dispatcher = _dispatcher(request, message.runner)
    try:
        dispatcher.conclude(message.nonce, message.result, message.user)
    except StaleError as error:
        raise RefusedError("stale", error.message, error.remedy) from error
    except LabError as error:
        raise RefusedError("bad-request", error.message, error.remedy) from error
    return answer(Done())


@router.post("/leave")
def leave(request: Request, body: Body) -> Response:
    """Forget a runner that was stopped."""
    _dispatcher(request, _decoded(body, Leave).runner).leave()
    return answer(Done())


def _dispatcher(request: Request, name: str) -> LocalDispatcher:
    return LocalDispatcher(state(request).cohort, name)
