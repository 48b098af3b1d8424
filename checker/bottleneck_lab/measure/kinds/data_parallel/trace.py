"""Emulated ranks as captures: one Kineto file a rank, on one clock, every row of it modelled and
named so.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.emulated_row import emulated_row
from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import RankClock, Span
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import load_fabric
from bottleneck_lab.measure.kinds.data_parallel.figures import WARMUP_STEPS, EmulatedRun
from bottleneck_lab.trace.names import MODELLED_HOST

STREAMS = {"compute": 7, "communication": 20}
HOST_PID, HOST_TID = 1000, 1000
_LAUNCH_US = 4.0


def write_traces(run: EmulatedRun, trace: Path) -> list[Path]:
    """Write rank 0 to `trace` (a name in .json.gz) and every other rank beside it, without the
    warm-up steps. Returns the files, by rank.
    """
    files = rank_files(trace, run.world)
    for rank, file in enumerate(files):
        with gzip.open(file, "wt", encoding="utf-8", compresslevel=4) as out:
            json.dump(trace_of(run, rank), out)
    return files


def rank_files(trace: Path, world: int) -> list[Path]:
    """Return the paths of all ranks' traces: `trace`, and others beside it."""
    name = trace.name.removesuffix(".json.gz")
    others = [trace.with_name(f"{name}-rank{rank}.json.gz") for rank in range(1, world)]
    return [trace, *others]


def trace_of(run: EmulatedRun, rank: int) -> dict[str, Any]:
    """Return one rank's steps in Kineto's format. Kernels that communicate are named so that tools
    which look for NCCL's find them.
    """
    clock = run.clocks[rank]
    return {
        "schemaVersion": 1,
        "emulated": "Modelled times on virtual GPUs; not a capture of NCCL or of a GPU.",
        MODELLED_HOST: 1,
        "assumptions": load_fabric().assumptions(),
        "deviceProperties": [{"id": rank, "name": f"emulated: {run.costs.gpu}"}],
        "distributedInfo": {"backend": "emulated", "rank": rank, "world_size": run.world},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": [*_labels(rank), *_steps(clock), *_rows(run, rank)],
    }


def _labels(rank: int) -> Iterator[dict[str, Any]]:
    names = [
        ("process_name", HOST_PID, 0, f"rank {rank} (emulated host)"),
        ("process_name", rank, 0, f"virtual GPU {rank} (emulated)"),
        *(
            ("thread_name", rank, number, f"stream {number} {stream} (emulated)")
            for stream, number in STREAMS.items()
        ),
    ]
    for kind, pid, tid, name in names:
        yield {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _steps(clock: RankClock) -> Iterator[dict[str, Any]]:
    """Yield the steps as the host went through them, and its passes in each."""
    for step in range(WARMUP_STEPS, clock.step):
        spans = [span for span in clock.spans if span.step == step]
        start = min(span.launched_us for span in spans)
        later = [span.launched_us for span in clock.spans if span.step > step]
        end = min(later) if later else clock.host_us
        yield emulated_row(
            "user_annotation", f"ProfilerStep#{step}", start, max(end, start), HOST_PID, HOST_TID
        )
        for name, begin, finish in _passes(spans):
            yield emulated_row(
                "user_annotation", name, begin, finish + _LAUNCH_US, HOST_PID, HOST_TID
            )


def _passes(spans: list[Span]) -> Iterator[tuple[str, float, float]]:
    """Yield runs of launches of the same pass: (forward | backward | optimizer, first launch, last
    launch), µs.
    """
    name, begin, last = "", 0.0, 0.0
    for span in spans:
        kind = span.name.split()[0]
        if span.stream != "compute" or kind not in ("forward", "backward", "optimizer"):
            continue
        if kind != name:
            if name:
                yield name, begin, last
            name, begin = kind, span.launched_us
        last = span.launched_us
    if name:
        yield name, begin, last


def _rows(run: EmulatedRun, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of host, compute stream and communication stream after the warm-up."""
    for number, span in enumerate(run.clocks[rank].spans):
        if span.step < WARMUP_STEPS:
            continue
        times, host = (span.start_us, span.end_us), (HOST_PID, HOST_TID)
        if span.stream == "host":
            category, name = "cpu_op", f"emulated: {span.name}"
            if span.name in ("wait for the device", "barrier"):
                category, name = "cuda_runtime", "cudaStreamSynchronize"
            yield emulated_row(category, name, *times, *host, correlation=number)
            continue
        launch = (span.launched_us, span.launched_us + _LAUNCH_US)
        yield emulated_row("cuda_runtime", "cudaLaunchKernel", *launch, *host, correlation=number)
        stream, name = STREAMS[span.stream], f"emulated: {span.name}"
        about: dict[str, Any] = {"device": rank, "context": 1, "stream": stream}
        about["correlation"] = number
        if span.stream == "communication":
            collective = span.name.replace("-", "")
            name = f"ncclKernel_{collective} (emulated: modelled link, not NCCL)"
            about |= {
                "Collective name": collective,
                "In msg nelems": span.elements,
                "Out msg nelems": span.elements,
                "dtype": span.dtype,
                "Group size": run.world,
                "Process Group Name": "0",
                "Rank": rank,
            }
        yield emulated_row("kernel", name, *times, rank, stream, **about)
