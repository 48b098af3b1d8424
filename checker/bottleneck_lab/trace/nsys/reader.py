"""Nsight Systems' SQLite exports (schemas 3.0 to 3.25) and .nsys-rep → `Timeline`."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.programs import find_program
from bottleneck_lab.trace.external import run_tool
from bottleneck_lab.trace.fast.allocator import give_back
from bottleneck_lab.trace.foreign import OF_NVPROF, refuse_database
from bottleneck_lab.trace.nsys.activities import (
    list_devices,
    list_threads,
    read_calls,
    read_device,
    read_facts,
    read_ranges,
    read_strings,
)
from bottleneck_lab.trace.nsys.export import Export, open_export
from bottleneck_lab.trace.nsys.numbering import Ranks, Threads
from bottleneck_lab.trace.timeline import (
    HostTable,
    MemoryTable,
    Timeline,
    make_table,
)

EXPORT_LIMIT_S = 600
TRACED = (
    "StringIds",
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "OSRT_API",
)
"""An export has at least one of these tables."""


def load_nsys_report(path: Path) -> Timeline:
    """Read a .nsys-rep, exported to SQLite by the nsys that is installed."""
    tool = find_program("nsys")
    if tool is None:
        raise CaptureError(
            f"{path.name} can only be read by nsys, which is not installed.",
            "Run `nsys export --type sqlite FILE` on a machine that has it, and load the .sqlite"
            " file.",
        )
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        output = run_tool(
            [
                str(tool),
                "export",
                "--type",
                "sqlite",
                "--force-overwrite",
                "true",
                "-o",
                str(target),
                str(path),
            ],
            path,
            EXPORT_LIMIT_S,
        )
        if not target.exists():
            raise CaptureError(
                f"nsys could not export {path.name}: {output.strip()[-200:]}",
                "The report may be of a newer nsys than the one installed: export it with that"
                " one.",
            )
        return load_nsys_sqlite(target, source=path)


def load_nsys_sqlite(path: Path, source: Path | None = None) -> Timeline:
    """Read an SQLite export. Raises CaptureError when it is damaged or not an export of nsys."""
    source = source or path
    try:
        connection = open_export(path)
        try:
            with Export(connection, path) as export:
                export.share(path)
                timeline = _read(export, source)
            give_back()
            return timeline
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise CaptureError(
            f"{source.name} is not a readable nsys export: {error}.",
            "Export it again with `nsys export --type sqlite`.",
        ) from error


def _read(export: Export, source: Path) -> Timeline:
    if OF_NVPROF in export.columns or not any(table in export.columns for table in TRACED):
        refuse_database(source, export.columns)
    strings, ranks = read_strings(export), Ranks()
    notes: list[str] = []
    device = read_device(export, strings, ranks, notes)
    threads = Threads(ranks)
    runtime = read_calls(export, strings, threads)
    ranges, operators = read_ranges(export, strings, threads)
    timeline = Timeline(
        source=str(source),
        format="nsys",
        strings=tuple(strings.values),
        device=device,
        runtime=runtime,
        operators=operators,
        ranges=ranges,
        python=make_table(HostTable),
        memory=make_table(MemoryTable),
        threads=list_threads(export, strings, threads),
        devices=list_devices(export, device),
        world_size=len(ranks.pids),
        notes=tuple(notes),
        facts=read_facts(export),
    )
    if not timeline.events:
        raise CaptureError(
            f"{source.name} holds no kernels, calls or ranges.",
            "Trace cuda and nvtx (-t cuda,nvtx), and check that the program ran inside the capture"
            " range.",
        )
    return timeline
