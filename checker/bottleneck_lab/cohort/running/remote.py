"""The dispatcher of a runner on another machine: the cohort's server, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import TypeVar

import msgspec

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.running.dispatch import Beat, UnavailableError, Work
from bottleneck_lab.cohort.running.job import Result
from bottleneck_lab.cohort.running.leases import Choose, Lease, StaleError
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
from bottleneck_lab.cohort.running.workers import RunnerStatus
from bottleneck_lab.errors import MachineError

Reply = TypeVar("Reply", Beat, Claimed, Done, Offer, Registered)
PATIENCE_S = 15.0
"""A server that restarts is waited for; leases last longer."""


class RemoteDispatcher:
    """The dispatcher of a runner called `name` that has the cohort's address and a token."""

    def __init__(self, url: str, token: str, name: str) -> None:
        self._client = Client(
            url, token, patience_s=PATIENCE_S, most_bytes=MAX_RUNNER_BYTES, timeout_s=60.0
        )
        self._name = name

    def register(self, status: RunnerStatus) -> list[Lease]:
        message = Register(status, version("bottleneck-lab"))
        try:
            return self._ask("register", message, Registered).leases
        except RefusedByServerError as refused:
            if refused.code == "cannot-help":
                raise MachineError(refused.message, refused.remedy) from refused
            raise

    def beat(self, status: RunnerStatus, nonces: list[str]) -> Beat:
        return self._ask("beat", SignOfLife(status, nonces), Beat)

    def claim(self, devices: Iterable[Device], choose: Choose) -> Work | None:
        known = sorted(devices)
        waiting = self._ask("next", Next(self._name, known), Offer).waiting
        if waiting is None or (slot := choose(waiting)) is None:
            return None
        claim = Claim(self._name, known, waiting.id, slot)
        return self._ask("claim", claim, Claimed).work

    def set_job(self, lease: Lease, job: str) -> None:
        """Do nothing: jobs of a plain machine end with their runner."""

    def give_up(self, nonce: str, why: str, *, blame: bool = True) -> None:
        self._ask("give-up", GiveUp(self._name, nonce, why, blame), Done)

    def conclude(self, nonce: str, result: Result, user: str) -> None:
        try:
            self._ask("verdict", Conclusion(self._name, nonce, result, user), Done)
        except RefusedByServerError as refused:
            if refused.code == "stale":
                raise StaleError from refused
            raise

    def leave(self) -> None:
        self._ask("leave", Leave(self._name), Done)

    def _ask(self, path: str, message: msgspec.Struct, type_: type[Reply]) -> Reply:
        client = self._client
        try:
            reply = client.post(f"/api/runner/{path}", msgspec.json.encode(message))
        except RefusedByServerError:
            raise
        except MachineError as error:  # no answer, however often it was asked
            raise UnavailableError(error.message) from error
        # A server that was updated meanwhile has other labs: what is measured here is not its own.
        if client.server_version not in ("", own := version("bottleneck-lab")):
            raise MachineError(
                f"{client.url} now has bottleneck-lab {client.server_version}, and this runner"
                f" {own}.",
                "Install the server's version on the runner, and start it again.",
            )
        try:
            return msgspec.json.decode(reply, type=type_)
        except msgspec.DecodeError as error:
            raise client.unreadable(str(error)) from error
