"""Files of other tools, told by their first bytes: what each is, and how to get one that is read.

A new format is one row of FORMATS (a file's bytes), DATABASES (an SQLite file's tables) or JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bottleneck_lab.errors import CaptureError

# So much of a file is looked at: a tar archive names itself at byte 257, and the first plane of an
# XSpace or the first key of a JSON document comes soon.
START_BYTES = 64 << 10

_TORCH = "Record it with `lab profile`, or with torch.profiler and its export_chrome_trace."
_JAX = (
    "Traces of JAX and TensorFlow are not read. For PyTorch on a TPU, the profiler of torch_xla"
    " shows them; for a GPU, record the program with `lab profile --tool nsys`."
)
_ROCPROF = (
    "Record again with `rocprofv3 --output-format json --hip-trace --kernel-trace"
    " --memory-copy-trace -- PROGRAM`, which is read, or with torch.profiler."
)


@dataclass(frozen=True)
class ForeignFormat:
    """A format that is not read: `what` completes "FILE is …", `matches` takes the first bytes,
    unpacked, and the file's name.
    """

    what: str
    remedy: str
    matches: Callable[[bytes, str], bool]


def _begins(*marks: bytes) -> Callable[[bytes, str], bool]:
    return lambda start, _name: start.startswith(marks)


def _is_xplane(start: bytes, name: str) -> bool:
    """Return True for an XSpace: planes (field 1), each with a name (field 2) such as /host:CPU."""
    plane = first_message(start)
    return plane is not None and bool(
        name.endswith(".xplane.pb") or re.search(rb"\x12.{1,2}/(?:device|host):", plane, re.DOTALL)
    )


def _is_perfetto(start: bytes, name: str) -> bool:
    """Return True for a Trace: packets (field 1), nothing else at its top level."""
    if name.endswith((".pftrace", ".perfetto-trace", ".perfetto")) and start[:1] == b"\x0a":
        return True
    at, packets = 0, 0
    while at < len(start) and start[at] == 0x0A:
        length, behind = varint(start, at + 1)
        if not length:
            return False
        at, packets = behind + length, packets + 1
    # The last packet may reach beyond the bytes that were read. Text that begins with an empty
    # line looks alike, but holds no control characters.
    control = re.search(rb"[\x00-\x08\x0e-\x1f\x80-\xff]", start)
    return packets > 0 and at >= len(start) and control is not None


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the protobuf varint at `at` and the place behind it; 0 where it does not end."""
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
        at, shift = at + 1, shift + 7
    return 0, len(data)


def first_message(data: bytes) -> bytes | None:
    """Return the content of the message in field 1 that `data` begins with, as far as it was read;
    None where it does not begin so.
    """
    if data[:1] != b"\x0a":
        return None
    length, at = varint(data, 1)
    return data[at : at + length] if length else None


def _has_columns(*columns: str) -> Callable[[bytes, str], bool]:
    """Return a test for CSV whose first line names all of these columns."""

    def matches(start: bytes, _name: str) -> bool:
        head = start.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
        names = {name.strip().strip('"').lower() for name in head.split(",")}
        return {column.lower() for column in columns} <= names

    return matches


def _is_packed_tar(endings: tuple[str, ...]) -> Callable[[bytes, str], bool]:
    packed = _begins(b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
    return lambda start, name: packed(start, name) and name.endswith(endings)


def _contains(*patterns: bytes) -> Callable[[bytes, str], bool]:
    """Return a test for a document in whose beginning all of these patterns match."""
    compiled = [re.compile(pattern) for pattern in patterns]
    return lambda start, _name: all(pattern.search(start) for pattern in compiled)


PSTATS = ForeignFormat(
    "a profile by cProfile",
    f"It has no operators and no device in it. {_TORCH}",
    # A dictionary of tuples, as marshal writes it.
    lambda start, _name: bool(re.match(rb"[{\xfb][()\xa8\xa9]", start)),
)
JSON = (
    PSTATS,  # begins with a brace, too
    ForeignFormat(
        "a profile for speedscope, as py-spy writes it",
        f"It samples Python, and has no operators and no device in it. {_TORCH}",
        _contains(rb'"\$schema"\s*:\s*"https://www\.speedscope\.app'),
    ),
    ForeignFormat(
        "a trace of VizTracer",
        f"It has Python's functions, and no operators and no device in it. {_TORCH}",
        _contains(rb'"cat"\s*:\s*"FEE"'),
    ),
    ForeignFormat(
        "a profile of ONNX Runtime",
        "Its operators are not read. Record the program with `lab profile --tool nsys`, which sees"
        " the kernels that ONNX Runtime launches.",
        _contains(
            rb'"cat"\s*:\s*"Session"', rb'"name"\s*:\s*"(?:model_loading|session_initialization)'
        ),
    ),
)
"""Formats that begin as a JSON document does, and are told by what comes soon in it."""
FORMATS = (
    ForeignFormat(
        "a pointer of Git LFS, not the file itself",
        "Fetch the file: `git lfs pull`.",
        _begins(b"version https://git-lfs"),
    ),
    ForeignFormat(
        "a web page (HTML), most likely one that asks to sign in",
        "Download the file itself.",
        lambda start, _name: bool(re.match(rb"\s*<(?:!doctype html|html)", start, re.IGNORECASE)),
    ),
    ForeignFormat(
        "text in UTF-16, as PowerShell's `>` writes it",
        "Save it as UTF-8: `Get-Content FILE | Set-Content -Encoding utf8 NEW`.",
        _begins(b"\xff\xfe", b"\xfe\xff"),
    ),
    ForeignFormat(
        "a file of torch.save (a model or tensors)",
        _TORCH,
        lambda start, _name: start.startswith(b"PK\x03\x04") and b"/data.pkl" in start[:256],
    ),
    ForeignFormat(
        "a log of TensorBoard",
        f"Traces are beside it, in files that end with .pt.trace.json. {_TORCH}",
        lambda start, name: ".tfevents." in name or b"brain.Event:" in start[:64],
    ),
    ForeignFormat(
        "a summary by nsys stats (CSV)",
        "Pass the report itself, or `nsys export --type sqlite` of it: sums have no times of day.",
        _has_columns("Total Time (ns)", "Instances", "Name"),
    ),
    ForeignFormat(
        "a report of Nsight Systems before 2021 (.qdrep)",
        "Open it in Nsight Systems and save it as .nsys-rep, or record again.",
        lambda _start, name: name.endswith(".qdrep"),
    ),
    ForeignFormat(
        "raw data of Nsight Systems (.qdstrm)",
        "Turn it into a report with `QdstrmImporter -i FILE`, which comes with Nsight Systems.",
        lambda start, name: name.endswith(".qdstrm") or start.startswith(b"QDSTRM"),
    ),
    ForeignFormat(
        "a table in Parquet",
        "Export a report of Nsight Systems with `nsys export --type sqlite`, which is read.",
        _begins(b"PAR1"),
    ),
    ForeignFormat(
        "a recording of Linux perf",
        f"It samples the processor, and has no operators and no device in it. {_TORCH}",
        _begins(b"PERFILE2", b"PERFFILE"),
    ),
    ForeignFormat(
        "a capture of Apple's Metal",
        f"Xcode shows it. {_TORCH}",
        lambda _start, name: name.endswith(".gputrace"),
    ),
    ForeignFormat(
        "a result of Intel VTune",
        f"VTune shows it. {_TORCH}",
        lambda _start, name: name.endswith(".vtune"),
    ),
    PSTATS,
    *(
        ForeignFormat(
            "a packed tar archive",
            f"Unpack it (`tar {option} FILE`) and pass the folder, with one trace per rank in it.",
            _is_packed_tar(endings),
        )
        for option, endings in (
            ("-xjf", (".tar.bz2", ".tbz", ".tbz2")),
            ("-xJf", (".tar.xz", ".txz")),
            ("--zstd -xf", (".tar.zst", ".tzst")),
        )
    ),
    ForeignFormat(
        "a tar archive",
        "Unpack it (`tar xf FILE`) and pass the folder, with one trace per rank in it.",
        lambda start, _name: start[257:262] == b"ustar",
    ),
    ForeignFormat(
        "a ZIP archive",
        "Unpack it (`unzip FILE`) and pass the folder, with one trace per rank in it.",
        _begins(b"PK\x03\x04", b"PK\x05\x06"),
    ),
    ForeignFormat(
        "a RAR archive",
        "Unpack it (`unrar x FILE`) and pass the folder, with one trace per rank in it.",
        _begins(b"Rar!\x1a\x07"),
    ),
    ForeignFormat(
        "a 7-Zip archive",
        "Unpack it (`7z x FILE`) and pass the folder, with one trace per rank in it.",
        _begins(b"7z\xbc\xaf\x27\x1c"),
    ),
    ForeignFormat(
        "compressed with zstd",
        "Unpack it (`zstd -d FILE`) and pass what comes out; gzip is read as it is.",
        _begins(b"\x28\xb5\x2f\xfd"),
    ),
    ForeignFormat(
        "compressed with xz",
        "Unpack it (`xz -d FILE`) and pass what comes out; gzip is read as it is.",
        _begins(b"\xfd7zXZ\x00"),
    ),
    ForeignFormat(
        "compressed with bzip2",
        "Unpack it (`bzip2 -d FILE`) and pass what comes out; gzip is read as it is.",
        _begins(b"BZh"),
    ),
    ForeignFormat("a profile of JAX or TensorFlow (XLA's xplane)", _JAX, _is_xplane),
    ForeignFormat(
        "a Perfetto trace (protobuf)",
        "Perfetto's own format is not read: https://ui.perfetto.dev shows it. Where rocprofv3 wrote"
        f" it: {_ROCPROF} Otherwise: {_TORCH}",
        _is_perfetto,
    ),
    ForeignFormat(
        "a table of rocprofv3 (CSV)", _ROCPROF, _has_columns("Correlation_Id", "Start_Timestamp")
    ),
    ForeignFormat("a table of rocprofv3 (CSV)", _ROCPROF, _has_columns("Agent_Id", "Kernel_Id")),
    ForeignFormat(
        "a list of agents by rocprofv3 (CSV)", _ROCPROF, _has_columns("Node_Id", "Agent_Type")
    ),
    ForeignFormat(
        "a summary by rocprof (CSV)", _ROCPROF, _has_columns("Name", "Calls", "Percentage")
    ),
    ForeignFormat(
        "a table of rocprof (CSV)", _ROCPROF, _has_columns("Index", "KernelName", "gpu-id")
    ),
)


def refuse_foreign(path: Path, start: bytes, formats: Iterable[ForeignFormat] = FORMATS) -> None:
    """Raise CaptureError, by name, for a file of another tool; `start` is unpacked."""
    for known in formats:
        if known.matches(start, path.name.removesuffix(".gz")):
            raise CaptureError(f"{path.name} is {known.what}.", known.remedy)


_SNAPSHOT = (
    "a memory snapshot of PyTorch in SQLite, which is not read",
    "Write it with torch.cuda.memory._dump_snapshot (a pickle), or record with `lab profile"
    " --tool memory`: `lab report` reads those.",
)
OF_NVPROF = "CUPTI_ACTIVITY_KIND_DRIVER"
# An SQLite file that is no export of nsys, by how one of its tables is called.
DATABASES = (
    (
        OF_NVPROF,
        "a profile of nvprof, which is not read",
        "Record the program with `lab profile --tool nsys`, or with torch.profiler.",
    ),
    ("rocpd_", "a rocpd database of rocprofv3", _ROCPROF),
    ("device_traces", *_SNAPSHOT),
    ("segments", *_SNAPSHOT),
    ("allocator_settings", *_SNAPSHOT),
    (
        "CUPTI_ACTIVITY_KIND_",
        "an SQLite export whose tables have unknown names",
        "Export the report again with `nsys export --type sqlite` of a release that `lab doctor`"
        " knows.",
    ),
)


def refuse_database(path: Path, tables: Iterable[str]) -> None:
    """Raise CaptureError, by name where it is known, for an SQLite file that is no nsys export."""
    names = list(tables)
    for prefix, what, remedy in DATABASES:
        if any(name.startswith(prefix) for name in names):
            raise CaptureError(f"{path.name} is {what}.", remedy)
    raise CaptureError(
        f"{path.name} is an SQLite file, but not an nsys export.",
        "Export a report with `nsys export --type sqlite`.",
    )


_XLA_PROCESS = re.compile(r"/(?:device|host):\w+")


def refuse_xplanes(folder: Path) -> None:
    """Raise CaptureError for a folder in which JAX or TensorFlow wrote its profiles, as TensorBoard
    shows them.
    """
    if next(folder.rglob("*.xplane.pb"), None) is not None:
        raise CaptureError(
            f"{folder} holds profiles of JAX or TensorFlow (XLA's xplane) and no other trace.", _JAX
        )


def refuse_ascend(path: Path, processes: Iterable[str]) -> None:
    """Raise CaptureError for a Chrome trace that torch_npu wrote: its kernels stand under a process
    of their own, in rows that are not read.
    """
    if "Ascend Hardware" in processes:
        raise CaptureError(
            f"{path.name} is a trace of Ascend's profiler (torch_npu, trace_view.json).",
            "Its kernels are not read: without them, a program on an NPU would pass for one on the"
            " CPU. MindStudio Insight shows it.",
        )


def refuse_jax(path: Path, processes: Iterable[str]) -> None:
    """Raise CaptureError for a Chrome trace whose processes are called as XLA calls them."""
    if any(_XLA_PROCESS.match(name) for name in processes):
        raise CaptureError(f"{path.name} is a trace of JAX or TensorFlow (XLA).", _JAX)
