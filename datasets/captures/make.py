"""Synthetic captures with a known bottleneck, in torch.profiler's format. No GPU and no torch: a host clock and a queue a stream, stepped by hand.
And one report of made-up counters in ncu's format, as releases since 2020 and older ones write it, until a GPU has recorded a real one (`make gpu`).

    python datasets/captures/make.py --root DIR [--seed 1]

Every capture says in its metadata that it is synthetic and what was put into it. They are ground truth for the detectors and for tests.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PID, MAIN, WORKER = 4000, 4000, 4001
COMPUTE_STREAM, COPY_STREAM, COMMUNICATION_STREAM = 7, 20, 24
DEVICE = {
    "id": 0,
    "name": "Synthetic GPU",
    "numSms": 100,
    "totalGlobalMem": 1 << 36,
    "computeMajor": 9,
    "computeMinor": 0,
}


class Program:
    """A training loop on one device. Times are microseconds with three decimals, as Kineto writes them.

    `host` is the main thread's clock, `tail[stream]` the time at which a stream has done all that was queued on it.
    """

    def __init__(self, seed: int = 1, rank: int = 0, jitter: float = 0.03) -> None:
        self.random = random.Random(seed)
        self.rank = rank
        self.jitter = jitter
        self.host = 1_000_000.0
        self.tail: dict[int, float] = {}
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        self._held = 1 << 28

    def vary(self, us: float) -> float:
        return round(us * (1 + self.random.uniform(-self.jitter, self.jitter)), 3)

    def add(self, cat: str, name: str, start: float, dur: float, tid: int = MAIN, **args: Any) -> None:
        place = {"pid": 0, "tid": args["stream"]} if "stream" in args else {"pid": PID, "tid": tid}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, **place, "ts": round(start, 3), "dur": round(dur, 3), "args": args}
        )

    def python(self, us: float) -> None:
        """Host time in which nothing is recorded."""
        self.host = round(self.host + self.vary(us), 3)

    def launch(
        self, name: str, us: float, *, stream: int = COMPUTE_STREAM, after: float = 0.0, call_us: float = 5.0
    ) -> float:
        """Queues a kernel and returns when it will end. It starts 3 us after the call at the earliest."""
        self._correlation += 1
        self.add("cuda_runtime", "cudaLaunchKernel", self.host, call_us, correlation=self._correlation)
        start = round(max(self.host + 3.0, self.tail.get(stream, 0.0), after), 3)
        us = self.vary(us)
        self.add(
            "kernel",
            name,
            start,
            us,
            device=0,
            stream=stream,
            correlation=self._correlation,
            grid=[512, 1, 1],
            block=[256, 1, 1],
        )
        self.tail[stream] = round(start + us, 3)
        self.host = round(self.host + call_us, 3)
        return self.tail[stream]

    def operator(self, name: str, kernel: str, us: float, host_us: float = 12.0) -> None:
        """An operator that launches one kernel and takes `host_us` of the host."""
        start = self.host
        self.python(host_us / 2)
        self.launch(kernel, us)
        self.python(host_us / 2)
        self.add("cpu_op", name, start, self.host - start)

    def copy(self, size: int, *, pinned: bool, stream: int = COMPUTE_STREAM, gb_per_s: float | None = None) -> float:
        """Host to device. A pageable copy blocks the host until it is done."""
        speed = gb_per_s or (24.0 if pinned else 6.0)
        self._correlation += 1
        kind = "Pinned" if pinned else "Pageable"
        us = self.vary(size / speed / 1e3)
        begin = self.host
        start = round(max(begin + 4.0, self.tail.get(stream, 0.0)), 3)
        self.add(
            "gpu_memcpy",
            f"Memcpy HtoD ({kind} -> Device)",
            start,
            us,
            device=0,
            stream=stream,
            correlation=self._correlation,
            bytes=size,
        )
        self.tail[stream] = round(start + us, 3)
        self.host = round(begin + 5.0 if pinned else self.tail[stream] + 2.0, 3)
        self.add("cuda_runtime", "cudaMemcpyAsync", begin, self.host - begin, correlation=self._correlation)
        return self.tail[stream]

    def wait(self, name: str = "cudaStreamSynchronize") -> None:
        """The host waits for everything that is queued."""
        end = max([self.host + 2.0, *(tail + 4.0 for tail in self.tail.values())])
        self._correlation += 1
        self.add("cuda_runtime", name, self.host, end - self.host, correlation=self._correlation)
        self.host = round(end, 3)

    def catch_up(self, until: float) -> None:
        """The host waits for an event in the work that is queued."""
        if until > self.host:
            self._correlation += 1
            self.add(
                "cuda_runtime",
                "cudaEventSynchronize",
                self.host,
                until - self.host,
                correlation=self._correlation,
            )
            self.host = round(until, 3)

    def item(self, *, waits: bool = True) -> None:
        """loss.item(): a copy of four bytes to the host and a wait; or the copy alone."""
        start = self.host
        self._correlation += 1
        begin = round(max(self.host + 4.0, self.tail.get(COMPUTE_STREAM, 0.0)), 3)
        self.add(
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Pageable)",
            begin,
            1.5,
            device=0,
            stream=COMPUTE_STREAM,
            correlation=self._correlation,
            bytes=4,
        )
        self.add("cuda_runtime", "cudaMemcpyAsync", self.host, 6.0, correlation=self._correlation)
        self.tail[COMPUTE_STREAM] = round(begin + 1.5, 3)
        self.host = round(self.host + 6.0, 3)
        if waits:
            self.wait()
        self.add("cpu_op", "aten::item", start, self.host - start)

    def memory(self, size: int) -> None:
        self._held += size
        args = {
            "Total Reserved": 1 << 30,
            "Total Allocated": self._held,
            "Bytes": size,
            "Addr": 1,
            "Device Id": 0,
            "Device Type": 1,
        }
        self.events.append(
            {
                "ph": "i",
                "s": "t",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": PID,
                "tid": MAIN,
                "ts": self.host,
                "args": args,
            }
        )

    def range(self, name: str, start: float) -> None:
        """Marks what the host did since `start`."""
        self.add("user_annotation", name, start, self.host - start)

    def steps(self, count: int) -> Iterator[int]:
        """Yields the number of each step, and marks what the host did until the next."""
        for number in range(count):
            begin = self.host
            yield number
            self.range(f"ProfilerStep#{number}", begin)

    def trace(self, label: str = "", world_size: int = 1) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "synthetic": True,
            "injected": label,
            "deviceProperties": [DEVICE],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": world_size},
            "traceEvents": sorted(self.events, key=lambda e: e["ts"]),
        }


BOTTLENECKS: dict[str, tuple[str, ...]] = {
    "healthy": (),
    "healthy-small": (),
    "input": ("input-starved",),
    "launch": ("launch-bound",),
    "sync": ("sync-stalls",),
    "pageable": ("copy-exposed", "pageable-copies"),
    "communication": ("communication-exposed",),
    "elementwise": ("unfused-elementwise",),
    "layout": ("layout-conversions",),
    "fp32": ("tensor-cores-unused",),
    "fp64": ("double-precision",),
    "growth": ("memory-growth",),
    "allocator": ("allocator-churn",),
    "uneven": ("uneven-steps",),
}
"""What is put into a capture, and the findings that it must give: these and no others."""


MATRIX = {
    "fp32": "ampere_sgemm_128x64_tn",
    "fp64": "cutlass_80_tensorop_d884gemm_64x64_16x4_tn_align1",
}
"""The matrix kernels of these; of the others, one that runs on tensor cores in bf16."""


def training(
    bottleneck: str, seed: int = 1, steps: int = 8, strength: float = 1.0, jitter: float = 0.03, layers: int = 0
) -> Program:
    """A loop of data, h2d, forward, backward and optimizer with one bottleneck (or none)."""
    run = Program(seed, jitter=jitter)
    layers = layers or (24 if bottleneck != "healthy-small" else 60)
    for number in range(steps):
        begin = run.host
        _step(run, bottleneck, number, layers, strength)
        run.range(f"ProfilerStep#{number}", begin)
    return run


ON_CPU: dict[str, tuple[str, ...]] = {
    "healthy-cpu": (),
    "dominant": ("dominant-operator",),
    "python": ("python-overhead",),
}
"""The same, for captures without an accelerator."""


def on_cpu(
    bottleneck: str, seed: int = 1, steps: int = 8, strength: float = 1.0, jitter: float = 0.03, layers: int = 24
) -> Program:
    """A loop of operators on the host alone, with one bottleneck (or none)."""
    run = Program(seed, jitter=jitter)
    for number in range(steps):
        begin = run.host
        for _ in range(layers):
            _operator(run, "aten::addmm", 300.0)
            _operator(run, "aten::relu", 20.0)
            if bottleneck == "dominant":
                _operator(run, "aten::index_select", 700.0 * strength)
            run.python(200.0 * strength if bottleneck == "python" else 4.0)
        run.range(f"ProfilerStep#{number}", begin)
    return run


def _operator(run: Program, name: str, us: float) -> None:
    start = run.host
    run.python(us)
    run.add("cpu_op", name, start, run.host - start)


JOBS: dict[str, tuple[str, ...]] = {"healthy-job": (), "straggler": ("straggler",)}
"""The same, for captures of several ranks. Whoever waits for a slow rank waits in a collective, but that is no finding by itself."""


def job(
    bottleneck: str, seed: int = 1, steps: int = 8, strength: float = 1.0, jitter: float = 0.03, ranks: int = 4
) -> list[Program]:
    """Data-parallel ranks: the collective of a step begins on each when its gradients are nearly there, and ends for all when the slowest's are."""
    runs = [Program(seed * 100 + rank, rank, jitter) for rank in range(ranks)]
    for number in range(steps):
        begins, gradients = [], []
        for run in runs:
            begins.append(run.host)
            slow = 1 + 0.4 * strength * (bottleneck == "straggler" and run.rank == seed % ranks)
            for _ in range(24):
                run.operator("aten::addmm", "sm90_xmma_gemm_bf16bf16_bf16f32_tn", 250.0 * slow)
            gradients.append(max(run.tail.values()))
        done = max(gradients)
        for run, begin, ready in zip(runs, begins, gradients, strict=True):
            early = ready - 1_500.0
            end = run.launch(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                done - early,
                stream=COMMUNICATION_STREAM,
                after=early,
            )
            run.tail = dict.fromkeys(run.tail, end)
            run.catch_up(done - 3_000.0)
            run.range(f"ProfilerStep#{number}", begin)
    return runs


def _step(run: Program, bottleneck: str, number: int, layers: int, strength: float) -> None:
    start = run.host
    run.python(25_000 * strength if bottleneck == "input" else 60)
    run.range("data", start)
    start = run.host
    _h2d(run, bottleneck, strength)
    run.range("h2d", start)
    start = run.host
    kernel_us = {"launch": 3.0, "healthy-small": 90.0}.get(bottleneck, 250.0)
    _layers(run, bottleneck, layers, kernel_us, "forward", strength)
    run.range("forward", start)
    start = run.host
    if bottleneck in ("growth", "healthy"):
        run.memory(4 << 20)
        run.memory(0 if bottleneck == "growth" else -(4 << 20))
    _layers(run, bottleneck, layers, kernel_us, "backward", strength)
    gradients = max(run.tail.values())
    hidden = gradients - 2_500.0
    if bottleneck == "communication":
        run.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4_000 * strength, stream=COMMUNICATION_STREAM, after=gradients
        )
        run.tail[COMPUTE_STREAM] = run.tail[COMMUNICATION_STREAM]
    elif bottleneck == "healthy":
        run.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2_000, stream=COMMUNICATION_STREAM, after=hidden)
    run.range("backward", start)
    start = run.host
    run.operator("aten::_foreach_add_", "void multi_tensor_apply_kernel<>", 20.0 if bottleneck == "launch" else 300.0)
    if bottleneck == "uneven" and number % 4 == 3:
        run.launch("triton_autotune", 14_000 * strength)
    if bottleneck == "allocator":
        _driver(run, "cudaFree"), _driver(run, "cudaMalloc")
    run.range("optimizer", start)
    if number % 4 == 3 or bottleneck in ("uneven", "growth"):
        run.item()


def _driver(run: Program, name: str) -> None:
    run.wait(name)
    run.memory(0)


def _h2d(run: Program, bottleneck: str, strength: float) -> None:
    if bottleneck == "pageable":
        run.copy(int(19_000_000 * strength), pinned=False)
    else:
        run.copy(100_000 if bottleneck == "launch" else 4_000_000, pinned=True, stream=COPY_STREAM)


def _layers(run: Program, bottleneck: str, layers: int, us: float, phase: str, strength: float) -> None:
    matrix = MATRIX.get(bottleneck, "sm90_xmma_gemm_bf16bf16_bf16f32_tn")
    for _ in range(layers):
        run.operator(
            "aten::addmm" if phase == "forward" else "autograd::engine::evaluate_function: AddmmBackward0", matrix, us
        )
        if bottleneck == "elementwise":
            for _ in range(3):
                run.operator(
                    "aten::mul", "void at::native::vectorized_elementwise_kernel<4, MulFunctor>", 90 * strength
                )
        if bottleneck == "layout":
            run.operator("aten::cudnn_convolution", "void cudnn::ops::nchwToNhwcKernel<float>", 60 * strength)
        if bottleneck == "launch":
            run.python(20 * strength)
        if bottleneck == "sync":
            run.item()
            run.python(40 * strength)


SHIPPED, LIBRARY = "void attention_kernel<__half, %d>", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<%d, 128, 64, 4>>"
ATTENTION = [
    # kernel, dim, µs, grid; SM, memory, DRAM, occupancy, L2 hits %; instructions a cycle; requests, sectors of one; conflicts, passes; lanes
    (SHIPPED, 64, 60.0, 512, (56.0, 62.0, 17.0, 12.0, 95.0), 2.2, (1.1e6, 4.0), (2.8e6, 6.7e6), 31.6),
    (LIBRARY, 64, 41.0, 512, (54.0, 47.0, 24.0, 12.0, 93.0), 1.9, (1.7e5, 15.9), (2.0e4, 3.6e6), 31.9),
    (SHIPPED, 128, 540.0, 1024, (53.0, 78.0, 7.0, 12.0, 97.0), 2.1, (8.7e6, 4.0), (4.2e7, 9.3e7), 31.8),
    (LIBRARY, 128, 372.0, 1024, (55.0, 61.0, 11.0, 12.0, 96.0), 2.1, (2.2e6, 16.0), (2.0e5, 5.0e7), 32.0),
    (SHIPPED, 128, 650.0, 1024, (52.0, 72.0, 6.0, 12.0, 97.0), 2.0, (1.7e7, 4.0), (4.3e7, 1.0e8), 31.7),
    (LIBRARY, 128, 410.0, 1024, (53.0, 57.0, 10.0, 12.0, 97.0), 2.0, (2.2e6, 16.0), (2.1e5, 5.2e7), 31.8),
]
"""What the lab's kernels (three shapes of `python attention.py`) might look like to ncu on a GPU of compute capability 9.0. Requests, their sectors,
conflicts and passes of the shipped kernel are counted from its source and machine code; the library's time is that of published rates, and everything
else is made up to fit: no GPU has measured any of it."""
STALLED = {
    SHIPPED: dict(mio_throttle=0.55, short_scoreboard=0.75, long_scoreboard=0.6, lg_throttle=0.05, barrier=0.3, wait=0.35, math_pipe_throttle=0.2),
    LIBRARY: dict(mio_throttle=0.2, short_scoreboard=0.3, long_scoreboard=0.4, lg_throttle=0.0, barrier=0.2, wait=1.1, math_pipe_throttle=1.2),
}
PERCENTAGES = [
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "lts__t_sector_hit_rate.pct",
]
OLD = {
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct": "lts__t_sectors_srcunit_tex_queries_hit_rate.avg.pct",
    "sm__inst_executed.avg.per_cycle_active": "sm__inst_executed.sum.per_cycle_active",
}


def counters(*, old: bool) -> str:
    """ncu's raw page in base units: a row of names, one of units, one a kernel. `old`: names and columns of releases before 2020."""
    fixed = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name"]
    fixed += ["Kernel Time", "Context", "Stream"] if old else ["Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]
    out = io.StringIO()
    out.write("==PROF== synthetic: these counters were made up to be read; no GPU has measured them\n")
    rows = [_counters(row, old) for row in ATTENTION]
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*fixed, *rows[0]])
    writer.writerow([*[""] * len(fixed), *(unit for unit, _ in rows[0].values())])
    for number, (kernel, row) in enumerate(zip(ATTENTION, rows, strict=True)):
        name, dim, _, grid, *_ = kernel
        sizes = ["", "1", "7"] if old else ["1", "7", "(128, 1, 1)", f"({grid}, 1, 1)", "0", "9.0"]
        writer.writerow([number, 4000, "", "", name % dim, *sizes, *(f"{value:.6g}" for _, value in row.values())])
    return out.getvalue()


def _counters(row: tuple[Any, ...], old: bool) -> dict[str, tuple[str, float]]:
    """Metric → unit and value of one kernel."""
    name, _, us, _, shares, ipc, (requests, sectors), (conflicts, passes), lanes = row
    found = {"gpu__time_duration.sum": ("nsecond" if old else "ns", us * 1000)}
    found |= {metric: ("%", share) for metric, share in zip(PERCENTAGES, shares, strict=True)}
    found["sm__inst_executed.avg.per_cycle_active"] = ("inst/cycle", ipc)
    found["smsp__thread_inst_executed_per_inst_executed.ratio"] = ("", lanes)
    found["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] = ("request", requests)
    found["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] = ("sector", sectors * requests)
    for kind, count, loads in (
        ("data_bank_conflicts_pipe_lsu_mem", conflicts, 1.0),
        ("data_pipe_lsu_wavefronts_mem", passes, 0.9),
    ):
        for operation, share in (("ld", loads), ("st", 1 - loads)):
            found[f"l1tex__{kind}_shared_op_{operation}.sum"] = ("", share * count)
    total = 1 + sum(STALLED[name].values())
    for reason, cycles in {"selected": 1.0, **STALLED[name]}.items():
        if old:
            found[f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct"] = ("%", 100 * cycles / total)
        else:
            found[f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"] = ("", cycles)
    return {OLD.get(metric, metric) if old else metric: value for metric, value in found.items()}


def write_counters(root: Path) -> list[dict[str, Any]]:
    """Both reports, as the manifest lists them."""
    listed = []
    for old in (False, True):
        path = root / f"synthetic-fused-attention-ncu{'-before-2020' if old else ''}.csv"
        path.write_text(counters(old=old), encoding="utf-8")
        what = f"synthetic: ncu's raw page of the shipped attention kernel and PyTorch's{', as releases before 2020 name columns' if old else ''}"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        listed.append({"file": path.name, "what": what, "findings": [], "made_by": "make.py", "sha256": digest})
    return listed


def write(root: Path, seed: int) -> None:
    """All captures, with a manifest of what each is and its checksum."""
    root.mkdir(parents=True, exist_ok=True)
    listed = []
    for bottleneck, found in BOTTLENECKS.items():
        data = json.dumps(training(bottleneck, seed, steps=4).trace(bottleneck)).encode()
        path = root / f"synthetic-{bottleneck}.json.gz"
        path.write_bytes(gzip.compress(data, mtime=0))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        listed.append(
            {
                "file": path.name,
                "what": f"synthetic: {bottleneck}",
                "findings": list(found),
                "made_by": f"make.py --seed {seed}",
                "sha256": digest,
            }
        )
    listed += write_counters(root)
    (root / "manifest.json").write_text(json.dumps({"captures": listed}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="where the captures are written")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write(options.root, options.seed)


if __name__ == "__main__":
    main()
