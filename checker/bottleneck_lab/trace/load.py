"""Opens a capture, whatever wrote it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import IO

from isal import igzip, isal_zlib

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.addresses import without_addresses
from bottleneck_lab.trace.foreign import JSON, START_BYTES, refuse_foreign, refuse_xplanes
from bottleneck_lab.trace.kineto.reader import read_kineto
from bottleneck_lab.trace.merging import merge_ranks
from bottleneck_lab.trace.processes import split_processes
from bottleneck_lab.trace.snapshot import Snapshot
from bottleneck_lab.trace.timeline import Timeline

# Below this, starting a process takes longer than it saves.
WORTHWHILE_BYTES = 48 << 20

_WITH_STACK = re.compile(rb'"with_stack"\s*:\s*"?(?:1|[Tt]rue)')

# The key that tells rocprofv3's JSON is its first.
START_OF_KEY = 256

GZIP_MAGIC = b"\x1f\x8b"
SQLITE_MAGIC = b"SQLite format 3\x00"
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub says Any value, not a type
_GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error, _ISAL_ERROR)


def load(path: Path | str) -> Timeline:
    """Return the capture at `path`, told by what it holds and not by its name: Kineto or Chrome
    JSON, an nsys report or its SQLite export, ncu's CSV (all also gzipped), ncu's report; or a
    folder: a capture of `lab profile`, or one trace per rank, which are merged.

    Raises CaptureError with what to do when it cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return merge_ranks([load(file) for file in find_traces(path)])
    try:
        timeline = _read(path, _first_bytes(path))
        timeline = _with_surroundings(timeline, path.with_name(DESCRIPTION))
    except _GZIP_ERRORS as error:
        raise CaptureError(
            f"{path.name} is a damaged or truncated gzip file ({error}).",
            "Copy it again, or capture again.",
        ) from error
    except OSError as error:
        raise CaptureError(
            f"{path.name} cannot be read: {error}.", "Copy it again, or capture again."
        ) from error
    return split_processes(without_addresses(timeline))


DESCRIPTION = "capture.json"
"""What `lab profile` writes beside a trace."""
OTHER_CORES, CORES, CODE = "otherCores", "cores", "code"
"""Facts of a timeline: how many cores other programs kept busy while it was recorded, how many the
machine has, and the hash of the lab's code that was recorded.
"""
PROGRAMS = (".py", ".sh", ".cu", ".cpp")
ENDINGS = (".nsys-rep", ".sqlite", ".json", ".json.gz")


def _with_surroundings(timeline: Timeline, description: Path) -> Timeline:
    """Note what `lab profile` saw beside the program: busy cores, and other processes on the GPU. A
    profiler records only its own program's kernels, so theirs look like gaps.
    """
    if not description.is_file():
        return timeline
    try:
        described = json.loads(description.read_text(encoding="utf-8"))
        count = int(described["environment"].get("gpu_processes", 0))  # not counted without a GPU
        cores = int(described["environment"].get("cores", 0))
        other_cores = float(described.get("other_cores", 0.0))
    except (ValueError, KeyError, TypeError):  # somebody else's file of that name
        return timeline
    seen = {OTHER_CORES: f"{other_cores:.2f}", CORES: str(cores)}
    seen |= {CODE: str(described["code"])} if "code" in described else {}
    timeline = replace(timeline, facts={**timeline.facts, **seen})
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
        refuse_xplanes(folder)
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

        if path.suffix in PROGRAMS:
            raise CaptureError(
                f"{path.name} is a program, not a capture.",
                f"`lab profile -- python {path.name}` records one; `diff OLD NEW` shows how two"
                " programs differ.",
            )
        if path.suffix == ".ncu-rep":
            return ncu.load_ncu_report(path)
        if ncu.is_ncu_csv(start):
            with _opened(path, packed=packed) as file:
                return ncu.load_ncu_csv(file, path)
        if execution_trace.is_chakra(start, name):
            with _opened(path, packed=packed) as file:
                return execution_trace.read_chakra(file.read(), path)
        refuse_foreign(path, start)
    refuse_foreign(path, start, JSON)
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

            return load_in_parallel(path, with_nodes=_holds_frames(path, start))
        return read_kineto(file.read, path)


def _holds_frames(path: Path, start: bytes) -> bool:
    """Return True if Python's frames were recorded, in a file that begins with `start` or, by its
    description, in a second run: only with them is a backward traced to its forward.
    """
    if _WITH_STACK.search(start):
        return True
    try:
        described = json.loads(path.with_name(DESCRIPTION).read_text(encoding="utf-8"))
        return bool(described.get("frames"))
    except (OSError, ValueError, AttributeError):  # none, or somebody else's file of that name
        return False


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
