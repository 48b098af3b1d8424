"""Nsight Compute: counters of single kernels. What the installed release can do, its command line,
and what it left.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bottleneck_lab.capture.launchers import Launch, split
from bottleneck_lab.capture.recording import Captured, CommandEnd, Request, run, typed
from bottleneck_lab.errors import CaptureError, MachineError
from bottleneck_lab.trace.external import run_tool

# Where the installation has no section files: the course's own list, for throughput, occupancy,
# cache and divergence.
METRICS = (
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
)

COUNTERS_REMEDY = (
    "Run as root, or put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into"
    " /etc/modprobe.d/nvidia-profiling.conf and load the driver again; in a container, the host"
    " decides (`--cap-add=SYS_ADMIN`). `--tool torch` and `--tool nsys` work without counters."
)
PROBE_S = 60
IMPORT_S = 300

_OPTION = re.compile(r"(--[a-z][a-z0-9-]*)")
_VERSION = re.compile(r"[vV]ersion (\d+(?:\.\d+)+)")
_PROBLEMS = {
    "ERR_NVGPUCTRPERM": (
        "The driver reserves the GPU's counters for administrators (ERR_NVGPUCTRPERM).",
        COUNTERS_REMEDY,
    ),
    "connect to the CUDA driver": (
        "ncu finds no CUDA driver: there is no GPU that this process can use.",
        (
            "ncu needs a GPU. `--tool torch` and `--tool nsys` record the host side without one;"
            " `lab doctor` says what is missing."
        ),
    ),
    "driver resource": (
        "Another profiler is using the GPU's counters.",
        "Stop it, and DCGM's profiling metrics too (`dcgmi profile --pause`), then try again.",
    ),
}


@dataclass(frozen=True)
class NcuCapabilities:
    """A release's own account of itself: its version, its options and its section sets."""

    version: str
    options: frozenset[str]
    sets: frozenset[str]


def capabilities(version: str, help_text: str, sets_text: str) -> NcuCapabilities:
    """Parse the texts of `ncu --version`, `--help` and `--list-sets`. Raises CaptureError when they
    are not ncu's.
    """
    match = _VERSION.search(version)
    if match is None or "--kernel-name" not in help_text:
        raise CaptureError(
            "The ncu on this machine does not report its version and options.",
            "Run `ncu --version` by hand.",
        )
    rows = [line.split() for line in sets_text.splitlines()]
    sets = {row[0] for row in rows if len(row) > 2 and re.fullmatch(r"[a-z]+", row[0])}
    return NcuCapabilities(match[1], frozenset(_OPTION.findall(help_text)), frozenset(sets))


def command(tool: str, can: NcuCapabilities, request: Request, launch: Launch) -> list[str]:
    """Return the whole command line. Options that this release does not know are left out.

    The clocks are left alone unless asked for: locking them needs a right that many machines do not
    give. The program gets its own HOME back.
    """
    options = request.options
    report = "report"
    if launch.rank:
        report = f"report_%q{{{launch.rank}}}"
    chosen = options.metrics
    if not chosen and "full" not in can.sets:
        chosen = METRICS
    what = ["--set", "full"]
    if chosen:
        what = ["--metrics", ",".join(chosen)]
    words = [("--target-processes", "all")]
    words.append(("--clock-control", "base" if options.lock_clocks else "none"))
    if options.kernel:
        words.append(("--kernel-name", f"regex:{options.kernel}"))
    if options.skip:
        words.append(("--launch-skip", str(options.skip)))
    words.append(("--launch-count", str(options.launches)))
    if not can.sets:
        # An installation without section files ends with an error, metrics by name or not, unless
        # it is shown some folder.
        words.append(("--section-folder", str(request.out)))
    known = [word for pair in words if pair[0] in can.options for word in pair]
    # The program gets its own HOME back: ncu writes its files into another.
    home = []
    if "HOME" in os.environ:
        home = ["env", f"HOME={os.environ['HOME']}"]
    return launch.around(
        tool, *what, *known, "--force-overwrite", "--export", str(request.out / report), *home
    )


def probe(tool: str, home: str) -> NcuCapabilities:
    """Return the same, asked of the tool itself, which writes into its HOME even then."""
    commands = (["--version"], ["--help"], ["--list-sets"])
    return capabilities(
        *(
            run_tool(["env", f"HOME={home}", tool, *words], Path(tool), PROBE_S)
            for words in commands
        )
    )


def record(tool: str, request: Request) -> Captured:
    """Run the program under ncu; its kernels as CSV, beside the report. Raises MachineError for a
    GPU or a right that is missing.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-lab-ncu-") as home:
        can, launch = probe(tool, home), split(request.program, sys.executable)
        line, shown = command(tool, can, request, launch), {**request.environment, "HOME": home}
        request.announce(typed(line, request))
        ended = run(request, line, shown)
        reports = sorted(request.out.glob("*.ncu-rep"))
        if not reports:
            raise explain(ended)
        files = []
        for report in reports:
            words = ["--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
            text = run_tool(["env", f"HOME={home}", tool, *words], report, IMPORT_S)
            target = report.with_suffix(".csv")
            target.write_text(text, encoding="utf-8")
            files.append(target.name)
    return Captured(
        files, typed(line, request), ended, can.version, [path.name for path in reports]
    )


def explain(ended: CommandEnd) -> CaptureError | MachineError:
    """Explain why there is no report, from ncu's output."""
    for sign, (message, remedy) in _PROBLEMS.items():
        if sign in ended.tail:
            return MachineError(message, remedy)
    if "No kernels were profiled" in ended.tail:
        return CaptureError(
            "ncu did not see any of the kernels it was asked to measure.",
            "Check `--kernel` (a regular expression) and `--skip`; a program that runs on the CPU"
            " has no kernels.",
        )
    return CaptureError(
        f"ncu left no report; the program {ended.why()}:\n{ended.last_lines()}",
        "Run the program without ncu first; if it works, run ncu by hand as shown above.",
    )
