"""The worker that runs a lab's trusted `standards`, and the untimed answers that wait for it."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.channel.messages import Value
from bottleneck_lab.measure.channel.session import CallSession

ROUNDING = 1e-3
"""How far the quick reference may be from the shipped code, in the judge's `disagreement`.

Measured: 1.5e-6 on a CPU. Arithmetic in TF32 on a GPU adds some; bfloat16 throughout is 2e-2.
"""


class Waiting(NamedTuple):
    """An untimed answer that is not yet judged. `compared`: whether it is also held against the
    ways that the brief allows and forbids.
    """

    case: str
    inputs: list[Value]
    answer: list[Any]
    compared: bool


class Standards:
    """The worker, and a queue of answers. `judge` gets each with the reference's answer and, where
    it is compared, those of the standards.

    It works in turns as long as a call of the reference, while the learner is frozen: the time
    between two calls does not tell the learner if the next is timed.
    """

    def __init__(
        self, session: CallSession, judge: Callable[[Waiting, list[Any], list[Any]], None]
    ) -> None:
        self._session = session
        self._judge = judge
        self._queue: deque[Waiting] = deque()
        # When the call that is under way began, on the verifier's clock.
        self._began: float | None = None

    def cpu_s(self) -> float:
        """Return CPU seconds used by the worker so far."""
        return self._session.worker.cpu_s()

    def add(self, waiting: Waiting) -> None:
        """Queue an answer."""
        self._queue.append(waiting)

    def turn(self, seconds: float) -> None:
        """Work for exactly so long; what is not finished then stays frozen until the next turn."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not self._queue:
                time.sleep(left)
            elif self._answered(left):
                self._judge_next()
            else:
                self._session.freeze("during a call")

    def finish(self) -> None:
        """Judge all answers that still wait."""
        while self._queue:
            self._answered(0.0)
            self._judge_next()

    def require_equal(
        self, inputs: list[Value], shipped: list[Any], distance: Callable[[Any, Any], float]
    ) -> None:
        """Raise LabError unless the quick reference answers as the shipped code has, but for
        rounding.
        """
        quick = self._session.call([*inputs, 0])[1]
        if (apart := distance(quick[0], shipped[0])) > ROUNDING:
            raise LabError(
                f"The lab's quick reference is {apart:.2g} away from the shipped code, more than"
                f" the {ROUNDING:.2g} that rounding explains.",
                "The lab's author must correct its standards file: untimed answers are judged by"
                " it.",
            )

    def _answered(self, within_s: float) -> bool:
        """Let the worker run; return True once its answer is there, False after so many seconds."""
        if self._began is None:
            following = self._queue[0]
            self._began = self._session.hand_over([*following.inputs, int(following.compared)])
        else:
            self._session.worker.thaw()
        return bool(select.select([self._session.channel.sock], [], [], within_s)[0])

    def _judge_next(self) -> None:
        assert self._began is not None
        reference, *ways = self._session.collect(self._began)[1]
        self._began = None
        self._judge(self._queue.popleft(), [reference], ways)
