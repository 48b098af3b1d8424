"""Run and profile a server (`lab run`, `lab profile`) as a check does, in the learner's folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bottleneck_lab.measure.channel.wire import Channel
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.http_server import HttpServerSettings
from bottleneck_lab.measure.kinds.http_server.bench import HttpBench
from bottleneck_lab.measure.kinds.http_server.load.steps import counts, show_steps, step
from bottleneck_lab.measure.kinds.http_server.local_server import (
    Launch,
    LocalServer,
    Work,
    address_of,
    compare,
    load_for_capture,
    serve_locally,
)
from bottleneck_lab.measure.kinds.http_server.session import listen
from bottleneck_lab.measure.sandbox.children import OnLine

CHILD = "bottleneck_lab.measure.kinds.http_server.child_profiled"
STEP_S = 2.0


def run(context: Context[HttpServerSettings], on_line: OnLine) -> int:
    """Load the server with more and more clients, then in a closed and an open loop, side by side.
    Returns its exit status, 0 if it served to the end.
    """
    bench = HttpBench.prepare(context)

    def work(server: LocalServer) -> None:
        steps = [
            step(clients, bench.load.closed(server.address, clients, STEP_S, server.follow), STEP_S)
            for clients in counts(context.settings.clients)
        ]
        on_line(show_steps(steps))
        compare(server, bench.load, context.settings.clients, on_line)

    return _serve(bench, work, on_line)


def profile(context: Context[HttpServerSettings], trace: Path, on_line: OnLine) -> int:
    """Capture the server under load with torch.profiler. Returns its exit status, 0 if it served to
    the end.
    """
    bench = HttpBench.prepare(context)
    work = partial(load_for_capture, load=bench.load, clients=context.settings.clients)
    return _serve(bench, work, on_line, trace)


def under_load(context: Context[HttpServerSettings], on_line: OnLine) -> int:
    """Load the server for as long as a capture takes, its parts marked as NVTX ranges. Returns its
    exit status, 0 if it served to the end.
    """
    bench = HttpBench.prepare(context)
    work = partial(load_for_capture, load=bench.load, clients=context.settings.clients)
    return _serve(bench, work, on_line, options=("--nvtx",))


def _serve(
    bench: HttpBench,
    work: Work,
    on_line: OnLine,
    trace: Path | None = None,
    options: tuple[str, ...] = (),
) -> int:
    """Run the learner's server until the work on it is done. Returns its exit status."""
    context = bench.context
    ours, theirs = Channel.pair()
    with ours, theirs, listen(address_of(context)) as listener:
        fds = {"--socket": theirs.fileno(), "--listener": listener.fileno()}
        launch = Launch(CHILD, fds, Channel(ours), theirs.close, options)
        return serve_locally(context, launch, bench.load, work, on_line, trace)[0]
