"""A torch.profiler capture as the `operator_profile` kind needs it: operators, calls with their
shapes, the self time of every single call, and when it was made.
"""

from __future__ import annotations

import io
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host.operators import (
    OperatorRow,
    build_calls,
    find_operators,
    find_self_times,
)
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.kineto.reader import read_kineto

MAX_TRACE_BYTES = 64 << 20
"""Many times a capture of six passes. Read, a trace takes up to thirty times its bytes of the
verifier's memory.
"""
MAX_CALLS, MAX_NESTED = 100_000, 200
"""Operators and runtime calls in a trace, and how deep they may nest: adding them up takes calls
times levels. Six passes on a CPU: 7,146 calls in 7 levels.
"""
Times = NDArray[np.int64]


_Length = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Dims = list[list[_Length | list[_Length]]]
"""A shape for each input, or for each tensor of an input that is a list of them; nothing nests
deeper, and nothing here is read by recursion.
"""


class _Args(msgspec.Struct, frozen=True):
    dims: _Dims | None = msgspec.field(name="Input Dims", default=None)
    concrete: list[str] = msgspec.field(name="Concrete Inputs", default_factory=list)


class _Event(msgspec.Struct, frozen=True):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None


class _Trace(msgspec.Struct, frozen=True):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = msgspec.field(
        name="baseTimeNanoseconds", default=0
    )
    runs_before: int | None = None
    altered: list[str] = []


@dataclass(frozen=True)
class OperatorCall:
    """One recorded call of an operator: its inputs' shapes, and the values of the inputs that are
    not tensors.
    """

    name: str
    dims: tuple[Any, ...]
    concrete: tuple[str, ...]


@dataclass(frozen=True)
class OperatorCapture:
    """The content of a trace: operators with the largest self time on the device first, every call
    with shapes, and when it was made (Unix time, s).
    """

    operators: dict[str, OperatorRow]
    calls: list[OperatorCall]
    begin_s: float
    end_s: float
    has_device: bool
    times: dict[str, Times]
    """Nanoseconds of self time on the device of every single call, by operator, in the order of the
    calls.
    """
    runs_before: int | None = None
    """Runs of the model before the first recorded one, where the lab's workload wrote that down."""
    altered: tuple[str, ...] = ()
    """Parts not as the workload gave them: `training`, `precision`, `layout`, `threads`."""

    def count(self, name: str) -> int:
        """Return the number of calls of an operator."""
        return self.operators[name].calls if name in self.operators else 0

    def shapes(self, names: set[str]) -> Counter[str]:
        """Count the calls of these operators by name and shapes."""
        return Counter(f"{call.name} {call.dims}" for call in self.calls if call.name in names)


def read_capture(data: bytes) -> OperatorCapture:
    """Read the bytes of a Kineto trace, plain or gzip. Writes no file: the disk may be full.

    Raises CaptureError for anything else, and for more than an honest capture holds.
    """
    plain = _unpacked(data)
    try:
        # Strictly typed, and first: bytes that are not a trace must not keep the reader busy.
        trace = msgspec.json.decode(plain, type=_Trace)
        events = [event for event in trace.events if event.ph == "X" and event.cat == "cpu_op"]
        if not events:
            raise CaptureError(
                "The trace holds no operators.",
                "Run the passes inside the profiler's `with` block. A `schedule` without `repeat=1`"
                " begins a new cycle after the last pass, and what is exported then is empty.",
            )
        timeline = read_kineto(io.BytesIO(plain).read, Path("the trace"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ArithmeticError) as error:
        raise CaptureError(
            f"The trace cannot be read: {error}.", "Export it with `export_chrome_trace`."
        ) from error
    if len(timeline.operators) + len(timeline.runtime) > MAX_CALLS:
        raise CaptureError(
            f"The trace holds more than {MAX_CALLS:,} calls.", "Record only the passes."
        )
    tree = build_calls(timeline, python=False)
    if tree.tree.depth.max(initial=0) > MAX_NESTED:
        raise CaptureError(
            f"The trace nests calls more than {MAX_NESTED} deep.", "Record only the passes."
        )
    rows = find_operators(timeline, tree, top=10_000)
    begin, end = min(event.ts for event in events), max(event.ts + event.dur for event in events)
    calls = [
        _call(event) for event in events if event.args is not None and event.args.dims is not None
    ]
    return OperatorCapture(
        operators={row.name: row for row in rows},
        calls=calls,
        begin_s=trace.base_ns / 1e9 + begin / 1e6,
        end_s=trace.base_ns / 1e9 + end / 1e6,
        has_device=bool(len(timeline.device)),
        times=find_self_times(timeline, tree),
        runs_before=trace.runs_before,
        altered=tuple(trace.altered),
    )


def _unpacked(data: bytes) -> bytes:
    """Decompress a trace. Raises CaptureError for a damaged one, or one of too many bytes."""
    plain = data
    if data.startswith(b"\x1f\x8b"):
        unpack = zlib.decompressobj(wbits=31)
        try:
            # One byte more than is allowed: a small file may unpack to any size.
            plain = unpack.decompress(data, MAX_TRACE_BYTES + 1)
        except zlib.error as error:
            raise CaptureError(f"The trace is damaged ({error}).", "Record it again.") from error
        if not (unpack.eof or unpack.unconsumed_tail):
            raise CaptureError("The trace is cut off.", "Record it again.")
    if len(plain) > MAX_TRACE_BYTES:
        raise CaptureError(
            f"The trace is larger than {MAX_TRACE_BYTES >> 20} MiB.", "Record only the passes."
        )
    return plain


def _call(event: _Event) -> OperatorCall:
    args = event.args or _Args()
    dims = [
        [tuple(part) if isinstance(part, list) else part for part in shape]
        for shape in args.dims or []
    ]
    return OperatorCall(event.name, tuple(map(tuple, dims)), tuple(args.concrete))
