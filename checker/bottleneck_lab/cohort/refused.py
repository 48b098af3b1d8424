"""Every refusal of the server, with its HTTP status, in one place."""

from __future__ import annotations

from typing import Literal

from bottleneck_lab.cohort.protocol import Refusal
from bottleneck_lab.errors import ExitCode, LabError

Code = Literal[
    "bad-request",
    "not-joined",
    "wrong-code",
    "not-on-roster",
    "already-joined",
    "same-name",
    "on-roster",
    "too-large",
    "too-fast",
    "too-many-waiting",
    "budget-spent",
    "late",
    "not-open",
    "unknown-lab",
    "other-lab-version",
    "wrong-files",
    "bad-capture",
    "not-found",
    "altered",
    "forbidden",
    "cannot-help",
    "stale",
    "busy",
]

_STATUS: dict[Code, int] = {
    "bad-request": 400,
    "not-joined": 401,
    "wrong-code": 403,
    "not-on-roster": 403,
    "already-joined": 409,
    "same-name": 409,
    "on-roster": 409,
    "too-large": 413,
    "too-fast": 429,
    "too-many-waiting": 429,
    "budget-spent": 403,
    "late": 403,
    "not-open": 403,
    "unknown-lab": 404,
    "other-lab-version": 409,
    "wrong-files": 422,
    "bad-capture": 422,
    "not-found": 404,
    "altered": 409,
    "forbidden": 403,
    "cannot-help": 409,
    "stale": 409,
    "busy": 503,
}


_NOT_BY_THE_REQUEST: tuple[Code, ...] = ("altered", "busy", "cannot-help", "stale")
"""Refusals that no other request would avoid: not a mistake of whoever made it."""


class RefusedError(LabError):
    """The server turns a request down; message and remedy say why and what to do."""

    def __init__(
        self, code: Code, message: str, remedy: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, remedy)
        self.code = code
        self.retry_after_s = retry_after_s

        if code not in _NOT_BY_THE_REQUEST:
            self.exit_code = ExitCode.USAGE

    @property
    def status(self) -> int:
        """Return the HTTP status that goes with the code."""
        return _STATUS[self.code]

    def answer(self) -> Refusal:
        """Return the refusal as it is sent."""
        return Refusal(self.code, self.message, self.remedy, self.retry_after_s)
