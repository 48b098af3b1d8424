"""The load generator of server labs beside MLPerf's LoadGen, on the same server: does either find
another knee? And does it keep its schedule?

    python benchmarks/load_generator.py            # the schedule at 500 requests/s beside filled
    cores, then both knees python benchmarks/load_generator.py --seconds 8 --rounds 3

The server answers one request after another, each in 4 ms: its latency at any rate follows from
queueing theory, and no core is short. At each rate LoadGen draws the moments of its requests
(Poisson), and the lab's generator then sends at the same moments: of a few hundred requests beside
a knee, another draw alone would move the p99 by tens of percent. Both count from when a request was
due; the knee is where the p99 crosses 50 ms, between two rates by its logarithm. MLPerf's LoadGen
(`pip install mlcommons-loadgen`, Server scenario) decides itself when requests are due and how long
they took; a thread for each of its requests carries it to the server.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import queue
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlperf_loadgen as loadgen
import numpy as np
from markdown_tables import head, row
from PIL import Image

from bottleneck_lab.measure.kinds.http_server import figures
from bottleneck_lab.measure.kinds.http_server.load.level import Load
from bottleneck_lab.measure.kinds.http_server.load.stolen import stolen_from_machine_s
from bottleneck_lab.measure.kinds.inference_server.pictures import Strips, make_strips
from bottleneck_lab.measure.sandbox.janitor import Janitor

SERVICE_S, QUICK_S = 0.004, 0.0005
"""Of the server whose knee is looked for, and of one that keeps up with any schedule here."""
BOUND_MS = 50.0
RATES = [150.0, 170.0, 190.0, 210.0, 230.0]
AUDITS = 4
REPLY = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"scores": [1]}'


def serve(address: str, service_s: float) -> None:
    """Answers requests one after another, each `service_s` after it began: when it begins is
    reckoned, not slept, so that lateness does not add up.
    """

    async def main() -> None:
        free_at = 0.0

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal free_at
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(
                        int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                    )
                    free_at = max(free_at, time.monotonic()) + service_s
                    await asyncio.sleep(free_at - time.monotonic())
                    writer.write(REPLY)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_unix_server(client, address, limit=1 << 22, backlog=600)
        await server.serve_forever()

    asyncio.run(main())


def small_strips(folder: Path) -> Strips:
    """Pictures without content: what is sent does not matter to this server."""
    Image.new("RGB", (1100, 800), (90, 120, 60)).save(folder / "0.jpg")
    (folder / "manifest.json").write_text('{"photos": [{"name": "0.jpg", "set": "large"}]}')
    return make_strips(folder, np.random.default_rng(0))


def ours(load: Load, address: str, due_ns: list[int]) -> float:
    """p99 in ms as the lab's generator sees it, of requests at these moments."""
    return figures.p99_ms(load.at(address, np.array(due_ns), time.sleep).latencies_s())


class Carrier:
    """Carries LoadGen's requests to the server, on a connection for each of its threads."""

    def __init__(self, address: str, body: bytes, threads: int = 60) -> None:
        self._address = address
        self._message = (
            b"POST /classify HTTP/1.1\r\nHost: lab\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        self._due: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._issued_ns: list[int] = []
        for _ in range(threads):
            threading.Thread(target=self._carry, daemon=True).start()

    def issue(self, samples: list[loadgen.QuerySample]) -> None:
        """Called by LoadGen when a request is due."""
        self._issued_ns += [time.monotonic_ns()] * len(samples)
        for sample in samples:
            self._due.put(sample.id)

    def moments_ns(self) -> list[int]:
        """When requests were due since this was last asked, from the first of them on."""
        issued, self._issued_ns = self._issued_ns, []
        return [each - issued[0] for each in issued]

    def _carry(self) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._address)
            while True:
                identity = self._due.get()
                connection.sendall(self._message)
                connection.recv(4096)
                loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(identity, 0, 0)])


def theirs(carrier: Carrier, rate: float, seconds: float, seed: int) -> float:
    """p99 in ms as LoadGen reports it."""
    settings = loadgen.TestSettings()
    settings.scenario, settings.mode = loadgen.TestScenario.Server, loadgen.TestMode.PerformanceOnly
    settings.server_target_qps, settings.server_target_latency_ns = rate, int(BOUND_MS * 1e6)
    settings.min_duration_ms = settings.max_duration_ms = int(seconds * 1000)
    settings.min_query_count = 100
    settings.schedule_rng_seed = seed
    with tempfile.TemporaryDirectory() as folder:
        output = loadgen.LogOutputSettings()
        output.outdir, output.copy_summary_to_stdout = folder, False
        logging = loadgen.LogSettings()
        logging.log_output = output
        sut = loadgen.ConstructSUT(carrier.issue, lambda: None)
        library = loadgen.ConstructQSL(1000, 1000, lambda _: None, lambda _: None)
        loadgen.StartTestWithLogSettings(sut, library, settings, logging)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(sut)
        summary = (Path(folder) / "mlperf_log_summary.txt").read_text()
    return float(re.search(r"99\.00 percentile latency \(ns\)\s*:\s*(\d+)", summary)[1]) / 1e6


def knee(p99s_ms: list[float]) -> float:
    """The rate at which the p99 crosses the bound, between two rates by its logarithm; NaN where it
    does not cross within them.
    """
    if not p99s_ms[0] < BOUND_MS < max(p99s_ms):
        return float("nan")
    return float(np.interp(np.log(BOUND_MS), np.log(np.maximum.accumulate(p99s_ms)), RATES))


@contextmanager
def server(folder: Path, service_s: float) -> Iterator[str]:
    """A server in a process of its own, by its address."""
    address = str(folder / f"{service_s}.sock")
    process = multiprocessing.Process(target=serve, args=(address, service_s), daemon=True)
    process.start()
    while not Path(address).exists():
        time.sleep(0.05)
    try:
        yield address
    finally:
        process.kill()
        process.join()


def compare(load: Load, strips: Strips, address: str, seconds: float, rounds: int) -> None:
    """Prints both generators' p99s at every rate, in turns, and where they cross the bound."""
    carrier = Carrier(address, strips.file(strips.draw(1, np.random.default_rng(2))[0]))

    def both(rate: float, seed: int) -> tuple[float, float]:
        their_knee = theirs(carrier, rate, seconds, seed)
        return ours(load, address, carrier.moments_ns()), their_knee

    table = np.array(
        [[both(rate, 100 * turn + int(rate)) for rate in RATES] for turn in range(rounds)]
    )
    rates = [f"{rate:.0f}/s" for rate in RATES]
    print(head([f"p99, ms, median of {rounds}", *rates, "knee"]))
    knees = []
    for number, who in enumerate(("this generator", "LoadGen")):
        p99s = np.median(table[:, :, number], axis=0).tolist()
        knees.append(knee(p99s))
        print(row([who, *(f"{p99:.0f}" for p99 in p99s), f"{knees[-1]:.0f}/s"]))
    print(f"\nknees apart: {abs(knees[0] / knees[1] - 1):.1%}")


def spin() -> None:
    """Fills a core."""
    while True:
        pass


@contextmanager
def filled_cores() -> Iterator[None]:
    """As many programs that never rest as there are cores, which the server under load is to a
    generator on the same machine.
    """
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in os.sched_getaffinity(0)]
    for each in others:
        each.start()
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.join()


def audit(load: Load, address: str, seconds: float, rate: float = 500.0) -> None:
    """Prints how well the generator keeps its schedule, in turns as it is and as a program like any
    other.
    """
    for _ in range(AUDITS):
        for urgent, how in ((True, "before other programs"), (False, "like any other")):
            began_s = stolen_from_machine_s()
            level = load.open(address, rate, seconds, time.sleep, urgent=urgent)
            stolen = f"{stolen_from_machine_s() - began_s:.2f} s stolen"
            sent = f"{(level.sent_ns > 0).sum()} of {len(level.sent_ns)} requests sent"
            late_ms = np.quantile(level.lateness_s(), [0.5, 0.99]) * 1000
            own_ms = np.quantile(level.own_lateness_s(), 0.99) * 1000
            late = (
                f"late by {late_ms[0]:.2f} ms (median), {late_ms[1]:.2f} ms (p99), {own_ms:.2f} ms"
                " (p99) but for what was stolen"
            )
            print(
                f"at {rate:.0f}/s, {how}: {sent}, {late}; {level.cores:.2f} cores; {stolen}",
                flush=True,
            )


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument(
        "--rounds", type=int, default=3, help="of both generators; 0: the schedule alone"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Janitor() as janitor:
        folder = Path(name)
        strips = small_strips(folder)
        load = Load(folder / "load", strips, janitor, np.random.default_rng(1))
        with server(folder, QUICK_S) as address, filled_cores():
            audit(load, address, options.seconds)
        if not options.rounds:
            return
        with server(folder, SERVICE_S) as address:
            compare(load, strips, address, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
