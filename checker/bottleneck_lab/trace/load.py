"""Opens a capture, whatever wrote it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from isal import igzip, isal_zlib

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace import timeline as tl
from bottleneck_lab.trace.clocks import set_clocks
from bottleneck_lab.trace.foreign import START_BYTES
from bottleneck_lab.trace.kineto.reader import read_kineto
from bottleneck_lab.trace.processes import is_next_cycle, join_cycles, split_processes
from bottleneck_lab.trace.snapshot import Snapshot
from bottleneck_lab.trace.timeline import Timeline

Result = TypeVar("Result")

# Below this, starting a process takes longer than it saves.
WORTHWHILE_BYTES = 48 << 20

# The key that tells rocprofv3's JSON is its first.
START_OF_KEY = 256

GZIP_MAGIC = b"\x1f\x8b"
SQLITE_MAGIC = b"SQLite format 3\x00"
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub says Any value, not a type
_GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error, _ISAL_ERROR)


def load(path: Path | str) -> Timeline:
    """Return the capture at `path`, told by what it holds and not by its name: Kineto or Chrome
    JSON (also gzipped), an nsys report or its SQLite export (also gzipped), ncu's CSV or report; or
    a folder: a capture of `lab profile`, or one trace per rank, which are merged.

    Raises CaptureError with what to do when it cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return merge_ranks([load(file) for file in find_traces(path)])
    try:
        timeline = _read(path, _first_bytes(path))
        timeline = _with_neighbours(timeline, path.with_name(DESCRIPTION))
    except _GZIP_ERRORS as error:
        raise CaptureError(
            f"{path.name} is a damaged or truncated gzip file ({error}).",
            "Copy it again, or capture again.",
        ) from error
    except OSError as error:
        raise CaptureError(
            f"{path.name} cannot be read: {error}.", "Copy it again, or capture again."
        ) from error
    return split_processes(timeline)


DESCRIPTION = "capture.json"
"""What `lab profile` writes beside a trace."""
ENDINGS = (".nsys-rep", ".sqlite", ".json", ".json.gz")


def _with_neighbours(timeline: Timeline, description: Path) -> Timeline:
    """Note the other processes that `lab profile` saw on the GPU: a profiler records only its own
    program's kernels, so theirs look like gaps.
    """
    if not description.is_file():
        return timeline
    try:
        environment = json.loads(description.read_text(encoding="utf-8"))["environment"]
        count = int(environment["gpu_processes"])
    except (ValueError, KeyError, TypeError):  # somebody else's file of that name
        return timeline
    if not count:
        return timeline
    others = "another process was" if count == 1 else f"{count} other processes were"
    note = (
        f"{others} using the GPU when this was recorded: gaps that nothing here explains may be"
        " their kernels"
    )
    return replace(timeline, notes=(*timeline.notes, note))


def find_traces(folder: Path) -> list[Path]:
    """Return the traces of one capture: those that its capture.json names, or one a rank, in the
    order of the numbers in their names; of a report and its export, the export. Raises CaptureError
    if there is none.
    """
    described = folder / DESCRIPTION
    if described.is_file():
        names = json.loads(described.read_text(encoding="utf-8")).get("files", [])
        files = [folder / str(name) for name in names if (folder / str(name)).is_file()]
    else:
        by_name: dict[str, Path] = {}
        for ending in ENDINGS:
            by_name |= {path.name.removesuffix(ending): path for path in folder.glob(f"*{ending}")}
        files = [by_name[name] for name in sorted(by_name, key=by_number)]
    if not files:
        raise CaptureError(
            f"{folder} holds no trace.",
            "Put one .sqlite, .nsys-rep or .json(.gz) file per rank into it, or name one trace"
            " file.",
        )
    return files


def _read(path: Path, start: bytes) -> Timeline:
    """Read a file whose content begins with `start`, by what that is.

    Readers are imported when a file needs them: half of what starting costs. Raises CaptureError
    for a file that is no timeline.
    """
    packed = _is_packed(path)
    name = path.name.removesuffix(".gz")
    if path.suffix == ".nsys-rep" or start.startswith(SQLITE_MAGIC):
        return _read_nsys(path, start, packed=packed)
    if start[:1] == b"\x80":
        raise CaptureError(
            f"{path.name} is a pickle: at best a memory snapshot, not a timeline.",
            f"`lab report {path.name}` reads memory snapshots.",
        )
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        from bottleneck_lab.trace import execution_trace, ncu
        from bottleneck_lab.trace.foreign import refuse_foreign

        if path.suffix == ".ncu-rep":
            return ncu.load_ncu_report(path)
        if ncu.is_ncu_csv(start):
            return ncu.load_ncu_csv(path)
        if execution_trace.is_chakra(start, name):
            with _opened(path, packed=packed) as file:
                return execution_trace.read_chakra(file.read(), path)
        refuse_foreign(path, start)
    return _read_json(path, start, packed=packed)  # also for what nobody knows: it says why not


def _read_nsys(path: Path, start: bytes, *, packed: bool) -> Timeline:
    from bottleneck_lab.trace.nsys import reader as nsys

    if not start.startswith(SQLITE_MAGIC):
        return nsys.load_nsys_report(path)
    if not packed:
        return nsys.load_nsys_sqlite(path)
    # SQLite needs a file that it can seek in.
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        with target.open("wb") as out, _opened(path, packed=True) as file:
            shutil.copyfileobj(file, out, 4 << 20)
        return nsys.load_nsys_sqlite(target, source=path)


def _read_json(path: Path, start: bytes, *, packed: bool) -> Timeline:
    from bottleneck_lab.trace import execution_trace, rocprofv3

    large = not packed and path.stat().st_size >= WORTHWHILE_BYTES
    with _opened(path, packed=packed) as file:
        if rocprofv3.KEY in start[:START_OF_KEY]:
            return rocprofv3.read_rocprofv3(file.read(), path)
        if execution_trace.is_execution_trace(start):
            return execution_trace.read_execution_trace(file.read(), path)
        if large and (os.cpu_count() or 1) > 1:
            from bottleneck_lab.trace.fast.kineto_parallel import load_in_parallel

            return load_in_parallel(path)
        return read_kineto(file.read, path)


def _opened(path: Path, *, packed: bool) -> IO[bytes]:
    if packed:
        file: IO[bytes] = igzip.open(path, "rb")  # type: ignore[no-untyped-call]  # isal has no types for it
        return file
    return path.open("rb")


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of what a file holds, unpacked where it is gzipped."""
    try:
        with _opened(path, packed=_is_packed(path)) as file:
            return file.read(START_BYTES)
    except FileNotFoundError:
        raise CaptureError(
            f"{path} does not exist.", "Record a capture with `lab profile`."
        ) from None
    except PermissionError as error:
        raise CaptureError(
            f"{path} cannot be read: {error.strerror}.", "Check the file and its permissions."
        ) from error


def by_number(name: str) -> tuple[list[int], str]:
    """Return the sort key of a rank's file: the numbers in its name, so that the tenth comes after
    the second.
    """
    return [int(number) for number in re.findall(r"\d+", name)], name


NO_COMMON_CLOCK = (
    "rank {rank}: the report does not record when it began, so the ranks share no clock and there"
    " is no telling which was late"
)


def merge_ranks(timelines: list[Timeline]) -> Timeline:
    """Return one timeline of several ranks' captures on one clock. Two captures that both say rank
    0 are numbered in the order given.

    If one of them does not say when its clock began, each keeps its own: an old Kineto trace has
    the time of day, an nsys report counts from its own start.
    """
    timelines = _joined_cycles(timelines)
    if len(timelines) == 1:
        return timelines[0]
    ranks = [(t.ranks or (0,))[0] for t in timelines]
    if len(set(ranks)) < len(ranks):
        ranks = list(range(len(timelines)))
    bases = [_base_ns(timeline) for timeline in timelines]
    # An nsys report that lacks the time of its start counts from its own.
    lost = [
        rank
        for t, rank, base in zip(timelines, ranks, bases, strict=True)
        if t.format == "nsys" and not base
    ]
    strings: dict[str, int] = {}
    threads: list[tl.Thread] = []
    parts = []
    for timeline, rank, base in zip(timelines, ranks, bases, strict=True):
        parts.append(
            _moved(timeline, rank, base - min(bases) if all(bases) else 0, strings, len(threads))
        )
        threads.extend(replace(thread, rank=rank) for thread in timeline.threads)
    merged = replace(
        parts[0],
        source=", ".join(t.source for t in timelines),
        strings=tuple(strings),
        threads=tuple(threads),
        devices=tuple(device for part in parts for device in part.devices),
        emulated=any(t.emulated for t in timelines),
        notes=(
            *(
                f"rank {rank}: {note}"
                for t, rank in zip(timelines, ranks, strict=True)
                for note in t.notes
            ),
            *(NO_COMMON_CLOCK.format(rank=rank) for rank in lost),
        ),
        **{name: tl.concatenate([getattr(part, name) for part in parts]) for name in TABLES},
        work=tl.WorkTable(
            **{
                c.name: np.concatenate([getattr(part.work, c.name) for part in parts])
                for c in fields(tl.WorkTable)
            }
        ),
    )
    return set_clocks(merged)


def _base_ns(timeline: Timeline) -> int:
    """Return the time of day at which a capture's clock began, ns; 0 if it does not say."""
    text = timeline.facts.get("baseTimeNanoseconds", "0")
    return int(text) if text.isdecimal() else 0


def _joined_cycles(timelines: list[Timeline]) -> list[Timeline]:
    """Return the captures with those of one process, taken one after another, made one."""
    cycles: list[list[Timeline]] = []
    for timeline in sorted(timelines, key=lambda each: each.extent[0]):
        for earlier in cycles:
            if is_next_cycle(earlier[-1], timeline):
                earlier.append(timeline)
                break
        else:
            cycles.append([timeline])
    if len(cycles) == len(timelines):
        return timelines  # in the order given
    return [join_cycles(each) if len(each) > 1 else each[0] for each in cycles]


TABLES = ("device", "runtime", "operators", "ranges", "python", "memory")


def _moved(
    timeline: Timeline, rank: int, shift_ns: int, strings: dict[str, int], first_thread: int
) -> Timeline:
    """Return the timeline on the common clock, with names and threads numbered in common."""
    numbers = np.array(
        [strings.setdefault(name, len(strings)) for name in timeline.strings], dtype=np.int32
    )
    moved = {}
    for name in TABLES:
        table = getattr(timeline, name)
        changes = {
            "start": table.start + shift_ns,
            "rank": np.full(len(table), rank, dtype=np.int32),
        }
        if hasattr(table, "end"):
            changes |= {
                "end": table.end + shift_ns,
                "name": numbers[table.name] if len(table) else table.name,
            }
        if hasattr(table, "thread"):
            changes["thread"] = table.thread + np.int32(first_thread)
        moved[name] = replace(table, **changes)
    work = replace(
        timeline.work,
        name=numbers[timeline.work.name] if len(timeline.work) else timeline.work.name,
        rank=np.full(len(timeline.work), rank, dtype=np.int32),
    )
    return replace(
        timeline, work=work, devices=tuple(replace(d, rank=rank) for d in timeline.devices), **moved
    )


def is_snapshot(path: Path) -> bool:
    """Return True if the file begins as a pickle does. Only reading it tells what kind of
    pickle.
    """
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError:
        return False
    return start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")


def load_snapshot(path: Path) -> Snapshot:
    """Read the pickle that `torch.cuda.memory._dump_snapshot` wrote.

    Nothing in the file is executed, and no object of its choosing is made. Raises CaptureError for
    a file that is damaged or holds anything but such a snapshot.
    """
    from bottleneck_lab.trace.fast.snapshot_pickle import SnapshotReader, UnusualPickleError

    try:
        with path.open("rb") as file:
            return SnapshotReader(file.read, path.name).read()
    except UnusualPickleError as error:
        raise CaptureError(
            f"{path.name} is not a memory snapshot: {error}. Nothing in it was executed.",
            "Record one with `lab profile --tool memory -- python PROGRAM`, or with"
            " torch.cuda.memory._dump_snapshot.",
        ) from error
    except OSError as error:
        raise CaptureError(
            f"{path.name} cannot be read: {error.strerror}.", "Copy it again, or record it again."
        ) from error
