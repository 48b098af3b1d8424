"""The requests of a lab's judge, and whether the answers are right."""

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
        """So many new ones: their numbers."""
        begin = len(self.made)
        for _ in range(count):
            made = self._judge.make_request(rng, self._data, self._settings)
            self.made.append(_required(made, "make_request"))
        return np.arange(begin, len(self.made))

    def messages(self, asked: Array) -> Messages:
        """What is sent for these. Their heads are few, whatever their number."""
        chosen = [self.made[number] for number in asked]
        parts = {head_of(request): place for place, request in enumerate(chosen)}
        heads = {first: place for place, first in enumerate(parts)}
        rows = [
            [heads[head_of(request)], len(heads) + place] for place, request in enumerate(chosen)
        ]
        return Messages(
            [*heads, *(request.body for request in chosen)], np.array(rows, np.int64).reshape(-1, 2)
        )

    def bad(self, rng: np.random.Generator) -> list[bytes]:
        """Requests that must be refused, as they are sent; none if the judge makes none."""
        make = getattr(self._judge, "bad_requests", None)
        made = (
            [_required(each, "bad_requests") for each in make(rng, self._settings)] if make else []
        )
        return [message(head_of(request), request.body) for request in made]

    def wrong(self, number: int, reply: bytes) -> str | None:
        """What the judge says of the answer to the request of that number."""
        said = self._judge.judge(self.made[number], reply, self._settings)
        if said is not None and not isinstance(said, str):
            raise VerifierFault(
                f"`judge` of judge.py returned {said!r}; it must return None, or a sentence that"
                " says what is wrong."
            )
        return said


def check_answers(
    level: Level,
    requests: Requests,
    judged: int,
    rng: np.random.Generator,
    all_of: Array | None = None,
) -> str | None:
    """What is wrong with the answers of a level, as a sentence, or None. `all_of`: those that must
    have been answered; others may be refused.
    """
    if all_of is not None and (problem := refused(level, all_of)):
        return problem
    answered = np.flatnonzero(level.status == OK)
    for number in np.sort(rng.permutation(answered)[:judged]):
        if problem := requests.wrong(int(level.asked[number]), level.replies[number]):
            return f"Request {number + 1} of {len(level.status)}: {problem}"
    return None


def refused(level: Level, all_of: Array) -> str | None:
    """How many of these requests were not answered, as a sentence; None if all were."""
    missed = all_of[level.status[all_of] != OK]
    if not len(missed):
        return None
    how = int(level.status[missed[0]])
    words = f"status {how}" if how > 0 else "no answer"
    return f"{len(missed)} of {len(all_of)} good requests got {words}."


def head_of(request: Request) -> bytes:
    """The head that it is sent with."""
    return head(request.method, request.path, request.content_type)


def _required(made: Any, function: str) -> Request:
    if not isinstance(made, Request):
        raise VerifierFault(
            f"`{function}` of judge.py returned {made!r}; it must return requests, as `get` and"
            " `post` make them."
        )
    return made
