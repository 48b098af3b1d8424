"""One rank of a modelled machine: a host thread that launches, a device with its streams, and the
rows that torch.profiler would have written.

All times are µs of a logical clock, so a recording depends on the program and its seed alone.
"""

from __future__ import annotations

import itertools
import random
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from bottleneck_lab.measure.emulated_row import emulated_row
from bottleneck_lab.measure.virtual_gpu.spec import H200, GpuSpec
from bottleneck_lab.trace.names import LINES_OF

HOST = 1000
LINES = f"{LINES_OF}{HOST}"
COMPUTE, COMMUNICATION = 7, 24
BETWEEN_US = 0.9
"""From one kernel of a stream to the next, where that is queued already."""
LAUNCH_SHARE = 0.35
"""Of the host's time for an operator, what the driver's own call takes."""
NEXT_KERNEL_US = 5.0
"""Host time for each further kernel of an operator that launches several."""
QUEUE = 1000
"""Launches that CUDA takes before the host has to wait for room."""
BLOCK_BYTES, OWN_BLOCK_BYTES = 20 << 20, 10 << 20
"""Tensors below the second share blocks of the first, as in PyTorch's allocator."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of an operator: its name as a profiler shows it, and its time on the device."""

    name: str
    us: float


@dataclass(frozen=True)
class Setting:
    """The surroundings of the program: seed, ranks, the network between them, and other programs.

    `busy_us` of every `period_us` the device belongs to another process (time slicing).
    `slow_rank` computes `slower` times as long as the others. Scales multiply what copies take, and
    what launching an operator costs the host; `fork_us` is the start of a loader's worker.
    """

    seed: int = 1
    ranks: int = 1
    network_gb_per_s: float = 200.0
    latency_us: float = 25.0
    pageable_gb_per_s: float = 10.0
    copy_scale: float = 1.0
    launch_scale: float = 1.0
    fork_us: float = 22_000.0
    busy_us: float = 0.0
    period_us: float = 4_000.0
    slow_rank: int = -1
    slower: float = 1.0


class Finished(BaseException):
    """The steps to record are over; the program need not go on."""


@dataclass
class Machine:
    """Clocks, queue and rows of one rank."""

    setting: Setting
    program: str
    rank: int = 0
    spec: GpuSpec = H200
    host: float = 0.0
    tail: dict[int, float] = field(default_factory=lambda: {COMPUTE: 0.0, COMMUNICATION: 0.0})
    rows: list[dict[str, Any]] = field(default_factory=list)
    recording: bool = False
    began: float = 0.0
    elapsed: float = 0.0
    records_memory: bool = False
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.setting.seed}/{self.rank}")
        self._correlation = 0
        self._line = ("", 0.0)
        self._node: tuple[Any, str, float, float] = (None, "", 0.0, 0.0)
        self._queue: deque[float] = deque(maxlen=QUEUE)
        self._free: Counter[int] = Counter()
        self._small = self._small_blocks = self._held = 0
        self._storages: weakref.WeakSet[Any] = weakref.WeakSet()
        self._addresses = itertools.count(1)

    # --- the host ---------------------------------------------------------------------------

    def work(self, us: float) -> None:
        """Let the host work for about `us`, of which nothing is recorded but the line."""
        self._note_line(self.current_line())
        self.host += self._vary(us)

    def elsewhere(self, make: Callable[[], Any]) -> tuple[Any, float]:
        """Return what another process makes, and the µs that it takes there: nothing of it is
        recorded, and the host's clock and line stand.
        """
        self._note_line(self.current_line())
        host, line, recording = self.host, self._line, self.recording
        self.recording = False
        made = make()
        us = self.host - host
        self.host, self._line, self.recording = host, line, recording
        return made, us

    @contextmanager
    def range(self, name: str, category: str = "user_annotation") -> Iterator[None]:
        """Record a row around whatever the host does inside."""
        start = self.host
        try:
            yield
        finally:
            self.row(category, name, start, self.host)

    def row(self, category: str, name: str, start: float, end: float, **about: Any) -> None:
        """Record a row of the host's thread."""
        if self.recording and start >= self.began:
            self.rows.append(emulated_row(category, name, start, end, HOST, HOST, **about))

    def current_line(self) -> str:
        """Return the program's line that runs now: `program.py(34): train`."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.program:
                return f"program.py({frame.f_lineno}): {frame.f_code.co_name}"
            frame = frame.f_back
        return self._line[0]

    def _note_line(self, line: str) -> None:
        """Record the line that has ended where another begins now."""
        (previous, since), start = self._line, self.host
        if line != previous:
            if previous and self.recording and since >= self.began and start - since > 1.0:
                self.rows.append(
                    emulated_row("python_function", previous, since, start, HOST, LINES)
                )
            self._line = (line, start)

    def _note_node(self, node: Any, start: float) -> None:
        """Record which node of autograd's graph the operators belong to."""
        known, name, since, until = self._node
        if node is known:
            return
        if known is not None:
            self.row("cpu_op", f"autograd::engine::evaluate_function: {name}", since, until)
        self._node = (node, node.name() if node is not None else "", start, start)

    # --- the device -------------------------------------------------------------------------

    def operator(
        self,
        name: str,
        kernels: list[Kernel],
        *,
        host_us: float | None = None,
        stream: int = COMPUTE,
        node: Any = None,
    ) -> None:
        """Run an operator on the host that launches these kernels."""
        self._note_line(self.current_line())
        start = self.host
        self._note_node(node, start)
        cost = self._vary(self.spec.launch_us if host_us is None else host_us)
        cost *= self.setting.launch_scale
        self.host += cost * (1 - LAUNCH_SHARE)
        for number, kernel in enumerate(kernels):
            call_us = cost * LAUNCH_SHARE
            if number:
                call_us = self._vary(NEXT_KERNEL_US) * self.setting.launch_scale
            self.launch(kernel, stream=stream, call_us=call_us)
        self.row("cpu_op", name, start, self.host)
        self._node = (*self._node[:3], self.host)

    def launch(
        self,
        kernel: Kernel,
        *,
        stream: int = COMPUTE,
        call_us: float = 7.0,
        call: str = "cudaLaunchKernel",
    ) -> None:
        """Queue one kernel; the host waits only if the queue is full."""
        start = self.host
        if len(self._queue) == QUEUE:
            self.host = max(self.host, self._queue[0])
        self.host += call_us
        correlation = self._next()
        self.row("cuda_runtime", call, start, self.host, correlation=correlation)
        begin = max(self.host + self.spec.start_us, self.tail[stream] + BETWEEN_US)
        us = self._vary(kernel.us)
        if stream == COMPUTE and self.rank == self.setting.slow_rank:
            us *= self.setting.slower
        self._occupy("kernel", f"emulated: {kernel.name}", begin, us, stream, correlation)

    def copy(self, direction: str, nbytes: int, *, pinned: bool, blocking: bool) -> None:
        """Copy between host and device; a pageable copy to the device blocks the host."""
        self._note_line(self.current_line())
        start = self.host
        correlation = self._next()
        memory = "Pinned" if pinned else "Pageable"
        pageable = self.setting.pageable_gb_per_s * 1e3
        rate = self.spec.link_bytes_per_s / 1e6 if pinned else pageable
        us = (self.spec.kernel_us + nbytes / rate) * self.setting.copy_scale
        name = (
            f"Memcpy HtoD ({memory} -> Device)"
            if direction == "h2d"
            else f"Memcpy DtoH (Device -> {memory})"
        )
        self.host += 6.0
        begin = max(self.host + self.spec.start_us, self.tail[COMPUTE])
        self._occupy("gpu_memcpy", name, begin, us, COMPUTE, correlation, bytes=nbytes)
        if direction == "h2d" and not pinned:
            # The driver stages it through a buffer of its own: the call returns when that is done.
            self.host = max(self.host, self.tail[COMPUTE])
        self.row("cuda_runtime", "cudaMemcpyAsync", start, self.host, correlation=correlation)
        if blocking:
            self.wait("cudaStreamSynchronize")
        self.row("cpu_op", "aten::copy_", start, self.host)

    def wait(self, call: str = "cudaDeviceSynchronize") -> None:
        """Have the host wait until everything that is queued has run."""
        self._note_line(self.current_line())
        start = self.host
        self.host = max(self.host, *self.tail.values()) + self.spec.wait_us
        self.row("cuda_runtime", call, start, self.host, correlation=self._next())

    def join_streams(self) -> None:
        """Let what comes next on the compute stream wait for the communication."""
        self.tail[COMPUTE] = max(self.tail.values())

    def collective(self, name: str, begin: float, end: float, nbytes: int) -> None:
        """Record a collective that all ranks have joined, and that ends at the same time on all."""
        self._note_line(self.current_line())
        start = self.host
        self.host += self._vary(12.0)
        correlation = self._next()
        self.row("cuda_runtime", "cudaLaunchKernelExC", start, self.host, correlation=correlation)
        self.row("cpu_op", f"c10d::{name}_", start, self.host)
        # The name in the driver's own words, as NCCL 2.19 and later have it.
        called = {
            "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            "allgather": "ncclDevKernel_AllGather_RING_LL",
            "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
            "broadcast": "ncclDevKernel_Broadcast_RING_LL",
        }[name]
        self._place(
            "kernel", f"emulated: {called}", begin, end, COMMUNICATION, correlation, bytes=nbytes
        )

    def allocate(self, tensor: Any) -> None:
        """Take memory for a tensor from what the allocator holds, or from the driver; it goes back
        to the allocator with the tensor.
        """
        self._hold(tensor.untyped_storage())
        nbytes = tensor.nbytes
        if nbytes < OWN_BLOCK_BYTES:
            self._small += nbytes
            weakref.finalize(tensor, self._release_small, nbytes)
            if self._small > self._small_blocks * BLOCK_BYTES:
                self._small_blocks += 1
                self._driver("cudaMalloc", self.spec.malloc_us)
            return
        size = -(-nbytes // (2 << 20))
        block = min((free for free in self._free if size <= free <= 2 * size), default=size)
        if block in self._free:
            self._free[block] -= 1
            if not self._free[block]:
                del self._free[block]
        else:
            self._driver("cudaMalloc", self.spec.malloc_us)
        weakref.finalize(tensor, self._free.update, [block])

    def empty_cache(self) -> None:
        """Give the allocator's free memory back to the driver, block by block."""
        kept = -(-self._small // BLOCK_BYTES)
        for _ in range(self._free.total() + self._small_blocks - kept):
            self._driver("cudaFree", self.spec.malloc_us / 2)
        self._free.clear()
        self._small_blocks = kept

    def _release_small(self, nbytes: int) -> None:
        self._small -= nbytes

    def _hold(self, storage: Any) -> None:
        """Count a storage until it dies, which may be later than the tensor it was made for."""
        if storage not in self._storages:
            self._storages.add(storage)
            address = next(self._addresses)
            self._change(storage.nbytes(), address)
            weakref.finalize(storage, self._change, -storage.nbytes(), address)

    def _change(self, nbytes: int, address: int) -> None:
        """Note a change of allocated memory, if the program's profiler records memory. `address`:
        what tells the block apart.
        """
        self._held += nbytes
        self.peak_bytes = max(self.peak_bytes, self._held)
        if self.recording and self.records_memory:
            where = {"Device Type": 1, "Device Id": 0, "Addr": address}
            args = {"emulated": True, **where, "Bytes": nbytes, "Total Allocated": self._held}
            row = {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event"}
            self.rows.append(
                {**row, "pid": HOST, "tid": HOST, "ts": round(self.host, 3), "args": args}
            )

    def _driver(self, call: str, us: float) -> None:
        """Go to the driver for memory, which waits for the device."""
        self._note_line(self.current_line())
        start = self.host
        self.host = max(self.host, *self.tail.values()) + us
        self.row("cuda_runtime", call, start, self.host, correlation=self._next())

    # --- the recording ----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return the time at which all that was launched so far will have run."""
        return max(self.host, *self.tail.values())

    def start(self) -> None:
        """Begin to record: the profiler first lets the device run dry."""
        self.host = self.now
        self.recording, self.began = True, self.host
        self.peak_bytes = self._held
        self._line = ("", 0.0)

    def stop(self) -> None:
        """End the recording, as the profiler does: when the device has run dry."""
        self._note_node(None, self.host)
        self.wait()
        self._note_line("")
        self.elapsed = self.host - self.began
        self.recording = False

    def trace(self) -> dict[str, Any]:
        """Return the recording in torch.profiler's format."""
        labels = (
            (HOST, 0, "process_name", "python (emulated)"),
            (HOST, HOST, "thread_name", "main thread (emulated)"),
            (0, 0, "process_name", "GPU 0 (emulated)"),
        )
        ranks = {"rank": self.rank, "world_size": self.setting.ranks, "backend": "nccl"}
        return {
            "schemaVersion": 1,
            "emulated": f"Modelled times of {self.spec.name}; not a capture of a GPU.",
            "deviceProperties": [
                {
                    "id": 0,
                    "name": f"emulated: {self.spec.name}",
                    "computeMajor": 9,
                    "computeMinor": 0,
                    "numSms": 132,
                }
            ],
            **({"distributedInfo": ranks} if self.setting.ranks > 1 else {}),
            "displayTimeUnit": "ms",
            "with_stack": 1,
            "traceEvents": [
                *(
                    {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
                    for pid, tid, kind, name in labels
                ),
                *sorted(self.rows, key=lambda row: row["ts"]),
            ],
        }

    # --- helpers ----------------------------------------------------------------------------

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    def _vary(self, us: float) -> float:
        # Long stretches are made of many short ones, whose deviations even out.
        return us * self._random.lognormvariate(0.0, 0.06 / (1 + us / 500.0))

    def _occupy(
        self,
        category: str,
        name: str,
        begin: float,
        us: float,
        stream: int,
        correlation: int,
        **about: Any,
    ) -> None:
        busy, period = self.setting.busy_us, self.setting.period_us
        if busy:
            # The device is another process's at the start of every period: what is due then waits,
            # and what runs into it is interrupted.
            phase = begin % period
            begin += max(busy - phase, 0.0)
            us += busy * ((begin % period + us) // period)
        self._queue.append(begin)
        self._place(category, name, begin, begin + us, stream, correlation, **about)

    def _place(
        self,
        category: str,
        name: str,
        begin: float,
        end: float,
        stream: int,
        correlation: int,
        **about: Any,
    ) -> None:
        self.tail[stream] = end
        if self.recording:
            about |= {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
            self.rows.append(emulated_row(category, name, begin, end, 0, stream, **about))
