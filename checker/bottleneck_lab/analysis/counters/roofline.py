"""The ceiling that a kernel runs under: the machine's arithmetic or its memory (Williams, Waterman,
Patterson 2009).
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.trace.join import join_rows
from bottleneck_lab.trace.shapes import PRECISIONS
from bottleneck_lab.trace.timeline import ActivityKind, Ints, Timeline, take


class CacheLevel(msgspec.Struct, frozen=True):
    """The bandwidth of one cache for a working set (source and destination together) that lies in
    it.
    """

    name: str
    working_set_bytes: int
    bytes_per_s: float


class Machine(msgspec.Struct, frozen=True):
    """A device's ceilings: FLOP/s by precision, and bytes/s of its memory, as the vendor states
    them or as they were measured.

    `caches` are innermost first; `threads` is how many were used. `measured` is the day of the
    measurement, empty for a data sheet. `disturbed_by` is how many cores other programs kept busy
    meanwhile, 0 where they left the machine alone.
    """

    name: str
    flops: dict[str, float]
    bytes_per_s: float
    caches: list[CacheLevel] = []
    threads: int = 0
    measured: str = ""
    disturbed_by: float = 0.0

    def balance(self, precision: str) -> float:
        """Return FLOP per byte at which both ceilings meet."""
        return self.flops[precision] / self.bytes_per_s


MACHINES: tuple[Machine, ...] = (
    Machine("T4", {"fp32": 8.1e12, "fp16": 65e12}, 320e9),
    Machine("V100", {"fp64": 7.8e12, "fp32": 15.7e12, "fp16": 125e12}, 900e9),
    Machine("A100", {"fp64": 9.7e12, "fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12}, 2039e9),
    Machine("H100", {"fp64": 33.5e12, "fp32": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12}, 3350e9),
    Machine("H200", {"fp64": 33.5e12, "fp32": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12}, 4800e9),
)
"""From the vendor's data sheets (SXM forms but for the T4, dense, without sparsity; A100 with
80 GB). fp16 stands for bf16 as well, on tensor cores.
"""


def find_machine(device_name: str) -> Machine | None:
    """Return the machine whose name stands in the device's, None for one that is not listed."""
    for machine in MACHINES:
        if re.search(rf"\b{machine.name}(?!\d)", device_name):
            return machine
    return None


RowBound = Literal["compute-bound", "memory-bound", "cache-bound", "overhead-bound", "unknown"]
ABOVE_MEMORY = 1.1
"""A rate this much above memory's ceiling is no noise: the data came from a cache."""
SHORT_CALL_NS = 10_000
"""Calls shorter than this, and below OVERHEAD_SHARE of their ceiling, are overhead."""
OVERHEAD_SHARE = 0.2


class RooflineRow(msgspec.Struct, frozen=True):
    """Calls of one operator at one precision against the device's ceilings. Time is the device's,
    or the operator's own where the CPU is the device.

    `moved_bytes` is the least that any kernel must move, from the shapes: `intensity` is an upper
    bound. `ceiling_share` (0–1) is the part of the attainable rate that was reached, the achieved
    FLOP/s over min(peak, intensity x bandwidth); -1 where the device's ceilings are not known.

    `cache-bound`: faster than memory allows, so the data came from a cache, and the share is above
    1. `overhead-bound`: calls so short, and so far below every ceiling, that what is around the
    work takes the time.
    """

    operator: str
    precision: str
    calls: int
    time_ns: int
    flop: float
    moved_bytes: float
    intensity: float
    flops_per_s: float
    bound: RowBound
    ceiling_share: float


class Roofline(msgspec.Struct, frozen=True):
    """The operators whose work the recorded shapes tell, longest first. `note` says where the
    ceilings come from, or why there are none.
    """

    machine: Machine | None = None
    rows: list[RooflineRow] = []
    note: str = ""


def find_roofline(timeline: Timeline, measured: Machine | None = None) -> Roofline:
    """Place operators by the FLOP and bytes that their shapes imply. Empty if no shapes were
    recorded.

    `measured`: ceilings measured on the device that the capture is of. They go before a data
    sheet's.
    """
    if not len(timeline.work):
        return Roofline()
    machine, note = _ceilings(timeline, measured)
    times = _times_of_calls(timeline)
    ran = times > 0
    # Operator and precision in one number: the precision takes the low eight bits.
    work = timeline.work
    keys, inverse = np.unique(
        work.name[ran].astype(np.int64) << 8 | work.precision[ran], return_inverse=True
    )
    sums = (
        np.bincount(inverse.reshape(-1), weights=column[ran], minlength=len(keys)).tolist()
        for column in (np.ones(len(work)), times, work.flop, work.moved_bytes)
    )
    rows = []
    for key, calls, ns, flop, moved in zip(keys.tolist(), *sums, strict=True):
        precision, intensity, rate = PRECISIONS[key & 0xFF], flop / moved, flop / ns * 1e9
        bound, share = _find_bound(machine, precision, intensity, rate, ns / calls)
        rows.append(
            RooflineRow(
                operator=timeline.strings[key >> 8],
                precision=precision,
                calls=int(calls),
                time_ns=int(ns),
                flop=flop,
                moved_bytes=moved,
                intensity=intensity,
                flops_per_s=rate,
                bound=bound,
                ceiling_share=share,
            )
        )
    beyond = [row for row in rows if row.ceiling_share > ABOVE_MEMORY]
    if measured and any(row.bound == "compute-bound" for row in beyond):
        if not measured.disturbed_by:  # else the note says so already
            note += (
                " Beyond 100% of the arithmetic: the ceiling was probably measured too low, beside"
                " other programs. `lab doctor --measure --again` measures it anew."
            )
    elif beyond:
        note += (
            " Beyond 100%: the data came from a cache, or less was computed or moved than the"
            " shapes imply."
        )
    return Roofline(machine, sorted(rows, key=lambda row: -row.time_ns), note)


def _find_bound(
    machine: Machine | None, precision: str, intensity: float, flops_per_s: float, call_ns: float
) -> tuple[RowBound, float]:
    """Return (what limits an operator, the share of its attainable rate that it reached)."""
    if machine is None or precision not in machine.flops:
        return "unknown", -1.0
    share = flops_per_s / min(machine.flops[precision], intensity * machine.bytes_per_s)
    if share < OVERHEAD_SHARE and call_ns < SHORT_CALL_NS:
        return "overhead-bound", share
    if intensity >= machine.balance(precision):
        return "compute-bound", share
    return "cache-bound" if share > ABOVE_MEMORY else "memory-bound", share


def _times_of_calls(timeline: Timeline) -> Ints:
    """Return, for each call, the time of the device work that it launched, or its own where there
    is no device, ns.
    """
    work = timeline.work
    times = np.zeros(len(work), dtype=np.int64)
    if len(timeline.device):
        kernels = take(timeline.device, timeline.device.kind == ActivityKind.KERNEL)
        keys, ranks, duration = kernels.external, kernels.rank, kernels.end - kernels.start
    else:
        rows = timeline.operators
        keys, ranks, duration = rows.correlation, rows.rank, rows.end - rows.start
    call = join_rows(work.external, work.rank, keys, ranks)
    # Not `times[call] += …`, which would keep the last of several kernels of one call.
    np.add.at(times, call[call >= 0], duration[call >= 0])
    return times


def _ceilings(timeline: Timeline, measured: Machine | None) -> tuple[Machine | None, str]:
    """Return the machine that the capture is of, if its ceilings are known, and a note on them."""
    if timeline.emulated:
        return None, (
            "No ceilings are drawn: the device is emulated, and its times say nothing about"
            " arithmetic or memory."
        )
    if measured is not None:
        threads = ""
        if measured.threads > 1:
            threads = f" with {measured.threads} threads: fewer reach less"
        note = f"Ceilings of {measured.name}, measured here on {measured.measured}{threads}."
        if measured.disturbed_by:
            note += (
                f" Other programs kept {measured.disturbed_by:.1f} cores busy meanwhile, so they"
                " may be too low: close them, and `lab doctor --measure --again`."
            )
        return measured, note
    if not len(timeline.device):
        return None, (
            "No ceilings are drawn: a CPU's depend on its clock, its vector units and the"
            " threads used, which no capture records. `lab doctor --measure` measures this"
            " machine's."
        )
    name = next((device.name for device in timeline.devices if device.name), "")
    machine = find_machine(name)
    if machine is None:
        unlisted = name or "a device that the capture does not name"
        return None, f"No ceilings are drawn: none are listed for {unlisted}."
    return machine, (
        f"Ceilings of {machine.name} from the vendor's data sheet (SXM form, dense). fp32"
        " without tensor cores: with TF32 allowed, rates can be higher."
    )
