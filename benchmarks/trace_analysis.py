"""How long, and in how much memory, a trace is analysed: this project against Holistic Trace
Analysis, in one run on one machine.

    python benchmarks/trace_analysis.py [--trace TRACE.json.gz] [--megabytes 100 300]
        [--alone 1000] [--repeats 3] [--plot FILE.svg]
        [--nsys FILE.sqlite] [--nsys-megabytes 1000] [--pair 1000] [--before CHECKOUT]

The trace (a synthetic DDP step without --trace) is repeated until the file has the size asked for.
Both sides then read it and break its time down: ours into the whole summary (joins, gap causes and
findings included), the peer into its temporal, kernel and overlap breakdowns. The peer is installed
into an environment of its own (--peer-venv keeps it). Wall time of the whole command, start of the
interpreter included, and the peak memory of all processes are taken from outside, the same way for
both sides: with shared pages counted once, and in parentheses the sum of their resident memory,
which counts twice what a fork shares. The run of median time is shown, of --repeats. Sizes under
--alone are ours only; of those under --pair, `lab compare` compares two traces. --before names a
checkout of an earlier commit, which is measured in turns with this one.

nsys exports (--nsys, or one that nsys_export.py makes up with --nsys-megabytes) are read in two
ways: from their pages, and by SQL, as unusual ones still are.
"""

from __future__ import annotations

import argparse
import compileall
import copy
import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import suppress
from pathlib import Path

import psutil

from bottleneck_lab.measure.worker import load_module

ROOT = Path(__file__).resolve().parents[1]
PEER = "traceinsight==0.6.1"

OURS = """
import sys, json
from bottleneck_lab import load, summarise
try:
    from bottleneck_lab.trace.fast.allocator import keep_freed
except ImportError:  # --before: where it was until 27 November 2026
    from bottleneck_lab.trace.allocator import keep_freed
keep_freed()  # as `lab report` does
summary = summarise(load(sys.argv[1]))
print(json.dumps({"busy_share": summary.devices[0].busy_share, "events": summary.events}))
"""
BY_SQL = """
from bottleneck_lab.trace.nsys import export as nsys
from bottleneck_lab.trace.fast.sqlite_pages import UnusualFileError
def refuse(*_):
    raise UnusualFileError
nsys.Database = refuse
"""
THEIRS = """
import sys, json, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
temporal = analysis.get_temporal_breakdown(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
print(json.dumps({"busy_share": 1 - float(temporal["idle_time_pctg"].iloc[0]) / 100}))
"""


def synthetic() -> dict:
    """A DDP-like capture of this project's own making."""
    return (
        load_module(ROOT / "datasets" / "captures" / "make.py")
        .training("healthy", steps=40)
        .trace("healthy")
    )


def tile(trace: dict, target_bytes: int, path: Path) -> None:
    """Writes the trace again and again, each time later and with fresh correlation numbers, in the
    layout that Kineto writes.
    """
    events = [event for event in trace["traceEvents"] if "ts" in event and event.get("ph") != "M"]
    names = [event for event in trace["traceEvents"] if event.get("ph") == "M"]
    first = min(event["ts"] for event in events)
    length = max(event["ts"] + event.get("dur", 0) for event in events) - first + 1000
    step = 1 + max(
        int(event.get("args", {}).get(key, 0) or 0)
        for event in events
        for key in ("correlation", "External id")
    )
    head = {key: value for key, value in trace.items() if key != "traceEvents"}
    with path.open("w") as out:
        out.write(json.dumps(head, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        out.write(_kineto(names))
        number = 0
        while out.tell() < target_bytes:
            out.write(
                (",\n" if number or names else "")
                + _kineto(_moved(events, number * length, number * step))
            )
            number += 1
        out.write("\n  ]\n}\n")


def _moved(events: list[dict], later: float, more: int) -> list[dict]:
    moved = copy.deepcopy(events)
    for event in moved:
        event["ts"] = round(event["ts"] + later, 3)
        if "id" in event:
            event["id"] += more
        for key in ("correlation", "External id"):
            if isinstance(event.get("args", {}).get(key), int):
                event["args"][key] += more
    return moved


def _kineto(events: list[dict]) -> str:
    """Two spaces, one line for the fields and one an argument group, as Kineto does."""
    lines = []
    for event in events:
        args = event.get("args")
        fields = ", ".join(
            f"{json.dumps(key)}: {json.dumps(value)}"
            for key, value in event.items()
            if key != "args"
        )
        inner = ", ".join(
            f"{json.dumps(key)}: {json.dumps(value)}" for key, value in (args or {}).items()
        )
        lines.append(
            f"  {{\n    {fields}"
            + (f',\n    "args": {{\n      {inner}\n    }}' if args is not None else "")
            + "\n  }"
        )
    return ",\n".join(lines)


def measure(command: list[str], limit_s: float, checkout: Path = ROOT) -> dict:
    """Wall time, s, and peak memory of the process and its children, MB: the summed resident
    memory, sampled every 10 ms, and what they take with shared pages counted once, every 30 ms. The
    code is that of `checkout`.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout / "checker")}
    pipe = subprocess.PIPE
    start = time.perf_counter()
    process = psutil.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    peak = once = 0
    for turn in itertools.count():
        if process.poll() is not None:
            break
        pids = processes(process.pid)
        peak = max(peak, sum(map(resident, pids)))
        if turn % 3 == 0:  # takes half a millisecond a process, of the cores that are measured
            once = max(once, counted_once(pids))
        if time.perf_counter() - start > limit_s:
            for child in [*process.children(recursive=True), process]:
                child.kill()
            break
        time.sleep(0.01)
    wall = time.perf_counter() - start
    out, error = process.communicate()
    answer = f"failed: {error.strip()[-300:]}"
    if wall > limit_s:
        wall, answer = float("nan"), f"stopped after {limit_s:.0f} s"
    elif process.returncode == 0 and out.strip():
        answer = out.strip().splitlines()[-1]
    return {"wall_s": wall, "peak_mb": peak / 1e6, "once_mb": once / 1e6, "answer": answer}


def processes(pid: int) -> list[int]:
    """A process and all below it, from /proc: a search through all processes would take a share of
    the cores that are measured.
    """
    with suppress(OSError):  # it has ended meanwhile
        paths = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(child) for path in paths for child in path.read_text().split()]
        return [pid, *itertools.chain.from_iterable(map(processes, children))]
    return []


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def counted_once(pids: list[int]) -> int:
    """Bytes that these processes take of the machine: pages that a fork shares with its parent
    count once. Of pages of files (libraries, mostly), those of the process that has most: by their
    proportional size, programs that are not measured would bear a part of them.
    """
    own, files = 0, [0]
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            rows = (line.split() for line in lines)
            sizes = {row[0]: int(row[1]) << 10 for row in rows if row[-1] == "kB"}
            own += sizes.get("Pss_Anon:", 0)
            files.append(sizes.get("Rss:", 0) - sizes.get("Anonymous:", 0))
    return own + max(files)


def compile_ours(before: Path | None) -> None:
    """As pip does with what it installs, the peer included: a source tree may have been kept from
    it (PYTHONDONTWRITEBYTECODE).
    """
    for checkout in (ROOT, before):
        if checkout:
            compileall.compile_dir(checkout / "checker", quiet=1)


def peer_python(folder: Path) -> Path:
    """The interpreter of an environment that has the peer."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PEER], check=True)
    return python


def plot(rows: list[dict], path: Path) -> None:
    """Time and memory against size, log-log, as plain SVG."""
    import math

    width, height, pad = 420, 300, 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width + 80}" height="{height}"'
        ' font-family="sans-serif" font-size="12">'
    ]
    for panel, (key, title) in enumerate(
        (("wall_s", "wall time, s"), ("once_mb", "peak memory, MB"))
    ):
        points = [
            (r["mb"], r[side][key], side)
            for r in rows
            for side in ("ours", "peer")
            if side in r and r[side][key] == r[side][key]
        ]
        xs, ys = [math.log10(p[0]) for p in points], [math.log10(max(p[1], 1e-3)) for p in points]

        def place(
            x: float, y: float, left: float = panel * width, xs: list = xs, ys: list = ys
        ) -> tuple[float, float]:
            across = (math.log10(x) - min(xs)) / (max(xs) - min(xs) or 1)
            up = (math.log10(max(y, 1e-3)) - min(ys)) / (max(ys) - min(ys) or 1)
            return left + pad + across * (width - 2 * pad), height - pad - up * (height - 2 * pad)

        parts.append(
            f'<text x="{panel * width + pad}" y="20">{title} against trace size, MB</text>'
        )
        for side, colour in (("ours", "#0a6"), ("peer", "#c40")):
            mine = [(x, y) for x, y, s in points if s == side]
            line = " ".join(f"{a:.0f},{b:.0f}" for a, b in (place(*p) for p in mine))
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
            for x, y in mine:
                a, b = place(x, y)
                parts.append(
                    f'<circle cx="{a:.0f}" cy="{b:.0f}" r="3" fill="{colour}"/><text'
                    f' x="{a + 5:.0f}" y="{b - 6:.0f}">{side} {y:.3g} @ {x:.0f}</text>'
                )
    path.write_text("\n".join([*parts, "</svg>\n"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[100])
    parser.add_argument(
        "--alone",
        type=int,
        nargs="*",
        default=[],
        help="sizes that only this project is measured at",
    )
    parser.add_argument("--nsys", type=Path, help="an SQLite export to be summed up as well")
    parser.add_argument(
        "--nsys-megabytes", type=int, help="make such an export of this size and sum it up as well"
    )
    parser.add_argument(
        "--pair", type=int, nargs="*", default=[], help="sizes of which two traces are compared"
    )
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--peer-venv", type=Path)
    parser.add_argument(
        "--work", type=Path, help="where tiled traces are kept (default: a temporary folder)"
    )
    parser.add_argument("--limit-s", type=float, default=1800)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        compile_ours(options.before)
        peer = None if options.no_peer else peer_python(options.peer_venv or Path(folder) / "peer")
        rows = [compare_at(size, options, work, peer) for size in options.megabytes]
        rows += [compare_at(size, options, work, None) for size in options.alone]
        for size in options.pair:
            compare_pair(size, options, work)
        if options.nsys_megabytes:
            from nsys_export import make

            made = work / f"made-up-{options.nsys_megabytes}.sqlite"
            if not made.exists():
                make(made, options.nsys_megabytes)
            compare_nsys(made, options)
        if options.nsys:
            compare_nsys(options.nsys, options)
    if options.plot:
        plot(rows, options.plot)


def in_turns(
    sides: dict[str, list[str]], options: argparse.Namespace, megabytes: float
) -> dict[str, dict]:
    """The run of median wall time of each command, and of the code before where it is ours."""
    runs: dict[str, list[dict]] = {}
    for _ in range(options.repeats):
        for side, command in sides.items():
            runs.setdefault(side, []).append(measure(command, options.limit_s))
            if options.before and side != "peer":
                old = measure(command, options.limit_s, options.before)
                runs.setdefault(f"{side}, before", []).append(old)
    medians = {side: median(several) for side, several in runs.items()}
    for side, run in medians.items():
        show(megabytes, side, run)
    return medians


def median(runs: list[dict]) -> dict:
    """The run of median wall time, with all the times."""
    runs = sorted(runs, key=lambda run: run["wall_s"])
    return {**runs[(len(runs) - 1) // 2], "walls": [run["wall_s"] for run in runs]}


def show(megabytes: float, side: str, run: dict) -> None:
    spread = f"({run['walls'][0]:.2f}-{run['walls'][-1]:.2f})" if len(run["walls"]) > 1 else ""
    print(
        f"{megabytes:8.0f} MB  {side:13}  {run['wall_s']:8.2f} s {spread:13} {run['once_mb']:6.0f}"
        f" MB ({run['peak_mb']:.0f} MB summed)  {run['answer']}",
        flush=True,
    )


def compare_nsys(path: Path, options: argparse.Namespace) -> None:
    """An export read from its pages and by SQL, in turns."""
    sides = {
        side: [sys.executable, "-c", before + OURS, str(path)]
        for side, before in (("pages", ""), ("sql", BY_SQL))
    }
    medians = in_turns(sides, options, path.stat().st_size / 1e6)
    pages, sql = medians["pages"], medians["sql"]
    print(
        f"          ratio: {sql['wall_s'] / pages['wall_s']:.1f}x in time,"
        f" {sql['once_mb'] / pages['once_mb']:.2f}x in memory"
    )


def tiled(megabytes: int, options: argparse.Namespace, work: Path) -> Path:
    path = work / f"tiled-{megabytes}.json"
    if not path.exists():
        trace = (
            json.loads(gzip.decompress(options.trace.read_bytes()))
            if options.trace
            else synthetic()
        )
        tile(trace, megabytes * 1_000_000, path)
    return path


def compare_pair(megabytes: int, options: argparse.Namespace, work: Path) -> None:
    """Two traces of one size by `lab compare`, the second a link to the first."""
    path = tiled(megabytes, options, work)
    second = path.with_name(f"second-{megabytes}.json")
    if not second.exists():
        second.hardlink_to(path)
    command = [sys.executable, "-m", "bottleneck_lab", "compare", str(path), str(second), "--json"]
    in_turns({"pair": command}, options, 2 * path.stat().st_size / 1e6)


def compare_at(megabytes: int, options: argparse.Namespace, work: Path, peer: Path | None) -> dict:
    path = tiled(megabytes, options, work)
    row = {"mb": path.stat().st_size / 1e6}
    sides = {
        "ours": [sys.executable, "-c", OURS, str(path)],
    }
    if peer:
        sides["peer"] = [str(peer), "-c", THEIRS, str(path)]
    row |= in_turns(sides, options, row["mb"])
    if peer:
        print(
            f"          ratio: {row['peer']['wall_s'] / row['ours']['wall_s']:.1f}x in time, "
            f"1/{row['peer']['once_mb'] / row['ours']['once_mb']:.1f} of the memory"
        )
    return row


if __name__ == "__main__":
    main()
