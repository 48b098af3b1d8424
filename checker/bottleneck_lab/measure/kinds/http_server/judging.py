"""Make the requests of a lab's judge, and decide if the answers are right."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from bottleneck_lab.judging import Request
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server import HttpServerSettings
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level
from bottleneck_lab.measure.kinds.http_server.load.messages import Array, Messages, head, message


class Requests:
    """Requests that a judge makes, each known by its number."""

    def __init__(self, context: Context[HttpServerSettings]) -> None:
        self._judge: ModuleType = context.judge()
        self._data, self._settings = context.data, context.settings.judge
        self.made: list[Request] = []

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Have the judge make `count` requests; return their numbers."""
        begin = len(self.made)
        for _ in range(count):
            request = self._judge.make_request(rng, self._data, self._settings)
            self.made.append(_require_request(request, "make_request"))
        return np.arange(begin, len(self.made))

    def messages(self, numbers: Array) -> Messages:
        """Return the messages of the requests with these numbers."""
        chosen = [self.made[number] for number in numbers]
        # Bodies differ, but there are few different heads: each is kept once.
        heads: dict[bytes, int] = {}
        parts = [heads.setdefault(head_of(request), len(heads)) for request in chosen]
        rows = [[part, len(heads) + body] for body, part in enumerate(parts)]
        bodies = [request.body for request in chosen]
        return Messages([*heads, *bodies], np.array(rows, np.int64).reshape(-1, 2))

    def bad(self, rng: np.random.Generator) -> list[bytes]:
        """Return requests that must be refused, as bytes to send; none if the judge makes none."""
        make = getattr(self._judge, "bad_requests", None)
        if make is None:
            return []
        requests = [_require_request(each, "bad_requests") for each in make(rng, self._settings)]
        return [message(head_of(request), request.body) for request in requests]

    def wrong(self, number: int, reply: bytes) -> str | None:
        """Return the judge's complaint about the answer to the request of that number, if any."""
        complaint = self._judge.judge(self.made[number], reply, self._settings)
        if complaint is not None and not isinstance(complaint, str):
            raise VerifierFault(
                f"`judge` of judge.py returned {complaint!r}; it must return None, or a sentence"
                " that says what is wrong."
            )
        return complaint


def check_answers(
    level: Level,
    requests: Requests,
    judged: int,
    rng: np.random.Generator,
    all_of: Array | None = None,
) -> str | None:
    """Return what is wrong with the answers of a level, as a sentence, or None.

    `judged` of them are drawn and judged. `all_of`: numbers of the requests that must have been
    answered; others may be refused.
    """
    if all_of is not None and (problem := refused(level, all_of)):
        return problem
    # Which ones is drawn only now, when all the answers are there.
    answered = np.flatnonzero(level.status == OK)
    for number in np.sort(rng.permutation(answered)[:judged]):
        if problem := requests.wrong(int(level.requests[number]), level.replies[number]):
            return f"Request {number + 1} of {len(level.status)}: {problem}"
    return None


def refused(level: Level, all_of: Array) -> str | None:
    """Return how many of these requests were not answered, as a sentence; None if all were."""
    missed = all_of[level.status[all_of] != OK]
    if not len(missed):
        return None
    status = int(level.status[missed[0]])
    reply = f"status {status}" if status > 0 else "no answer"
    return f"{len(missed)} of {len(all_of)} good requests got {reply}."


def head_of(request: Request) -> bytes:
    """Return the head that a request is sent with."""
    return head(request.method, request.path, request.content_type)


def _require_request(request: Any, function: str) -> Request:
    if not isinstance(request, Request):
        raise VerifierFault(
            f"`{function}` of judge.py returned {request!r}; it must return requests, as `get` and"
            " `post` make them."
        )
    return request
