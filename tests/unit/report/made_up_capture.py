"""A made-up capture: three steps in which a device waits 5 ms for data, copies for 1 ms, computes
for 3 ms, then waits for the host.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceInfo,
    DeviceTable,
    Direction,
    HostMemory,
    HostTable,
    MemoryTable,
    Thread,
    Timeline,
    make_table,
)

MS = 1_000_000

STRINGS = (
    "ProfilerStep#0",
    "ProfilerStep#1",
    "ProfilerStep#2",
    "data",
    "forward",
    "aten::conv2d",
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "void at::native::conv<float, 4>(float*, int)",
    "Memcpy HtoD (Pageable -> Device)",
    "train.py(12): main",
)
_STEP, _DATA, _FORWARD, _CONV, _LAUNCH, _COPY_CALL, _KERNEL, _COPY, _LINE = (
    0,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
)


def empty() -> Timeline:
    """A capture with no rows."""
    host = make_table(HostTable)
    return Timeline(
        "none.json",
        "kineto",
        (),
        make_table(DeviceTable),
        host,
        host,
        host,
        host,
        make_table(MemoryTable),
    )


def _host(rows: list[tuple[int, int, int, int]]) -> HostTable:
    """Rows of (start, end, name, correlation)."""
    start, end, name, correlation = (list(column) for column in zip(*rows, strict=True))
    return make_table(
        HostTable, len(rows), start=start, end=end, name=name, correlation=correlation
    )


def capture(*, emulated: bool = False, wait_ms: int = 5) -> Timeline:
    """The capture, with `wait_ms` of waiting for data a step; with `emulated` its device is said to
    be an emulated one.
    """
    device, runtime, operators, ranges, python = [], [], [], [], []
    for step in range(3):
        begin = step * (wait_ms + 5) * MS
        ready, copied, done, end = (begin + (wait_ms + more) * MS for more in (0, 1, 4, 5))
        copy, kernel = 2 * step + 1, 2 * step + 2
        ranges += [
            (begin, end, _STEP + step, -1),
            (begin, ready, _DATA, -1),
            (ready, done, _FORWARD, -1),
        ]
        operators.append((ready, done, _CONV, -1))
        python.append((begin, end, _LINE, -1))
        runtime += [(ready, copied, _COPY_CALL, copy), (copied, copied + 9_000, _LAUNCH, kernel)]
        device += [
            (ready, copied, _COPY, copy, ActivityKind.COPY),
            (copied, done, _KERNEL, kernel, ActivityKind.KERNEL),
        ]
    start, end, name, correlation, kind = (list(column) for column in zip(*device, strict=True))
    copies = [each == ActivityKind.COPY for each in kind]
    return Timeline(
        source="made-up.json",
        format="kineto",
        strings=STRINGS,
        device=make_table(
            DeviceTable,
            len(device),
            start=start,
            end=end,
            name=name,
            correlation=correlation,
            kind=kind,
            stream=[7] * len(device),
            bytes=[9_600_000 * copy for copy in copies],
            direction=[Direction.H2D if copy else Direction.UNKNOWN for copy in copies],
            host_memory=[HostMemory.PAGEABLE if copy else HostMemory.UNKNOWN for copy in copies],
        ),
        runtime=_host(runtime),
        operators=_host(operators),
        ranges=_host(ranges),
        python=_host(python),
        memory=make_table(MemoryTable),
        threads=(Thread(0, "100", "101", "main"),),
        devices=(DeviceInfo(0, 0, "Example GPU"),),
        emulated=emulated,
        facts={"torch": "2.15.0"},
    )


NASTY = (
    '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u2028 \x1b[31m [bold]'
    + "A" * 5000
)


def hostile() -> Timeline:
    """The same with names that try to become markup, script or terminal commands."""
    good = capture()
    nasty = tuple(
        name if name.startswith("ProfilerStep") or name == "data" else f"{NASTY}{name}"
        for name in STRINGS
    )
    return replace(
        good,
        strings=nasty,
        threads=(Thread(0, NASTY, NASTY, NASTY),),
        devices=(DeviceInfo(0, 0, NASTY),),
        notes=(NASTY,),
        facts={NASTY: NASTY},
        source=NASTY,
    )


def with_one_finding(summary: Summary) -> Summary:
    """The summary with one finding in words of this file: how detectors put theirs is tested where
    they are.
    """
    finding = Finding(
        id="input-starved",
        title="The device waits",
        evidence="It did nothing for half of the time.",
        cause="input-bound",
        advice=(
            "Load ahead of time, in other processes, so that the next batch is there when the"
            " device asks for it."
        ),
        share_of_wall=0.5,
        expected_gain_ratio=2.0,
    )
    return msgspec.structs.replace(summary, findings=[finding])
