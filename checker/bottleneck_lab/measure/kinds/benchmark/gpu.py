"""A GPU as the device that does real work: a kernel that keeps it busy for a given time, and CUDA
events that say how long it really took.

The kernel spins until the GPU's own timer, `%globaltimer`, has gone on by that time. The timer
counts nanoseconds whatever the clocks do, so no calibration is needed; `torch.cuda._sleep` counts
cycles of a clock that wanders. The timer moves in ticks, of 32 ns to about 1 µs depending on the
GPU, so a piece of 100 µs is exact to 1%. Events, which the driver times by itself, check every
piece.

The kernel is PTX, which the driver translates for whatever GPU is there. That needs neither nvcc
nor NVRTC; `torch.cuda._compile_kernel` needs a CUDA toolkit for its include paths, and is private.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Protocol

from bottleneck_lab.measure.kinds.benchmark.works import Note

LEAD_S = 2e-5
"""A spin before work that finds the GPU idle: long enough to launch that work, so that its first
event is not passed too early.
"""
HELD_S = 2e-5
"""A piece that starts at most this late still ends on time: in a full queue, the gap between two
kernels and the event in it take a few microseconds.
"""
ZERO_S, ZERO_TRIES = 5e-5, 20
"""The moment of an event should be known this exactly, and that is tried this often: other programs
can hold this process up between event and clock.
"""
SPIN = b"""
.version 7.0
.target sm_75
.address_size 64

// due: when the piece before should end, nanoseconds of the timer. The new piece begins then, or
// now where that is more than `held` ago.
.visible .entry spin(.param .u64 due, .param .u64 length, .param .u64 held)
{
    .reg .pred %late, %early;
    .reg .u64 %where, %length, %held, %begin, %latest, %end, %now;

    ld.param.u64 %where, [due];
    ld.param.u64 %length, [length];
    ld.param.u64 %held, [held];
    cvta.to.global.u64 %where, %where;
    ld.global.u64 %begin, [%where];
    mov.u64 %now, %globaltimer;
    add.u64 %latest, %begin, %held;
    setp.gt.u64 %late, %now, %latest;
    selp.u64 %begin, %now, %begin, %late;
    add.u64 %end, %begin, %length;
    st.global.u64 [%where], %end;
WAIT:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra WAIT;
    ret;
}
\0"""
Spin = Callable[[float, float], None]
"""Queues a spin: for how many seconds, and how late it may start and still end on time."""


class Event(Protocol):
    """torch.cuda.Event."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float: ...


class Gpu:
    """A GPU with one stream, which works while this process goes on. Every piece lies between two
    events.

    A piece that finds the GPU idle follows a short spin, during which it is launched: that is its
    launch latency.
    """

    def __init__(
        self, spin: Spin, event: Callable[[], Event], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._spin, self._event, self._clock = spin, event, clock
        self._pieces: list[tuple[float, Event, Event]] = []
        self._spare: list[Event] = []
        self._end: Event
        self._set_zero()

    def work(self, seconds: float, waited: bool) -> None:  # noqa: ARG002 - the stream itself knows if it ran dry
        """Queue one piece; of no time, a mark: a single event."""
        if not seconds:
            self._last = self._mark()
            self._pieces.append((seconds, self._last, self._last))
            return
        if self._end.query():
            # The GPU is idle: without this spin the first event would be passed before the piece
            # is launched, and its launch latency would count as its time.
            self._spin(LEAD_S, 0.0)
            self._last = self._mark()
        begin = self._last
        self._spin(seconds, HELD_S)
        self._end = self._last = self._mark()
        self._pieces.append((seconds, begin, self._end))

    def wait(self) -> None:
        """Return when the GPU has passed the last event."""
        self._last.synchronize()

    def take_notes(self) -> list[Note]:
        """Return the notes since the last call, from the events, which are then free for new
        pieces.
        """
        # A mark's begin is the event of the piece before: each event becomes spare only once.
        notes = [(seconds, self._at(begin), self._at(end)) for seconds, begin, end in self._pieces]
        used = {id(event): event for _, *events in self._pieces for event in (*events, self._zero)}
        self._spare += used.values()
        self._pieces.clear()
        self._set_zero()
        return notes

    def _set_zero(self) -> None:
        """Record an event whose moment this process knows, to ZERO_S if other programs let it. It
        is never long ago: CUDA gives differences, in single precision.
        """
        for left in reversed(range(ZERO_TRIES)):
            began_s = self._clock()
            self._zero = self._end = self._last = self._mark()
            self._zero.synchronize()
            self._zero_s = self._clock()
            if self._zero_s - began_s <= ZERO_S or not left:
                return
            self._spare.append(self._zero)

    def _at(self, event: Event) -> float:
        return self._zero_s + self._zero.elapsed_time(event) / 1000

    def _mark(self) -> Event:
        event = self._spare.pop() if self._spare else self._event()
        event.record()
        return event


class Kernel:
    """A kernel of one thread whose parameters are 64-bit integers, translated from PTX for the GPU
    whose context is current.
    """

    def __init__(self, ptx: bytes, name: bytes, parameters: int, cuda: Any = None) -> None:
        self._cuda = cuda or ctypes.CDLL("libcuda.so.1")
        self._function, module = ctypes.c_void_p(), ctypes.c_void_p()
        self._require(self._cuda.cuModuleLoadData(ctypes.byref(module), ptx))
        self._require(self._cuda.cuModuleGetFunction(ctypes.byref(self._function), module, name))
        self._values = (ctypes.c_uint64 * parameters)()
        first = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * parameters)(
            *(first + 8 * number for number in range(parameters))
        )

    def launch(self, stream: int, *values: int) -> None:
        """Queue the kernel; the driver copies the values at once. Raises OSError."""
        self._values[:] = list(values)
        grid_and_block = (1, 1, 1, 1, 1, 1)
        shared_bytes, no_more = 0, None
        queue = ctypes.c_void_p(stream)
        self._require(
            self._cuda.cuLaunchKernel(
                self._function, *grid_and_block, shared_bytes, queue, self._pointers, no_more
            )
        )

    def _require(self, status: int) -> None:
        if status:
            raise OSError(f"the CUDA driver refused the checker's kernel (CUDA_ERROR {status})")


def open_gpu() -> Gpu:
    """Return the first GPU of this process. Raises whatever torch or the driver does."""
    import torch

    due = torch.zeros(1, dtype=torch.int64, device="cuda")  # makes the context current, too
    kernel, stream = Kernel(SPIN, b"spin", 3), torch.cuda.current_stream().cuda_stream

    def spin(seconds: float, held_s: float) -> None:
        kernel.launch(stream, due.data_ptr(), round(1e9 * seconds), round(1e9 * held_s))

    event: Any = torch.cuda.Event  # torch has no types for it in every version
    return Gpu(spin, lambda: event(enable_timing=True))
