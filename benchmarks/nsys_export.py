"""A made-up nsys export (schema 3.25) of any size, for measuring: two ranks that call operators,
launch kernels, copy and wait.

Columns, widths of values and shares of the tables are those of an H100 capture that was measured:
of 1000 rows 621 ranges of 70 bytes with their name in the row, 127 kernels of 90 bytes, 215 calls
of 35, 33 copies of 51 and 9 waits.

    python benchmarks/nsys_export.py FILE.sqlite MEGABYTES
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path

TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        """start end deviceId contextId greenContextId streamId correlationId globalPid
        demangledName shortName mangledName launchType cacheConfig registersPerThread gridX
        gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory
        localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId
        sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId
        clusterX clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize
        maxActiveClusters sharedMemoryRequestedPercentage tensorSizeMinusOneElements"""
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start end eventClass globalTid correlationId nameId returnValue callchainId"
    ),
    "NVTX_EVENTS": (
        """start end eventType rangeId category color text globalTid endGlobalTid textId domainId
        uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText
        binaryData"""
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        """start end deviceId contextId greenContextId streamId correlationId globalPid bytes
        copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId
        dstContextId migrationCause graphNodeId virtualAddress copyCount"""
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        """start end deviceId contextId greenContextId streamId correlationId globalPid
        deprecatedSyncType syncType eventId eventSyncId"""
    ),
}
OPERATORS = [
    "linear",
    "matmul",
    "mm",
    "t",
    "transpose",
    "as_strided",
    "view",
    "reshape",
    "add",
    "mul",
    "copy_",
    "to",
    "_to_copy",
    "empty",
    "permute",
    "softmax",
    "layer_norm",
    "gelu",
    "embedding",
    "slice",
    "select",
    "cat",
    "stack",
    "expand",
    "contiguous",
    "clone",
    "sum",
    "mean",
    "div",
    "pow",
    "rsqrt",
    "native_dropout",
    "scaled_dot_product_attention",
    "addmm",
    "bmm",
    "index",
    "where",
    "fill_",
    "zero_",
    "unsqueeze",
]
TEXTS = ("text", "jsonText", "tensorSizeMinusOneElements")
FIRST_KERNEL, KERNELS, LAUNCH, SYNCHRONIZE = 330_000, 120, 6498, 12507
UNIT_NS = 24_000
NONE = (None,)


def make(path: Path, megabytes: int) -> None:
    """Writes the file."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        names = [(FIRST_KERNEL + i, f"void kernel_{i}<float>(float*, int)") for i in range(KERNELS)]
        names += [(LAUNCH, "cudaLaunchKernel_v7000"), (SYNCHRONIZE, "cudaStreamSynchronize_v3020")]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        for table, columns in TABLES.items():
            kinds = [f"{name} {'TEXT' if name in TEXTS else 'INTEGER'}" for name in columns.split()]
            db.execute(f"CREATE TABLE {table} ({', '.join(kinds)})")
        units = count()
        while path.stat().st_size < megabytes * 1_000_000:
            db.execute("BEGIN")
            some = list(islice(units, 10_000))
            for table, rows in zip(TABLES, (kernels, calls, ranges, copies, waits), strict=True):
                marks = ", ".join("?" * len(TABLES[table].split()))
                db.executemany(
                    f"INSERT INTO {table} VALUES ({marks})",
                    (row for unit in some for row in rows(unit)),
                )
            db.execute("COMMIT")


def process(unit: int) -> int:
    """globalPid of the rank whose turn it is."""
    return (1 << 48) + (111 + unit % 2 << 24)


def begin(unit: int) -> int:
    return 155_360_000_000 + unit * UNIT_NS


def kernels(unit: int) -> Iterator[tuple]:
    """One a unit."""
    start, name = begin(unit) + 9000, FIRST_KERNEL + unit % KERNELS
    shape = (1 + unit % 300, 1, 1, 128, 1, 1)
    yield (
        *(
            start,
            start + 15_000 + unit % 5000,
            unit % 2,
            1 + unit % 2,
            None,
            7,
            2 * unit,
            process(unit),
            name,
            name,
        ),
        *(
            name,
            1,
            1,
            32 + unit % 224,
            *shape,
            0,
            33280 * (unit % 3 == 0),
            0,
            289_800_192,
            1 + unit % 100_000,
            32768,
        ),
        *(None, 0, *NONE * 4, 0, 0, 0, 1, 0, 0, None, "[]"),
    )


def calls(unit: int) -> Iterator[tuple]:
    """A launch, and seven times in ten something else."""
    thread = process(unit) + 111
    yield begin(unit) + 6000, begin(unit) + 8500, 0, thread, 2 * unit, LAUNCH, 0, None
    if unit % 10 < 7:
        yield (
            begin(unit) + 12_000,
            begin(unit) + 16_000,
            0,
            thread,
            2 * unit + 1,
            SYNCHRONIZE,
            0,
            None,
        )


def ranges(unit: int) -> Iterator[tuple]:
    """Five operators, one in the other."""
    for depth in range(5):
        name = (
            f"aten::{OPERATORS[(unit + depth * 7) % len(OPERATORS)]}, op_id ="
            f" {314_000 + 5 * unit + depth}"
        )
        times = (begin(unit) + 900 * depth, begin(unit) + 23_000 - 1500 * depth)
        yield (*times, 59, *NONE * 3, name, process(unit) + 111, None, None, 0, *NONE * 9)


def copies(unit: int) -> Iterator[tuple]:
    """One in four units."""
    if unit % 4 == 0:
        start, to_device = begin(unit) + 2000, unit % 8 == 0
        way = (1, None, 1, 2) if to_device else (8, None, 2, 2)
        head = (
            start,
            start + 4000,
            unit % 2,
            1 + unit % 2,
            None,
            7,
            2 * unit + 1,
            process(unit),
            4096 * (1 + unit % 999),
        )
        yield (*head, *way, *NONE * 6, 139_942_842_466_304 + unit, None)


def waits(unit: int) -> Iterator[tuple]:
    """One in fourteen units."""
    if unit % 14 == 0:
        start = begin(unit) + 12_500
        yield (
            start,
            start + 3000,
            unit % 2,
            1,
            None,
            7,
            2 * unit + 1,
            process(unit),
            None,
            3,
            0,
            None,
        )


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
