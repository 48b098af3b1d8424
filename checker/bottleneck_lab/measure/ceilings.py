"""A device's ceilings, measured: bandwidth by copying, at every level of the cache and in memory;
arithmetic by matrix products.

A copy of n bytes moves 2n: n are read and n written. A ceiling is the most that can be had, so each
figure is the best of many repetitions, as in STREAM (McCalpin 1995); times in a verdict are never
taken so.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided

from bottleneck_lab.analysis.counters.roofline import CacheLevel, Machine
from bottleneck_lab.errors import BusyMachineError, MachineError
from bottleneck_lab.measure.gpu import cuda_devices
from bottleneck_lab.measure.machine import LoadMeter, cpu_model, installed_version, own_cpu_s
from bottleneck_lab.measure.quiet import busy_cores_allowed
from bottleneck_lab.needs import require_packages
from bottleneck_lab.workspace.atomic import write_bytes
from bottleneck_lab.workspace.home import home

if TYPE_CHECKING:
    import torch

CeilingDevice = Literal["cpu", "cuda"]
OnStep = Callable[[str, float], None]
"""Called with what is being measured and the share (0–1) that is done."""

REPEATS, REPEAT_S = 8, 0.02
"""Repetitions of a measurement, of which the best counts, and the seconds that one of copies takes
at least.
"""
CALL_BYTES, MOST_ROWS = 4 * 2**20, 32
"""Bytes that one call of NumPy's copies, if passing over a small window this many times at most is
enough for that.
"""
MATRIX = 2048
"""Side of the square matrices on a CPU: 17 GFLOP a product, 16 MB each."""
GPU_MATRIX = 8192
LINE = 64
"""Bytes of a cache line: how far the window of an in-cache copy moves."""
LARGEST_BYTES = 2**31
"""Working set in memory: four times the last cache, but never more than this, nor than a quarter of
the free memory.
"""
SLACK = 0.9
"""A cache that delivers less than this part of what memory does was disturbed while it was
measured.
"""


class Cache(NamedTuple):
    """One level of a CPU's data cache, and the bytes of it that each of the threads measured has
    for itself.
    """

    name: str
    thread_bytes: int


def ceilings_of(
    device: CeilingDevice, on_step: OnStep, *, again: bool = False, threads: int | None = None
) -> Machine:
    """Return the stored ceilings of this machine, or freshly measured ones, which are then stored.
    A CPU's are those of `threads` threads, by default one a core.

    Raises MachineError if `device` cannot be measured, BusyMachineError if what was measured cannot
    be true; nothing is stored then.
    """
    ceilings = None if again else stored_ceilings(device, threads)
    if ceilings is None:
        load = LoadMeter(own_cpu_s)
        ceilings = measure_ceilings(device, on_step, threads)
        _require_plausible(ceilings)
        others = load.cores()
        if others > busy_cores_allowed(ceilings.threads):
            ceilings = msgspec.structs.replace(ceilings, disturbed_by=others)
        file = _file(device, threads)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, msgspec.json.encode(ceilings))
    return ceilings


def _require_plausible(machine: Machine) -> None:
    """Raise BusyMachineError if a cache came out slower than memory, which lies behind it."""
    for cache in machine.caches:
        if cache.bytes_per_s < SLACK * machine.bytes_per_s:
            raise BusyMachineError(
                f"{cache.name} came out at {cache.bytes_per_s / 1e9:.1f} GB/s and memory at"
                f" {machine.bytes_per_s / 1e9:.1f} GB/s: no cache is slower than memory, so other"
                " programs disturbed this. Nothing was saved.",
                "Close other programs and measure again: `lab doctor --measure`.",
            )


def stored_ceilings(device: CeilingDevice, threads: int | None = None) -> Machine | None:
    """Return the ceilings that were measured here with `threads` threads; None if there are none,
    or an older form of this module measured them. Imports no torch.
    """
    try:
        return msgspec.json.decode(_file(device, threads).read_bytes(), type=Machine)
    except (OSError, msgspec.MsgspecError):
        return None


def _file(device: CeilingDevice, threads: int | None) -> Path:
    """Return where ceilings are kept: one file for each processor, number of threads, GPU and
    torch.
    """
    used = threads or _usable_cores()
    parts = [device, cpu_model(), used, installed_version("torch"), *cuda_devices()[:1]]
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return home() / "ceilings" / f"{device}-{key}.json"


def _usable_cores() -> int:
    """Return the number of cores that this process may use; all where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure_ceilings(device: CeilingDevice, on_step: OnStep, threads: int | None = None) -> Machine:
    """Measure bandwidths in bytes/s and FLOP/s of the first GPU, or of `threads` threads, by
    default one for each core that this process may use; takes about ten seconds.

    Raises MachineError if there is no torch, or no GPU.
    """
    require_packages("labs", torch="PyTorch")
    import torch

    if device == "cpu":
        return _cpu_ceilings(on_step, threads or _usable_cores())
    if not torch.cuda.is_available():
        raise MachineError(
            "This process cannot use any CUDA device.", "Measure the CPU: `--device cpu`."
        )
    return _gpu_ceilings(on_step)


def _cpu_ceilings(on_step: OnStep, threads: int) -> Machine:
    import psutil

    caches = read_caches(threads)
    steps, levels = len(caches) + 2, []
    for done, cache in enumerate(caches):
        on_step(f"copying in {cache.name}", done / steps)
        working_set = working_set_in(cache, caches[done - 1] if done else None)
        levels.append(CacheLevel(cache.name, working_set, copy_rate(working_set, threads)))
    on_step("copying in memory", len(caches) / steps)
    # Four times the outermost cache, as far as there is memory for it: what is copied has been
    # evicted when it is copied again.
    beyond_caches = 4 * max((cache.thread_bytes for cache in caches), default=2**28)
    room = min(LARGEST_BYTES, psutil.virtual_memory().available // 4)
    memory = copy_rate(min(beyond_caches, room // threads), threads)
    on_step("multiplying matrices", (len(caches) + 1) / steps)
    flops = {"fp32": _cpu_flops(threads)}
    return Machine(cpu_model(), flops, memory, levels, threads, date.today().isoformat())


def read_caches(
    threads: int, root: Path = Path("/sys/devices/system/cpu/cpu0/cache")
) -> list[Cache]:
    """Return the data caches of a core, innermost first, as Linux describes them; empty if it does
    not.
    """
    caches = []
    for folder in root.glob("index*"):
        try:
            kind, level, size, sharing = (
                (folder / name).read_text().strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
            thread_bytes = int(size.removesuffix("K")) * 1024 // min(threads, _count(sharing))
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            caches.append(Cache(f"L{level}", thread_bytes))
    return sorted(caches, key=lambda cache: cache.name)


def _count(listed: str) -> int:
    """Count the members of a list such as "0-3,8", which has 5."""
    spans = [[int(end) for end in part.split("-")] for part in listed.split(",")]
    return sum(span[-1] - span[0] + 1 for span in spans)


def working_set_in(cache: Cache, inner: Cache | None) -> int:
    """Return bytes a thread that surely lie in this cache: half of the innermost; of an outer one,
    the geometric mean of its size and the inner one's.
    """
    if inner is None:
        return cache.thread_bytes // 2
    return int(sqrt(cache.thread_bytes * inner.thread_bytes))


def copy_rate(thread_bytes: int, threads: int) -> float:
    """Return bytes/s that `threads` threads read and write together while each copies one half of
    its `thread_bytes` to the other.

    NumPy lets go of the interpreter's lock while it copies, and makes many passes over a small
    window in one call.
    """
    barrier = threading.Barrier(threads, timeout=60)
    times = np.zeros((REPEATS, threads, 2))

    def work(thread: int) -> int:
        source, target = (sliding_window(thread_bytes // 2) for _ in range(2))
        calls = _calls(lambda: np.copyto(target, source)) if thread == 0 else 0
        shared_calls[thread] = calls
        barrier.wait()
        for repeat in range(REPEATS):
            barrier.wait()
            begin = time.perf_counter()
            for _ in range(shared_calls[0]):
                np.copyto(target, source)
            times[repeat, thread] = begin, time.perf_counter()
        return 2 * shared_calls[0] * target.size * target.itemsize

    shared_calls = [0] * threads
    with ThreadPoolExecutor(threads) as pool:
        moved = sum(pool.map(work, range(threads)))
    seconds = times[:, :, 1].max(axis=1) - times[:, :, 0].min(axis=1)
    return float(moved / seconds.min())


def sliding_window(size_bytes: int) -> np.ndarray[Any, Any]:
    """Return a view of fresh float32 memory that a copy passes over many times: rows that begin a
    cache line after one another, and end within `size_bytes`.

    So many rows that NumPy's own time for a call does not count; a single one where that is enough.
    """
    side = min(MOST_ROWS, max(1, round(sqrt(CALL_BYTES / size_bytes))), size_bytes // (4 * LINE))
    row = (size_bytes - 2 * (side - 1) * LINE) // 4
    memory = np.ones(size_bytes // 4, np.float32)
    return as_strided(memory, (side, side, row), (LINE, LINE, 4))


def _calls(call: Callable[[], object]) -> int:
    """Return how many calls fill the time of a repetition."""
    call()  # touches every page
    begin = time.perf_counter()
    call()
    return max(1, int(REPEAT_S / (time.perf_counter() - begin)))


def _best_s(call: Callable[[], object]) -> float:
    """Return the shortest of many calls, s."""
    call()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _cpu_flops(threads: int) -> float:
    """Return FLOP/s of a product of float32 matrices, a multiply-add counted as two, as in
    trace/shapes.py.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)
        out = torch.empty(MATRIX, MATRIX)
        return 2.0 * MATRIX**3 / _best_s(lambda: torch.mm(a, b, out=out))
    finally:
        torch.set_num_threads(before)


def _gpu_ceilings(on_step: OnStep) -> Machine:
    import torch

    properties = torch.cuda.get_device_properties(0)
    on_step("copying in the GPU's L2 cache", 0.0)
    in_cache = properties.L2_cache_size // 2
    cache = CacheLevel("L2", in_cache, _gpu_copy_rate(in_cache))
    on_step("copying in the GPU's memory", 0.2)
    memory = _gpu_copy_rate(LARGEST_BYTES)
    flops = {}
    for done, (precision, dtype) in enumerate(
        (("fp32", torch.float32), ("tf32", torch.float32), ("fp16", torch.float16))
    ):
        on_step(f"multiplying matrices in {precision}", 0.4 + 0.2 * done)
        flops[precision] = _gpu_flops(dtype, tensor_cores=precision != "fp32")
    return Machine(properties.name, flops, memory, [cache], measured=date.today().isoformat())


def _gpu_copy_rate(working_set: int) -> float:
    """Return bytes/s of the copy kernel, launched often enough in a row that the launches do not
    count.
    """
    import torch

    source = torch.ones(working_set // 8, device="cuda")
    target = torch.empty_like(source)
    calls = max(1, 2 * LARGEST_BYTES // working_set)
    return calls * working_set / _gpu_best_s(lambda: [target.copy_(source) for _ in range(calls)])


def _gpu_flops(dtype: torch.dtype, *, tensor_cores: bool) -> float:
    """Return FLOP/s of a matrix product, with tensor cores or, of float32, without."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tensor_cores
    try:
        a, b = (torch.rand(GPU_MATRIX, GPU_MATRIX, device="cuda", dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        return 2.0 * GPU_MATRIX**3 / _gpu_best_s(lambda: torch.mm(a, b, out=out))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _gpu_best_s(call: Callable[[], object]) -> float:
    """Return the shortest of many calls, s, by events on the GPU."""
    import torch

    call()
    seconds = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types for it
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(float(begin.elapsed_time(end)) / 1e3)
    return min(seconds)
