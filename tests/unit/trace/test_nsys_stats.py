"""Agreement with nsys' own `stats` on the same file: the same instances and the same nanoseconds by name, for kernels, copies, calls and ranges."""

import csv
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bottleneck_lab import load
from bottleneck_lab.trace import Kind
from bottleneck_lab.trace.timeline import Timeline, take

CAPTURE = Path(__file__).parents[4] / "shared" / "captures" / "nsysai_h100_2gpu_1s.sqlite.gz"
NSYS = shutil.which("nsys")
needs_nsys = pytest.mark.skipif(NSYS is None, reason="nsys is not installed")
needs_capture = pytest.mark.skipif(not CAPTURE.is_file(), reason="other people's captures are not in the repository")

Sums = dict[str, tuple[int, int]]


def ours(timeline: Timeline, *tables) -> Sums:
    """Instances and ns by name."""
    count, total = Counter(), Counter()
    for table in tables:
        for name, start, end in zip(timeline.names(table), table.start.tolist(), table.end.tolist(), strict=True):
            count[name] += 1
            total[name] += end - start
    return {name: (count[name], total[name]) for name in count}


def theirs(report: str, path: Path, environment: dict[str, str]) -> Sums:
    """The same from `nsys stats`; its names are written as we write them: no versions of functions, no numbers of operators."""
    command = [NSYS, "stats", "--report", report, "--format", "csv", "--force-export=false", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False).stdout
    lines = said.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith("Time (%)")), None)
    count, total = Counter(), Counter()
    for row in csv.DictReader(lines[head:]) if head is not None else ():
        name = row.get("Name") or row.get("Range") or row.get("Operation")
        name = re.sub(r"(_v\d+)?(_ptsz)?$", "", re.sub(r", (seq|op_id) = .*", "", name.removeprefix(":")))
        name = re.sub(r"^\[CUDA (\w+)(.*)\]$", lambda m: m[1].capitalize() + m[2], name)
        count[name] += int(row.get("Instances") or row.get("Count") or row.get("Num Calls"))
        total[name] += int(row["Total Time (ns)"])
    return {name: (count[name], total[name]) for name in count}


@pytest.fixture
def elsewhere(tmp_path):
    """nsys keeps files in its user's home."""
    return {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}


@needs_capture
def test_sums_are_those_that_nsys_gives():
    """Read off nsys 2022.4.2 (`stats --report gpukernsum,gpumemtimesum,cudaapisum`); on any machine."""
    timeline = load(CAPTURE)
    device, calls = ours(timeline, timeline.device), ours(timeline, timeline.runtime)
    assert device["Memcpy HtoD"] == (450, 1841630798)
    assert device["Memcpy DtoD"] == (450, 39203544)
    assert device["Memset"] == (22, 29216)
    assert calls["cudaStreamSynchronize"] == (8, 856929451)
    assert calls["cudaLaunchKernel"] == (2788, 509738501)
    assert calls["cudaLaunchKernelExC"] == (558, 422539482)


@pytest.mark.nsys
@needs_nsys
@needs_capture
def test_every_sum_agrees_on_a_gpu_capture(tmp_path, elsewhere):
    path = tmp_path / "h100.sqlite"
    path.write_bytes(gzip.decompress(CAPTURE.read_bytes()))
    timeline = load(path)
    kinds = timeline.device.kind
    kernels = take(timeline.device, (kinds == Kind.KERNEL) | (kinds == Kind.COMMUNICATION))
    copies = take(timeline.device, (kinds == Kind.COPY) | (kinds == Kind.MEMSET))
    assert ours(timeline, kernels) == theirs("gpukernsum", path, elsewhere)
    assert ours(timeline, copies) == theirs("gpumemtimesum", path, elsewhere)
    assert ours(timeline, timeline.runtime) == theirs("cudaapisum", path, elsewhere)
    assert ours(timeline, timeline.ranges, timeline.operators) == theirs("nvtxsum", path, elsewhere)


@pytest.mark.nsys
@needs_nsys
def test_every_range_agrees_on_a_capture_made_here(tmp_path, elsewhere):
    program = "import torch\nfor i in range(5):\n with torch.cuda.nvtx.range(f'step {i}'): torch.ones(9).sum()\n"
    command = [NSYS, "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--export=sqlite", "-o", "made"]
    subprocess.run(
        [*command, sys.executable, "-c", program], cwd=tmp_path, env=elsewhere, check=True, capture_output=True
    )
    timeline = load(tmp_path / "made.sqlite")
    found = ours(timeline, timeline.ranges)
    assert {name for name in found if name.startswith("step ")} == {f"step {i}" for i in range(5)}
    assert found == theirs("nvtxsum", tmp_path / "made.sqlite", elsewhere)
