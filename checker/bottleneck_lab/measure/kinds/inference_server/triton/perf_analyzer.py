"""Run perf_analyzer, the load generator in Triton's own guides, on the same server: its figures
stand beside those of `lab run`.

It is installed in the environment of the Triton server, and calls Triton directly, without the
gateway.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.kinds.http_server.load.level import Level
from bottleneck_lab.measure.kinds.http_server.load.program import run_watched
from bottleneck_lab.measure.kinds.http_server.load.steps import step
from bottleneck_lab.measure.kinds.inference_server.triton.gateway import MODEL
from bottleneck_lab.measure.sandbox.janitor import Janitor

PICTURES = 64
"""Pictures in its input file, which it sends over and over."""
WINDOWS, WINDOW_MS = 3, 2000
"""It measures in at least three windows; its report covers all of them."""
LIMIT_S = 60.0
_PROBE_S = 10.0
_ANEW = "`lab data tritonserver` installs it with Triton."
_WHY = (
    "`lab run` measures from when a request was due, perf_analyzer from when it sends it. At a"
    " given rate it sends from 4 threads (--max-threads), and each waits for its answer: requests"
    " due meanwhile are sent late or never, and their wait is left out. With --async it does not"
    " wait. It always draws the same arrival times, so compare the requests/s that it reached, too."
)


class FailedError(Exception):
    """It ended without a report: its last words."""


@dataclass(frozen=True)
class Row:
    """The result of one loop: its name, who made it, answers/s, p50 and p99 in ms."""

    loop: str
    by: str
    rate: float
    p50_ms: float
    p99_ms: float


def closed_loop(clients: int) -> tuple[str, ...]:
    """Return the options of a closed loop of that many clients."""
    return ("--concurrency-range", str(clients))


def open_loop(rate: float) -> tuple[str, ...]:
    """Return the options of an open loop at `rate` requests/s."""
    return ("--request-rate-range", f"{rate:.1f}", "--request-distribution", "poisson")


def command(program: Path, url: str, folder: Path, loop: Sequence[str]) -> list[str]:
    """Return its command line for one loop, with `pictures.json` of the folder and the report
    there.
    """
    requests = ("-m", MODEL, "-u", url, "--input-data", str(folder / "pictures.json"))
    # -s is how far its windows may differ, in percent: 999 accepts them all.
    windows = ("-p", str(WINDOW_MS), "-r", str(WINDOWS + 1), "-s", "999")
    report = ("--percentile", "99", *windows, "-f", str(folder / "report.csv"))
    return [str(program), *requests, *loop, *report]


def write_pictures(pictures: Sequence[bytes], path: Path) -> None:
    """Write JPEG files as `--input-data` wants them: an entry a request, each a string tensor in
    base64 with its length first.
    """
    entries = []
    for picture in pictures:
        tensor = base64.b64encode(len(picture).to_bytes(4, "little") + picture).decode()
        entries.append({"picture": {"b64": tensor, "shape": [1]}})
    path.write_text(json.dumps({"data": entries}))


def read_report(path: Path, loop: str, by: str) -> Row:
    """Read its report of one loop. Raises FailedError if the file is not one."""
    try:
        with path.open(newline="") as file:
            (row,) = csv.DictReader(file)
        rate, p50_us, p99_us = (
            float(row[name]) for name in ("Inferences/Second", "p50 latency", "p99 latency")
        )
    except (OSError, ValueError, KeyError) as error:
        raise FailedError("its report does not describe one loop") from error
    return Row(loop, by, rate, p50_us / 1000, p99_us / 1000)


def row_of(level: Level, seconds: float, loop: str) -> Row:
    """Return the row for the same loop of `seconds` by `lab run` itself."""
    ours = step(0, level, seconds)
    return Row(loop, "lab run", ours.rate, 1000 * ours.p50_s, 1000 * ours.p99_s)


@dataclass(frozen=True)
class PerfAnalyzer:
    """The program. `home`: the environment of the Triton server in which it lies."""

    home: Path

    def version(self) -> str:
        """Return its version. Raises MachineError with the remedy if it is missing or does not
        start.
        """
        if not self._program.is_file():
            raise MachineError("perf_analyzer is not installed.", _ANEW)
        try:
            output = subprocess.run(
                [str(self._program), "--version"],
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            remedy = _ANEW
            if "libb64" in error.stderr:
                remedy = "On Debian and Ubuntu: apt-get install libb64-0d"
            raise MachineError(
                f"perf_analyzer does not start: {_last_line(error.stderr)}", remedy
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"perf_analyzer does not start: {error}", _ANEW) from error
        text = (output.stdout + output.stderr).strip()
        return text.removeprefix("Perf Analyzer Version ").partition(" ")[0]

    def run(
        self,
        url: str,
        folder: Path,
        loop: Sequence[str],
        janitor: Janitor,
        watch: Callable[[float], None],
    ) -> Path:
        """Run one loop with the folder's `pictures.json`, and return the path of its report.

        `watch` is called meanwhile, with the seconds it may take. Raises FailedError if it fails.
        """
        report, log = folder / "report.csv", folder / "log"
        status = run_watched(
            command(self._program, url, folder, loop),
            janitor,
            watch,
            LIMIT_S,
            log=log,
            environment=self._environment(),
        )
        if status is None:
            raise FailedError(f"it was still running after {LIMIT_S:.0f} s")
        if status:
            raise FailedError(_last_line(log.read_text(errors="replace")))
        return report

    @property
    def _program(self) -> Path:
        return self.home / "env" / "bin" / "perf_analyzer"

    def _environment(self) -> dict[str, str]:
        """Return its environment, with the CUDA library that it is linked to."""
        libraries = self.home.glob("env/lib/python3*/site-packages/nvidia/cuda_runtime/lib")
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}


def show(rows: Sequence[Row], version: str) -> str:
    """Return text for a terminal: both tools' figures for each loop, and why they differ."""
    lines = [
        f"The same loops by perf_analyzer {version}, which calls Triton directly:",
        "",
        f"{'':<24}requests/s  p50 ms  p99 ms",
    ]
    for loop, of_loop in groupby(rows, lambda row: row.loop):
        lines.append(loop)
        lines += [
            f"  {row.by:<22}{row.rate:>10.1f}  {row.p50_ms:>6.0f}  {row.p99_ms:>6.0f}"
            for row in of_loop
        ]
    return "\n".join([*lines, "", _WHY]) + "\n"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1]
