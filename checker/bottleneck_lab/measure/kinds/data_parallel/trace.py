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
from bottleneck_lab.measure.kinds.data_parallel.emulation import WARMUP_STEPS, EmulatedRun
from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import RankClock, Span
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import load_fabric

STREAMS = {"compute": 7, "communication": 20}
HOST_PID, HOST_TID = 1000, 1000
_LAUNCH_US = 4.0


def write_traces(run: EmulatedRun, trace: Path) -> list[Path]:
    """Writes rank 0 to `trace` (a name in .json.gz) and every other rank beside it; the files, by
    rank. The warm-up steps are left out.
    """
    name = trace.name.removesuffix(".json.gz")
    files = [
        trace if rank == 0 else trace.with_name(f"{name}-rank{rank}.json.gz")
        for rank in range(run.world)
    ]
    for rank, file in enumerate(files):
        with gzip.open(file, "wt", encoding="utf-8", compresslevel=4) as out:
            json.dump(trace_of(run, rank), out)
    return files


def trace_of(run: EmulatedRun, rank: int) -> dict[str, Any]:
    """One rank's steps in Kineto's format. Kernels that communicate are named so that tools which
    look for NCCL's find them.
    """
    clock = run.clocks[rank]
    return {
        "schemaVersion": 1,
        "emulated": "Modelled times on virtual GPUs; not a capture of NCCL or of a GPU.",
        "assumptions": load_fabric().assumptions(),
        "deviceProperties": [{"id": rank, "name": f"emulated: {run.costs.gpu}"}],
        "distributedInfo": {"backend": "emulated", "rank": rank, "world_size": run.world},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": [*_labels(rank), *_steps(clock), *_rows(run, rank)],
    }


def _labels(rank: int) -> Iterator[dict[str, Any]]:
    yield {
        "name": "process_name",
        "ph": "M",
        "pid": HOST_PID,
        "tid": 0,
        "args": {"name": f"rank {rank} (emulated host)"},
    }
    yield {
        "name": "process_name",
        "ph": "M",
        "pid": rank,
        "tid": 0,
        "args": {"name": f"virtual GPU {rank} (emulated)"},
    }
    for stream, number in STREAMS.items():
        yield {
            "name": "thread_name",
            "ph": "M",
            "pid": rank,
            "tid": number,
            "args": {"name": f"stream {number} {stream} (emulated)"},
        }


def _steps(clock: RankClock) -> Iterator[dict[str, Any]]:
    """The steps as the host went through them, and its passes in each."""
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
    """Runs of launches of the same pass: (forward | backward | optimizer, first launch, last
    launch).
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
    for number, span in enumerate(run.clocks[rank].spans):
        if span.step < WARMUP_STEPS:
            continue
        if span.stream == "host":
            waits = span.name in ("wait for the device", "barrier")
            category, name = (
                ("cuda_runtime", "cudaStreamSynchronize")
                if waits
                else ("cpu_op", f"emulated: {span.name}")
            )
            yield emulated_row(
                category, name, span.start_us, span.end_us, HOST_PID, HOST_TID, correlation=number
            )
            continue
        yield emulated_row(
            "cuda_runtime",
            "cudaLaunchKernel",
            span.launched_us,
            span.launched_us + _LAUNCH_US,
            HOST_PID,
            HOST_TID,
            correlation=number,
        )
        stream = STREAMS[span.stream]
        about: dict[str, Any] = {
            "device": rank,
            "context": 1,
            "stream": stream,
            "correlation": number,
        }
        if span.stream == "communication":
            name = f"ncclKernel_{span.name.replace('-', '')} (emulated: modelled link, not NCCL)"
            about |= {
                "Collective name": span.name.replace("-", ""),
                "In msg nelems": span.elements,
                "Out msg nelems": span.elements,
            }
            about |= {
                "dtype": span.dtype,
                "Group size": run.world,
                "Process Group Name": "0",
                "Rank": rank,
            }
        else:
            name = f"emulated: {span.name}"
        yield emulated_row("kernel", name, span.start_us, span.end_us, rank, stream, **about)
