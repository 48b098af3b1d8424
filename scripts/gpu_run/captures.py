"""Keep of a capture what may be committed: a few steps, within the limits of size, and no names of
the host.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.gpu_run.records import RECORDED_BY

MAX_FILE_BYTES, MAX_TOTAL_BYTES = 1 << 20, 8 << 20
"""The most that is committed of captures: of a file, and of all files of one GPU."""
KEPT_STEPS = 3
_PRIVATE = ("host_name", "hostname", "trace_name", "username")
_PRIVATE_COLUMNS = ("Host Name", "Process Name")


def keep(trace: Path, target: Path) -> dict[str, Any]:
    """Put a capture's file beside `target` in the form in which it may be committed. Returns its
    name and size.

    nsys' SQLite, which names the host in many tables, is only read: that it can be is what is
    recorded.
    """
    from bottleneck_lab import load

    target = target.with_name(target.name + "".join(trace.suffixes))
    if trace.name.endswith(".json.gz"):
        content = json.loads(gzip.decompress(trace.read_bytes()))
        for steps in range(KEPT_STEPS, 0, -1):  # a step of many launches fills a file by itself
            text = json.dumps(cut(content, steps), separators=(",", ":"))
            target.write_bytes(gzip.compress(text.encode(), mtime=0))
            if target.stat().st_size <= MAX_FILE_BYTES:
                break
    elif trace.suffix in (".csv", ".txt"):
        text = trace.read_text(encoding="utf-8", errors="replace")
        target.write_text(without_names(text) if trace.suffix == ".csv" else text, encoding="utf-8")
    else:
        target = trace
    if trace.suffix != ".txt":
        load(target)
    return {"file": target.name, "bytes": target.stat().st_size}


def cut(trace: dict[str, Any], steps: int = KEPT_STEPS) -> dict[str, Any]:
    """Return a torch.profiler trace reduced to its first `steps` steps, with all device work that
    was launched in them, and nothing that names the host.
    """
    trace = {key: value for key, value in trace.items() if key not in _PRIVATE}
    events = trace["traceEvents"]
    marks = sorted(
        (
            e
            for e in events
            if str(e.get("name", "")).startswith("ProfilerStep#")
            and "dur" in e
            and not _on_device(e)
        ),
        key=lambda e: float(e["ts"]),
    )
    if len(marks) <= steps:
        return trace
    begin = float(marks[0]["ts"])
    end = float(marks[steps - 1]["ts"]) + float(marks[steps - 1]["dur"])
    inside = [
        e for e in events if "ts" in e and begin <= float(e["ts"]) < end and not _on_device(e)
    ]
    launched = _correlations(inside)
    # Rows that the checker adds, such as those of a device that it feeds itself, have no launch
    # anywhere: they belong to the steps in which they lie.
    unlaunched = {None} | _correlations(e for e in events if _on_device(e))
    unlaunched -= _correlations(e for e in events if not _on_device(e))
    device = []
    for event in events:
        if _on_device(event):
            correlation = event.get("args", {}).get("correlation")
            lies_inside = begin <= float(event["ts"]) < end
            added = correlation in unlaunched and event["cat"] != "gpu_user_annotation"
            if correlation in launched or (added and lies_inside):
                device.append(event)
    labels = [e for e in events if e.get("ph") == "M"]
    return {**trace, "traceEvents": [*(e for e in inside if e.get("ph") != "M"), *device, *labels]}


def _correlations(events: Iterable[dict[str, Any]]) -> set[Any]:
    return {e["args"]["correlation"] for e in events if "correlation" in e.get("args", {})}


def _on_device(event: dict[str, Any]) -> bool:
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def without_names(text: str) -> str:
    """Return ncu's CSV with the columns blanked that name the host and the process."""
    rows = list(csv.reader(io.StringIO(text)))
    header = next((row for row in rows if "Kernel Name" in row), [])
    blank = [header.index(name) for name in _PRIVATE_COLUMNS if name in header]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in rows[rows.index(header) if header else 0 :]:
        writer.writerow(
            [("" if at in blank and row is not header else value) for at, value in enumerate(row)]
        )
    return out.getvalue()


def publish_captures(made: Path, target: Path) -> dict[str, Any]:
    """Copy captures into the repository's folder, smallest first, within the limits. Returns its
    manifest, which names what was left out.
    """
    kept: list[dict[str, Any]] = []
    left_out, total = [], 0
    files = sorted(
        (path for path in made.glob("*") if path.suffix in (".gz", ".csv")),
        key=lambda path: path.stat().st_size,
    )
    target.mkdir(parents=True, exist_ok=True)
    for path in files:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES or total + size > MAX_TOTAL_BYTES:
            left_out.append({"file": path.name, "bytes": size})
            continue
        data, total = path.read_bytes(), total + size
        (target / path.name).write_bytes(data)
        kept.append({"file": path.name, "bytes": size, "sha256": hashlib.sha256(data).hexdigest()})
    manifest = {
        "recorded_by": RECORDED_BY,
        "captures": sorted(kept, key=lambda row: row["file"]),
        "left_out": left_out,
    }
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest
