"""Agreement with nsys' own `stats` and `analyze` on the same file.

The same instances and the same nanoseconds by name, for kernels, copies, calls and ranges; the same
idle gaps, waits and pageable copies.
"""

import contextlib
import csv
import gzip
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab import load
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.trace import ActivityKind, HostMemory
from bottleneck_lab.trace.timeline import Timeline, take

from ...captures import recorded_capture

NSYS = shutil.which("nsys")
needs_nsys = pytest.mark.skipif(NSYS is None, reason="nsys is not installed")

Sums = dict[str, tuple[int, int]]


def ours(timeline: Timeline, *tables) -> Sums:
    """Instances and ns by name."""
    count, total = Counter(), Counter()
    for table in tables:
        for name, start, end in zip(
            timeline.names(table), table.start.tolist(), table.end.tolist(), strict=True
        ):
            count[name] += 1
            total[name] += end - start
    return {name: (count[name], total[name]) for name in count}


def theirs(report: str, path: Path, environment: dict[str, str]) -> Sums:
    """The same from `nsys stats`; its names are written as we write them: no versions of functions,
    no numbers of operators.
    """
    command = [
        NSYS,
        "stats",
        "--report",
        report,
        "--format",
        "csv",
        "--force-export=false",
        str(path),
    ]
    said = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    ).stdout
    lines = said.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith("Time (%)")), None)
    count, total = Counter(), Counter()
    for row in csv.DictReader(lines[head:]) if head is not None else ():
        name = row.get("Name") or row.get("Range") or row.get("Operation")
        name = re.sub(
            r"(_v\d+)?(_ptsz)?$", "", re.sub(r", (seq|op_id) = .*", "", name.removeprefix(":"))
        )
        name = re.sub(r"^\[CUDA (\w+)(.*)\]$", lambda m: m[1].capitalize() + m[2], name)
        count[name] += int(row.get("Instances") or row.get("Count") or row.get("Num Calls"))
        total[name] += int(row["Total Time (ns)"])
    return {name: (count[name], total[name]) for name in count}


@pytest.fixture
def elsewhere(tmp_path):
    """nsys keeps files in its user's home."""
    return {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}


@pytest.fixture
def h100() -> Path:
    """A second of two H100s, recorded by nsys-ai."""
    return recorded_capture("nsysai_h100_2gpu_1s.sqlite.gz")


def test_sums_are_those_that_nsys_gives(h100):
    """Read off nsys 2022.4.2 (`stats --report gpukernsum,gpumemtimesum,cudaapisum`); on any
    machine.
    """
    timeline = load(h100)
    device, calls = ours(timeline, timeline.device), ours(timeline, timeline.runtime)
    assert device["Memcpy HtoD"] == (450, 1841630798)
    assert device["Memcpy DtoD"] == (450, 39203544)
    assert device["Memset"] == (22, 29216)
    assert calls["cudaStreamSynchronize"] == (8, 856929451)
    assert calls["cudaLaunchKernel"] == (2788, 509738501)
    assert calls["cudaLaunchKernelExC"] == (558, 422539482)


@pytest.fixture
def with_holes(tmp_path, h100) -> Path:
    """The capture with what the first GPU did in three stretches of time taken out, so that there
    are gaps of 10 ms and more.
    """
    path = tmp_path / "holes.sqlite"
    path.write_bytes(gzip.decompress(h100.read_bytes()))
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        begin, end = file.execute(
            "SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ).fetchone()
        for share, long_ns in ((0.2, 10_000_000), (0.5, 15_000_000), (0.7, 20_000_000)):
            hole = begin + int(share * (end - begin))
            for table in ("KERNEL", "MEMCPY", "MEMSET"):
                file.execute(
                    f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE end > ? AND start < ? AND"
                    " deviceId = 0",
                    (hole, hole + long_ns),
                )
    return path


def our_gaps(path: Path, at_least_ns: int) -> set[tuple[int, int, int]]:
    """Device, start and length of the idle gaps."""
    return {
        (use.device, gap.start_ns, gap.end_ns - gap.start_ns)
        for use in summarise(load(path)).devices
        for gap in use.largest_gaps
        if gap.end_ns - gap.start_ns >= at_least_ns
    }


def test_gaps_are_those_that_nsys_gives(with_holes):
    """Read off nsys 2022.4.2 (`analyze --rule gpu-starv:gap=1`); on any machine."""
    assert our_gaps(with_holes, 1_000_000) == {
        (0, 156028422706, 29206908),
        (0, 155840049476, 18454667),
        (0, 155546621181, 18439275),
    }


@pytest.mark.nsys
@needs_nsys
def test_what_is_found_agrees_on_a_gpu_capture(with_holes, elsewhere):
    def rows(rule: str) -> list[dict[str, str]]:
        command = [
            NSYS,
            "analyze",
            "--format",
            "csv",
            "--force-export=false",
            "--rule",
            rule,
            str(with_holes),
        ]
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=elsewhere, check=False
        ).stdout
        lines = said.splitlines()
        return list(
            csv.DictReader(
                lines[next(i for i, line in enumerate(lines) if "Duration (ns)" in line) :]
            )
        )

    def number(row: dict[str, str], *names: str) -> tuple[int, ...]:
        return tuple(int(row[name]) for name in names)

    timeline = load(with_holes)
    gaps = {
        number(row, "Device ID", "Start (ns)", "Duration (ns)")
        for row in rows("gpu-starv:gap=1:rows=500")
    }
    assert our_gaps(with_holes, 1_000_000) == gaps
    waits = take(
        timeline.runtime,
        np.isin(
            timeline.names(timeline.runtime), ["cudaStreamSynchronize", "cudaDeviceSynchronize"]
        ),
    )
    assert set(zip(waits.start.tolist(), (waits.end - waits.start).tolist(), strict=True)) == {
        number(row, "Start (ns)", "Duration (ns)") for row in rows("cuda-sync-api:rows=500")
    }
    device = timeline.device
    pageable = take(
        device, (device.kind == ActivityKind.COPY) & (device.host_memory == HostMemory.PAGEABLE)
    )
    assert set(
        zip(pageable.start.tolist(), (pageable.end - pageable.start).tolist(), strict=True)
    ) == {number(row, "Start (ns)", "Duration (ns)") for row in rows("cuda-async-memcpy:rows=500")}


@pytest.mark.nsys
@needs_nsys
def test_every_sum_agrees_on_a_gpu_capture(tmp_path, elsewhere, h100):
    path = tmp_path / "h100.sqlite"
    path.write_bytes(gzip.decompress(h100.read_bytes()))
    timeline = load(path)
    kinds = timeline.device.kind
    kernels = take(
        timeline.device, (kinds == ActivityKind.KERNEL) | (kinds == ActivityKind.COMMUNICATION)
    )
    copies = take(timeline.device, (kinds == ActivityKind.COPY) | (kinds == ActivityKind.MEMSET))
    assert ours(timeline, kernels) == theirs("gpukernsum", path, elsewhere)
    assert ours(timeline, copies) == theirs("gpumemtimesum", path, elsewhere)
    assert ours(timeline, timeline.runtime) == theirs("cudaapisum", path, elsewhere)
    assert ours(timeline, timeline.ranges, timeline.operators) == theirs("nvtxsum", path, elsewhere)


@pytest.mark.nsys
@needs_nsys
def test_every_range_agrees_on_a_capture_made_here(tmp_path, elsewhere):
    program = (
        "import torch\nfor i in range(5):\n with torch.cuda.nvtx.range(f'step {i}'):"
        " torch.ones(9).sum()\n"
    )
    command = [
        NSYS,
        "profile",
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--export=sqlite",
        "-o",
        "made",
    ]
    subprocess.run(
        [*command, sys.executable, "-c", program],
        cwd=tmp_path,
        env=elsewhere,
        check=True,
        capture_output=True,
    )
    timeline = load(tmp_path / "made.sqlite")
    found = ours(timeline, timeline.ranges)
    assert {name for name in found if name.startswith("step ")} == {f"step {i}" for i in range(5)}
    assert found == theirs("nvtxsum", tmp_path / "made.sqlite", elsewhere)
