"""The verifier's side of a sandbox's first process (init.py): where there is no control group, it stops and continues everything in the sandbox."""

from __future__ import annotations

import contextlib
import socket
import time

from bottleneck_lab.measure.sandbox.pid1 import IN_ALL

ANSWER_S = 1.0
"""How long the answer to an order may take beyond what the order itself may."""


class Silent(Exception):  # noqa: N818 - what happened, as the names of the wire's are
    """The first process did not answer in time."""


class Namespace:
    """The processes of one sandbox. Once their first process is gone, so are they all: what is asked of them then is done."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders = 0

    def fileno(self) -> int:
        """The descriptor that the first process is to have."""
        return self._theirs.fileno()

    def started(self) -> None:
        """It has its descriptor now."""
        self._theirs.close()

    def stop(self, patience_s: float) -> bool:
        """Stops all of them at once and waits until none runs; False where they go on for `patience_s` of CPU time. Raises Silent."""
        answer = self._ask(f"stop {patience_s}", IN_ALL * patience_s)
        return answer is None or answer[0] == 1

    def go(self) -> None:
        """Lets them go on."""
        self._order("go")

    def broken(self) -> tuple[float, bool]:
        """CPU seconds that stopped processes have used all the same, and whether one was born or has ended.

        None of it where nobody answers: the first process is gone, or stopped from outside, and then no call is answered either.
        """
        with contextlib.suppress(Silent):
            answer = self._ask("look")
            return (answer[0] / 1e9, bool(answer[1])) if answer else (0.0, False)
        return 0.0, False

    def close(self) -> None:
        """Ends them."""
        self._socket.close()

    def _order(self, order: str) -> int:
        self._orders += 1
        # An error: it is gone, or was stopped from outside for so long that no order is read; then it is silent.
        with contextlib.suppress(OSError):
            self._socket.settimeout(ANSWER_S)
            self._socket.send(f"{self._orders} {order}".encode())
        return self._orders

    def _ask(self, order: str, takes_s: float = 0.0) -> list[int] | None:
        """The numbers of the answer; None when there is nobody any more."""
        number, end = self._order(order), time.monotonic() + takes_s + ANSWER_S
        while True:
            self._socket.settimeout(max(1e-3, end - time.monotonic()))
            try:
                answer = [int(word) for word in self._socket.recv(64).split()]
            except TimeoutError:
                raise Silent from None
            except OSError:
                return None
            if not answer:
                return None
            if answer[0] == number:  # and not the late answer to an earlier order
                return answer[1:]
