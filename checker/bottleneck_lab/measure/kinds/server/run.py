"""`lab run` and `lab profile` of a server: what a check does, without the secrets or the sandbox."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.channel.messages import Ran, Ready
from bottleneck_lab.measure.channel.wire import TimedOut, WireError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.feed.device_process import DeviceProcess
from bottleneck_lab.measure.kinds.feed.device_rows import add_rows
from bottleneck_lab.measure.kinds.profiling import child_command
from bottleneck_lab.measure.kinds.server import ServerSettings
from bottleneck_lab.measure.kinds.server.check import Bench, preprocess_s
from bottleneck_lab.measure.kinds.server.level import OK
from bottleneck_lab.measure.kinds.server.loops import compare_loops
from bottleneck_lab.measure.kinds.server.plateau import SIZES, max_batch_of, point, show_points
from bottleneck_lab.measure.kinds.server.session import device_times_s, listen, start_device
from bottleneck_lab.measure.sandbox.children import OnLine, stream

CHILD = "bottleneck_lab.measure.kinds.server.profiled"
STANDS_FOR = "an accelerator whose time for a batch is set by what the shipped pre-processing takes on this machine"
WARM_UP_S, CAPTURED_S, LEAD_S = 2.0, 4.0, 1.0
LOOP_S, POINT_S = 6.0, 2.5
FIRST_ANSWER_S = 60.0


class Ended(Exception):  # noqa: N818 - says what, as `raise` reads
    """The server has ended while it was under load."""


class LocalServer:
    """The learner's server while it runs. `batches`: what its device ran; `control`: where it hears what to capture."""

    def __init__(self, device: DeviceProcess, address: str, control: int) -> None:
        self.device = device
        self.address = address
        self.batches: list[Ran] = []
        self._control = control

    def tell(self, word: str, value: float) -> None:
        """Has the server's process `capture` for so many seconds, or sets a constant of the server."""
        os.write(self._control, f"{word} {value}\n".encode())

    def follow(self, seconds: float) -> None:
        """Notes for so long what the device runs. Raises Ended when the server has gone."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self._receive(left_s)

    def _receive(self, seconds: float) -> None:
        try:
            message = self.device.channel.receive(seconds)
        except TimedOut:
            return
        except WireError as error:
            raise Ended from error
        if isinstance(message, Ran):
            self.batches.append(message)
        elif not isinstance(message, Ready):
            raise Ended


def run(context: Context[ServerSettings], on_line: OnLine) -> int:
    """Loads the server with each maximum batch size, then in a closed loop and in an open one, side by side; its exit status, 0 where it served to the end."""
    size = max_batch_of(context.workspace / context.lab.spec.entry)

    def work(server: LocalServer, bench: Bench) -> None:
        if size is not None:
            on_line(_plateau(server, bench, size))
        clients = context.settings.batch
        closed = bench.load.closed(server.address, clients, LOOP_S, server.follow)
        rate = closed.rate(LOOP_S)
        opened = bench.load.open(server.address, rate, LOOP_S, server.follow)
        on_line(compare_loops(closed, opened, clients, rate))

    return _serve(context, on_line, work, [])[0]


def _plateau(server: LocalServer, bench: Bench, shipped: int) -> str:
    """What the server answers with one maximum batch size after another, as text; it has its own again afterwards."""
    points, clients = [], bench.context.settings.clients
    for size in SIZES:
        server.tell("MAX_BATCH", size)
        before = len(server.batches)
        level = bench.load.closed(server.address, clients, POINT_S, server.follow, patience_s=FIRST_ANSWER_S)
        points.append(point(size, level, POINT_S, [len(batch.means) for batch in server.batches[before:]]))
    server.tell("MAX_BATCH", shipped)
    return show_points(points, clients)


def profile(context: Context[ServerSettings], trace: Path, on_line: OnLine) -> int:
    """Captures the server under load with torch.profiler, the device's batches beside it; its exit status, 0 where it served to the end."""

    def work(server: LocalServer, bench: Bench) -> None:
        threading.Timer(WARM_UP_S, server.tell, ["capture", CAPTURED_S]).start()
        seconds = WARM_UP_S + CAPTURED_S + LEAD_S
        bench.load.closed(server.address, context.settings.clients, seconds, server.follow)

    status, batches = _serve(context, on_line, work, ["--trace", str(trace)])
    if trace.is_file():
        rows = [(f"inference (batch {len(batch.means)})", batch.started_ns, batch.ended_ns) for batch in batches]
        add_rows(trace, rows, STANDS_FOR, cut=True)
    return status


def _serve(
    context: Context[ServerSettings],
    on_line: OnLine,
    work: Callable[[LocalServer, Bench], None],
    options: list[str],
) -> tuple[int, list[Ran]]:
    """Runs the learner's server until the work on it is done: its exit status and what its device ran."""
    bench = Bench.prepare(context)
    times_s = device_times_s(context.settings, preprocess_s(context, bench))
    address = context.janitor.folder / "server.sock"
    theirs, ours = os.pipe()
    with start_device(context, times_s) as device, listen(address) as listener:
        server, problems = LocalServer(device, str(address), ours), list[LabError]()
        worker = threading.Thread(target=_work, args=(server, bench, work, ours, problems), daemon=True)
        worker.start()
        fds = (device.script_socket.fileno(), device.arena.fd, listener.fileno(), theirs)
        places = ["--socket", str(fds[0]), "--arena", str(fds[1]), "--listener", str(fds[2]), "--control", str(fds[3])]
        command = child_command(CHILD, context, [*options, *places])
        status = stream(command, context.workspace, context.janitor, on_line, {}, fds)
        os.close(theirs)
        device.end()
        worker.join()
    for problem in problems:
        raise problem
    return status, server.batches


def _work(
    server: LocalServer,
    bench: Bench,
    work: Callable[[LocalServer, Bench], None],
    control: int,
    problems: list[LabError],
) -> None:
    """Waits until the server answers, does the work, and has the server end."""
    try:
        level = bench.load.closed(server.address, 1, 0.1, server.follow, patience_s=FIRST_ANSWER_S)
        if (level.status == OK).any():
            work(server, bench)
    except LabError as problem:
        problems.append(problem)
    except Ended:
        pass
    finally:
        os.close(control)
