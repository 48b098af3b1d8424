"""Run and profile an inference server (`lab run`, `lab profile`) as a check does, without secrets
or sandbox.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from bottleneck_lab.analysis.plateau import Plateau, Point, write_plateau
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.http_server.load.level import Level
from bottleneck_lab.measure.kinds.http_server.local_server import (
    FIRST_ANSWER_S,
    LOOP_S,
    Launch,
    LocalServer,
    Work,
    address_of,
    compare,
    load_for_capture,
    serve_locally,
)
from bottleneck_lab.measure.kinds.http_server.session import listen
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings
from bottleneck_lab.measure.kinds.inference_server.bench import (
    InferenceBench,
    preprocess_s,
    start_calibrator,
)
from bottleneck_lab.measure.kinds.inference_server.plateau import (
    MOST_POINT_S,
    SIZES,
    long_enough_s,
    max_batch_of,
    point,
    show_plateau,
)
from bottleneck_lab.measure.kinds.inference_server.sizing import ModelDevice, size_models
from bottleneck_lab.measure.kinds.inference_server.triton import perf_analyzer
from bottleneck_lab.measure.kinds.inference_server.triton import server as tritonserver
from bottleneck_lab.measure.kinds.inference_server.triton.perf_analyzer import (
    FailedError,
    PerfAnalyzer,
    Row,
    read_report,
    row_of,
)
from bottleneck_lab.measure.kinds.input_pipeline.device_rows import add_rows
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.sandbox.children import OnLine

CHILD = "bottleneck_lab.measure.kinds.inference_server.child_profiled"
STANDS_FOR = (
    "an accelerator whose time per batch is set from the time of the shipped pre-processing on this"
    " machine"
)
LOOK_S = 0.1
POINT_S, CAPTURED_POINT_S = 2.5, 1.5
"""How long the server is loaded with each maximum batch size: in `lab run`, and after a capture."""


def run(context: Context[InferenceServerSettings], on_line: OnLine) -> int:
    """Load the server with each maximum batch size, then in a closed and an open loop, side by
    side. Returns its exit status, 0 if it served to the end.
    """
    bench = _bench(context)
    size, (port,) = _max_batch(bench), tritonserver.free_ports(1)

    def work(server: LocalServer) -> None:
        if size is not None:
            on_line(show_plateau(_plateau(server, bench, size, POINT_S)))
        loops = compare(server, bench.load, context.settings.batch, on_line)
        if bench.triton and loops:
            on_line(_by_perf_analyzer(server, bench, bench.triton, f"127.0.0.1:{port}", loops))

    return _serve(bench, work, on_line, options=("--port", str(port)))[0]


def _bench(context: Context[InferenceServerSettings]) -> InferenceBench:
    """Return the load for the server in the learner's own folder."""
    triton = tritonserver.environment_for(context.workspace / context.lab.spec.entry)
    return InferenceBench.prepare(context, triton)


def _by_perf_analyzer(
    server: LocalServer, bench: InferenceBench, home: Path, url: str, loops: tuple[Level, Level]
) -> str:
    """Repeat the closed and the open loop with perf_analyzer. Returns its figures beside ours as
    text, or why there are none.
    """
    clients, rate = bench.context.settings.batch, loops[0].rate(LOOP_S)
    closed, opened = perf_analyzer.closed_loop(clients), perf_analyzer.open_loop(rate)
    names = [
        f"closed loop, {clients} clients ({' '.join(closed)})",
        f"open loop, {rate:.1f}/s ({' '.join(opened)})",
    ]
    folder, program = bench.context.janitor.folder / "perf_analyzer", PerfAnalyzer(home)
    folder.mkdir()
    drawn = bench.strips.draw(perf_analyzer.PICTURES, bench.rng)
    perf_analyzer.write_pictures(
        [bench.strips.file(picture) for picture in drawn], folder / "pictures.json"
    )

    def row(loop: tuple[str, ...], name: str, *more: str) -> Row:
        report = program.run(url, folder, (*loop, *more), bench.context.janitor, server.follow)
        return read_report(report, name, " ".join(("perf_analyzer", *more)))

    try:
        version = program.version()
        first = [row_of(loops[0], LOOP_S, names[0]), row(closed, names[0])]
        second = [
            row_of(loops[1], LOOP_S, names[1]),
            row(opened, names[1]),
            row(opened, names[1], "--async"),
        ]
    except MachineError as error:
        return f"{error.message} {error.remedy}\n"
    except FailedError as error:
        return f"perf_analyzer gave no result: {error}.\n"
    return perf_analyzer.show([*first, *second], version)


def _max_batch(bench: InferenceBench) -> int | None:
    """Return the largest batch that the server makes, according to its own files."""
    workspace = bench.context.workspace
    if bench.triton:
        return tritonserver.max_batch_of(workspace / tritonserver.MODELS)
    return max_batch_of(workspace / bench.context.lab.spec.entry)


def _family_cpu_s() -> float:
    """Return CPU seconds of this process and of all below it, those that still run included."""
    total = own_cpu_s()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _plateau(server: LocalServer, bench: InferenceBench, shipped: int, point_s: float) -> Plateau:
    """Measure the server's rate with one maximum batch size after another, each for `point_s`, or
    longer if it is too slow for that; then give it back the `shipped` one.
    """

    def closed(clients: int, seconds: float) -> Level:
        return bench.load.closed(
            server.address, clients, seconds, server.follow, patience_s=FIRST_ANSWER_S
        )

    def measured(size: int, seconds: float) -> Point:
        before = len(server.batches)
        level = closed(clients, seconds)
        return point(size, level, seconds, clients, server.batches[before:])

    points, clients, seconds = list[Point](), bench.context.settings.clients, point_s
    meter = LoadMeter(_family_cpu_s)
    for number, size in enumerate(SIZES):
        bench.context.progress(
            f"loading the server with batches of up to {size} ({number + 1} of {len(SIZES)} sizes)",
            0.3 + 0.6 * number / len(SIZES),
        )
        server.command("MAX_BATCH", size)
        closed(1, 0.1)  # Triton starts again with each size: wait until it answers
        result = measured(size, seconds)
        needed_s = long_enough_s(clients, result.rate, point_s)
        if result.p50_s is None and seconds < MOST_POINT_S:
            result = measured(size, min(MOST_POINT_S, max(needed_s, 2 * seconds)))
        points.append(result)
        # A larger size is hardly slower: it is not tried with less first.
        seconds = needed_s
    other_cores = meter.cores()
    server.command("MAX_BATCH", shipped)
    closed(1, 0.1)
    return Plateau(clients, points, other_cores)


def profile(context: Context[InferenceServerSettings], trace: Path, on_line: OnLine) -> int:
    """Capture the server under load with torch.profiler and add the device's batches. Returns its
    exit status, 0 if it served to the end.
    """
    bench = _bench(context)
    size = _max_batch(bench)

    def work(server: LocalServer) -> None:
        context.progress("recording the server under load", 0.2)
        load_for_capture(server, bench.load, context.settings.clients)
        # The batch size must not change before the trace is written.
        while not trace.exists():
            server.follow(LOOK_S)
        if size is not None:
            write_plateau(_plateau(server, bench, size, CAPTURED_POINT_S), trace.parent)

    status, batches, batch_s = _serve(bench, work, on_line, trace)
    if trace.is_file():
        rows = [
            (f"inference (batch {len(batch.means)})", batch.started_ns, batch.ended_ns)
            for batch in batches
        ]
        emulated = None if context.device == "cuda" else STANDS_FOR
        add_rows(trace, rows, emulated, calibrated_s=batch_s)
    return status


def under_load(context: Context[InferenceServerSettings], on_line: OnLine) -> int:
    """Load the server for as long as a capture takes, its parts marked as NVTX ranges. Returns its
    exit status, 0 if it served to the end.
    """
    bench = _bench(context)
    work = partial(load_for_capture, load=bench.load, clients=context.settings.clients)
    return _serve(bench, work, on_line, options=("--nvtx",))[0]


def _serve(
    bench: InferenceBench,
    work: Work,
    on_line: OnLine,
    trace: Path | None = None,
    options: tuple[str, ...] = (),
) -> tuple[int, list[Ran], float]:
    """Run the learner's server with a device until `work` is done. `options`: those of the server's
    process. Returns its exit status, the batches that the device ran, and the seconds to which a
    full one was calibrated.
    """
    context = bench.context
    with ModelDevice.open(context) as device, listen(address_of(context)) as listener:
        with start_calibrator(context) as calibrator:
            device.wait_until_open()
            picture_s = median(preprocess_s(calibrator, bench))
        sizing = size_models(context, picture_s, [device])
        fds = {
            "--socket": device.script_socket.fileno(),
            "--arena": device.arena.fd,
            "--listener": listener.fileno(),
        }
        triton = ("--environment", str(bench.triton)) if bench.triton else ()
        launch = Launch(CHILD, fds, device.channel, device.end, (*options, *triton))
        try:
            served = serve_locally(context, launch, bench.load, work, on_line, trace)
            return (*served, sizing.batch_s)
        finally:
            tritonserver.clear(context.janitor.folder)
