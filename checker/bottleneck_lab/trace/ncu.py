"""Nsight Compute: CSV (raw or details page) and .ncu-rep → kernels with their counters."""

from __future__ import annotations

import csv
import importlib.util
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.needs import install_command
from bottleneck_lab.programs import find_program
from bottleneck_lab.trace.counters import KernelCounters
from bottleneck_lab.trace.external import run_tool
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceInfo,
    DeviceTable,
    HostTable,
    MemoryTable,
    Timeline,
    make_table,
)

SIZE_LIMIT_BYTES = 512 << 20
ROW_LIMIT = 1_000_000
_HEADER = re.compile(r'^"?ID"?,"?Process ID"?,', re.MULTILINE)
# ncu writes numbers as the system's language has them: 1,234.5 or 1.234,5 or 1 234,5. A comma with
# one, two or more than three digits behind it, or behind a point, is the decimal one.
_NUMBER = re.compile(r"(?<=\")-?\d+(?:[.,'’ \u00a0\u202f]\d+)+(?=\")")
_DECIMAL_COMMA = re.compile(r"\"-?[\d.'’ \u00a0\u202f]*(?:\.\d{3},\d+|,(?:\d{1,2}|\d{4,}))\"")
_GROUPING = re.compile(r"[.'’ \u00a0\u202f](?=\d{3}(?!\d))")
_SCALES = {
    "nsecond": 1,
    "ns": 1,
    "usecond": 1e3,
    "us": 1e3,
    "msecond": 1e6,
    "ms": 1e6,
    "second": 1e9,
    "s": 1e9,
}
_SCALES |= {
    "byte": 1,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "hz": 1,
    "Khz": 1e3,
    "Mhz": 1e6,
    "Ghz": 1e9,
}

# How a report of made-up figures begins, among what ncu says before its table
# (datasets/captures/make.py).
_SYNTHETIC = "==PROF== synthetic"
_ONE_BY_ONE = (
    "ncu runs kernels one at a time: their order and durations are real, the time between them is"
    " not recorded"
)
_FIXED = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Kernel Time",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)


def is_ncu_csv(start: bytes) -> bool:
    """Return True if a file that starts like this may be ncu's CSV: its header, or ncu's own
    messages before it.
    """
    text = start.decode("utf-8", "replace")
    return text.startswith("==PROF==") or bool(_HEADER.match(text))


def load_ncu_csv(file: IO[bytes], path: Path) -> Timeline:
    """Read what `ncu --csv` wrote to the file of this path, with or without `--page raw
    --print-units base`.
    """
    content = file.read(SIZE_LIMIT_BYTES + 1)
    if len(content) > SIZE_LIMIT_BYTES:
        raise CaptureError(
            f"{path.name} is larger than {SIZE_LIMIT_BYTES >> 20} MB.",
            "Export fewer kernels or metrics (--launch-count, --metrics).",
        )
    text = content.decode("utf-8", "replace")
    made_up = tuple(
        line[len(_SYNTHETIC) - len("synthetic") :]
        for line in text[:2000].splitlines()
        if line.startswith(_SYNTHETIC)
    )
    return as_timeline(parse_csv(text, path), path, made_up)


def load_ncu_report(path: Path) -> Timeline:
    """Read a .ncu-rep, at full precision with the ncu-report package, or through the ncu tool where
    only that is installed.
    """
    if importlib.util.find_spec("ncu_report") is not None:
        return as_timeline(_read_report(path), path)
    tool = find_program("ncu")
    if tool is None:
        raise CaptureError(
            f"{path.name} needs NVIDIA's reader.",
            f"Run `{install_command('ncu')}`, or export with `ncu --import FILE --csv --page raw"
            " --print-units base`.",
        )
    text = run_tool(
        [str(tool), "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"],
        path,
        limit_s=120,
    )
    return as_timeline(parse_csv(text, path), path)


def _read_report(path: Path) -> list[KernelCounters]:
    import ncu_report

    try:
        context = ncu_report.load_report(str(path))
        return [_action(action) for group in context for action in group]
    except CaptureError:
        raise
    except Exception as error:  # the package raises whatever its C++ does
        raise CaptureError(
            f"{path.name} is not a readable ncu report: {error}.",
            "Capture again with ncu, or update ncu-report.",
        ) from error


def _action(action: Any) -> KernelCounters:
    metrics = {}
    for name in action.metric_names():
        value = action[name].value()
        if isinstance(value, (int, float)):
            metrics[name] = float(value)
    major, minor = (
        metrics.get(f"device__attribute_compute_capability_{part}", 0)
        for part in ("major", "minor")
    )
    capability = f"{major:.0f}.{minor:.0f}"
    sizes = [
        tuple(int(metrics.get(f"launch__{kind}_dim_{axis}", 1)) for axis in "xyz")
        for kind in ("grid", "block")
    ]
    return KernelCounters(str(action.name()), 0, capability, sizes[0], sizes[1], metrics)


def parse_csv(text: str, path: Path) -> list[KernelCounters]:
    """Read both of ncu's layouts: one row per kernel (raw page), or one row per metric (details
    page).
    """
    start = _HEADER.search(text)
    if start is None:
        raise CaptureError(
            f"{path.name} has no table of kernels.",
            "Export with `ncu --import FILE --csv --page raw --print-units base`.",
        )
    try:
        rows = csv.DictReader(io.StringIO(_in_english(text[start.start() :])))
        names = list(rows.fieldnames or ())
        kernels = _long_layout(rows) if "Metric Name" in names else _wide_layout(rows, names)
    except csv.Error as error:
        raise CaptureError(f"{path.name} is damaged: {error}.", "Export it again.") from error
    if not kernels:
        raise CaptureError(
            f"{path.name} holds no kernel.",
            "Check --kernel-name and --launch-count: ncu may have matched nothing.",
        )
    return kernels


def _in_english(table: str) -> str:
    """Return the table with a point before decimals and nothing between thousands but commas."""
    if _DECIMAL_COMMA.search(table):
        return _NUMBER.sub(lambda cell: _GROUPING.sub("", cell[0]).replace(",", "."), table)
    return _NUMBER.sub(lambda cell: re.sub(r"['’ \u00a0\u202f]", "", cell[0]), table)


def _limited(rows: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    for count, row in enumerate(rows):
        if count >= ROW_LIMIT:
            raise CaptureError(
                f"The file has more than {ROW_LIMIT} rows.", "Export fewer kernels or metrics."
            )
        yield row


def _wide_layout(rows: Iterable[dict[str, str]], names: list[str]) -> list[KernelCounters]:
    """Return the launches of a table whose first row under the header holds the units."""
    kernels, units = [], {}
    for row in _limited(rows):
        if not (row.get("ID") or "").strip():
            units = row
            continue
        if not row.get("Kernel Name"):
            continue
        metrics = {}
        for name in names:
            value = None if name in _FIXED else _number(row.get(name))
            if value is not None:
                metrics[name] = value * _scale(units.get(name))
        kernels.append(_kernel(row, metrics))
    return kernels


def _long_layout(rows: Iterable[dict[str, str]]) -> list[KernelCounters]:
    kernels: dict[str, tuple[dict[str, str], dict[str, float]]] = {}
    for row in _limited(rows):
        _, metrics = kernels.setdefault(row.get("ID") or "", (row, {}))
        value = _number(row.get("Metric Value"))
        if value is not None:
            metrics[row.get("Metric Name") or ""] = value * _scale(row.get("Metric Unit"))
    return [_kernel(row, metrics) for row, metrics in kernels.values()]


def _kernel(row: dict[str, str], metrics: dict[str, float]) -> KernelCounters:
    if "Duration" in metrics:  # the details page has its own names
        metrics.setdefault("gpu__time_duration.sum", metrics["Duration"])
    return KernelCounters(
        name=row.get("Kernel Name") or "",
        device=int(_number(row.get("Device")) or 0),
        compute_capability=row.get("CC") or "",
        grid=_sizes(row.get("Grid Size")),
        block=_sizes(row.get("Block Size")),
        metrics=metrics,
    )


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    if np.isfinite(value):
        return value
    return None


def _scale(unit: str | None) -> float:
    """Return the factor from a unit to ns, bytes or Hz, also per something ("Gbyte/second")."""
    return float(_SCALES.get((unit or "").split("/")[0], 1))


def _sizes(text: str | None) -> tuple[int, ...]:
    return tuple(min(int(size), 2**31) for size in re.findall(r"\d{1,10}", text or "")[:3])


def as_timeline(kernels: list[KernelCounters], path: Path, notes: tuple[str, ...] = ()) -> Timeline:
    """Return the kernels laid end to end: ncu runs them one by one, so only their durations mean
    anything.
    """
    lengths = np.array([min(max(int(k.duration_ns), 0), 2**40) for k in kernels], dtype=np.int64)
    end = np.cumsum(lengths)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(k.name for k in kernels))}
    table = make_table(
        DeviceTable,
        len(kernels),
        start=end - lengths,
        end=end,
        name=[numbers[k.name] for k in kernels],
        kind=np.full(len(kernels), int(ActivityKind.KERNEL)),
        device=[k.device for k in kernels],
        grid=[int(np.prod(k.grid, dtype=np.float64)) for k in kernels],
        block=[min(int(np.prod(k.block, dtype=np.float64)), 2**31 - 1) for k in kernels],
        occupancy=[
            k.metrics.get("sm__warps_active.avg.pct_of_peak_sustained_active", np.nan)
            for k in kernels
        ],
    )
    host = make_table(HostTable)
    capabilities = {k.device: k.compute_capability for k in kernels}
    return Timeline(
        str(path),
        "ncu",
        tuple(numbers),
        table,
        host,
        host,
        host,
        host,
        make_table(MemoryTable),
        devices=tuple(
            DeviceInfo(0, device, compute_capability=cc)
            for device, cc in sorted(capabilities.items())
        ),
        notes=notes or (_ONE_BY_ONE,),
        counters=tuple(kernels),
    )
