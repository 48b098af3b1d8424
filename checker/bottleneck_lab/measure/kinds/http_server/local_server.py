"""Run the learner's server in the learner's own folder and put it under load: the parent's end of
child_profiled.py, for every kind of server.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.channel.messages import Ran, Ready
from bottleneck_lab.measure.channel.wire import Channel, TimedOut, WireError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level, Load
from bottleneck_lab.measure.kinds.http_server.load.loops import compare_loops
from bottleneck_lab.measure.kinds.profiling import child_command
from bottleneck_lab.measure.sandbox.children import OnLine, stream
from bottleneck_lab.programs import as_options

WARM_UP_S, CAPTURED_S, LEAD_S = 2.0, 4.0, 1.0
LOOP_S = 6.0
FIRST_ANSWER_S = 60.0


class Ended(Exception):  # noqa: N818 - says what, as `raise` reads
    """The server has ended while it was under load."""


class LocalServer:
    """The learner's server. `batches`: those that a device ran for it; `control`: the descriptor of
    the pipe for commands.
    """

    def __init__(self, channel: Channel, address: str, control: int) -> None:
        self.address = address
        self.batches: list[Ran] = []
        self._channel = channel
        self._control = control

    def command(self, word: str, value: float) -> None:
        """Send a command: `capture` for some seconds, or a constant of the server and its value."""
        os.write(self._control, f"{word} {value}\n".encode())

    def follow(self, seconds: float) -> None:
        """Record for `seconds` the batches of a device. Raises Ended if the server is gone."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                message = self._channel.receive(left_s)
            except TimedOut:
                continue
            except WireError as error:
                raise Ended from error
            if isinstance(message, Ran):
                self.batches.append(message)
            elif not isinstance(message, Ready):
                raise Ended


Work = Callable[[LocalServer], None]


def compare(
    server: LocalServer, load: Load, clients: int, on_line: OnLine
) -> tuple[Level, Level] | None:
    """Load the server in a closed loop, then at that rate in an open one; print and return both.
    Returns None if nothing was answered.
    """
    closed = load.closed(server.address, clients, LOOP_S, server.follow)
    rate = closed.rate(LOOP_S)
    if not rate:
        on_line(
            f"None of {clients} concurrent clients got an answer within {LOOP_S:.0f} s, so there is"
            " no rate to compare at.\n"
        )
        return None
    opened = load.open(server.address, rate, LOOP_S, server.follow)
    on_line(compare_loops(closed, opened, clients, rate))
    return closed, opened


def load_for_capture(server: LocalServer, load: Load, clients: int) -> None:
    """Load the server for as long as a capture takes, and have it capture itself meanwhile."""
    threading.Timer(WARM_UP_S, server.command, ["capture", CAPTURED_S]).start()
    load.closed(server.address, clients, WARM_UP_S + CAPTURED_S + LEAD_S, server.follow)


@dataclass(frozen=True)
class Launch:
    """How the learner's server is started. fds: the options of `program` that name descriptors.
    channel: the one on which its messages arrive. end: closes the other end of the channel when the
    server is gone. options: further ones of `program`.
    """

    program: str
    fds: dict[str, int]
    channel: Channel
    end: Callable[[], None]
    options: tuple[str, ...] = ()


def serve_locally(
    context: Context[Any],
    launch: Launch,
    load: Load,
    work: Work,
    on_line: OnLine,
    trace: Path | None = None,
) -> tuple[int, list[Ran]]:
    """Run the learner's server until `work` is done. It can be captured to `trace`.

    Returns its exit status, and the batches that a device ran for it. Raises what `work` raises.
    """
    theirs, ours = os.pipe()
    server, problems = LocalServer(launch.channel, str(address_of(context)), ours), list[LabError]()
    worker = threading.Thread(target=_work, args=(server, load, work, ours, problems), daemon=True)
    worker.start()
    fds = {**launch.fds, "--control": theirs}
    options = [*as_options(fds), *launch.options, *(["--trace", str(trace)] if trace else [])]
    command = child_command(launch.program, context, options)
    # The janitor removes this folder, with what a killed server leaves there. An operator of
    # PyTorch runs on as many threads as in a check.
    environment = {
        "TMPDIR": str(context.janitor.folder),
        "OMP_NUM_THREADS": str(context.settings.threads),
    }
    status = stream(
        command, context.workspace, context.janitor, on_line, environment, tuple(fds.values())
    )
    # The server has ended. Whoever still loads it must notice, so both ends close before the join.
    os.close(theirs)
    launch.end()
    worker.join()
    for problem in problems:
        raise problem
    return status, server.batches


def address_of(context: Context[Any]) -> Path:
    """Return the path at which the server listens."""
    return context.janitor.folder / "server.sock"


def _work(
    server: LocalServer, load: Load, work: Work, control: int, problems: list[LabError]
) -> None:
    """Wait until the server answers, do the work, and end the server."""
    try:
        level = load.closed(server.address, 1, 0.1, server.follow, patience_s=FIRST_ANSWER_S)
        # Without an answer the server's own output says what is wrong.
        if (level.status == OK).any():
            work(server)
    except LabError as problem:
        problems.append(problem)
    except Ended:
        pass  # its exit status says so
    finally:
        os.close(control)
