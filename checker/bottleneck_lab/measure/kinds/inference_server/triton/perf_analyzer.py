"""perf_analyzer, the load generator in Triton's own guides, on the same server: its figures beside
those of `lab run`.

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
from bottleneck_lab.measure.kinds.http_server.load.steps import step
from bottleneck_lab.measure.kinds.inference_server.triton.gateway import MODEL
from bottleneck_lab.measure.sandbox.janitor import Janitor

PICTURES = 64
"""Sent over and over."""
WINDOWS, WINDOW_MS = 3, 2000
"""It measures in at least three windows; its report covers all of them."""
LOOK_S, LIMIT_S = 0.1, 60.0
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
    """The options of a closed loop of so many clients."""
    return ("--concurrency-range", str(clients))


def open_loop(rate: float) -> tuple[str, ...]:
    """The options of an open loop at `rate` requests/s."""
    return ("--request-rate-range", f"{rate:.1f}", "--request-distribution", "poisson")


def command(program: Path, url: str, folder: Path, loop: Sequence[str]) -> list[str]:
    """Its command line for one loop, with `pictures.json` of the folder and the report there."""
    windows = (
        "-p",
        str(WINDOW_MS),
        "-r",
        str(WINDOWS + 1),
        "-s",
        "999",
    )  # 999%: whether its windows agree or not
    sent = ("-m", MODEL, "-u", url, "--input-data", str(folder / "pictures.json"))
    return [
        str(program),
        *sent,
        *loop,
        "--percentile",
        "99",
        *windows,
        "-f",
        str(folder / "report.csv"),
    ]


def write_pictures(pictures: Sequence[bytes], path: Path) -> None:
    """Writes JPEG files as `--input-data` wants them: an entry a request, each a string tensor in
    base64 with its length first.
    """
    tensors = [
        base64.b64encode(len(each).to_bytes(4, "little") + each).decode() for each in pictures
    ]
    path.write_text(
        json.dumps({"data": [{"picture": {"b64": tensor, "shape": [1]}} for tensor in tensors]})
    )


def read_report(path: Path, loop: str, by: str) -> Row:
    """Its report of one loop. Raises FailedError if the file is not one."""
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
    """What `lab run` itself found in a loop of `seconds`."""
    found = step(0, level, seconds)
    return Row(loop, "lab run", found.rate, 1000 * found.p50_s, 1000 * found.p99_s)


@dataclass(frozen=True)
class PerfAnalyzer:
    """The program. `home`: the environment of the Triton server in which it lies."""

    home: Path

    def version(self) -> str:
        """Its version. Raises MachineError, with the remedy, if it is missing or does not start."""
        if not self._program.is_file():
            raise MachineError("perf_analyzer is not installed.", _ANEW)
        try:
            told = subprocess.run(
                [str(self._program), "--version"],
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            remedy = (
                "On Debian and Ubuntu: apt-get install libb64-0d"
                if "libb64" in error.stderr
                else _ANEW
            )
            raise MachineError(
                f"perf_analyzer does not start: {_last_line(error.stderr)}", remedy
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"perf_analyzer does not start: {error}", _ANEW) from error
        return (
            (told.stdout + told.stderr)
            .strip()
            .removeprefix("Perf Analyzer Version ")
            .partition(" ")[0]
        )

    def run(
        self,
        url: str,
        folder: Path,
        loop: Sequence[str],
        janitor: Janitor,
        watch: Callable[[float], None],
    ) -> Path:
        """Runs one loop with the folder's `pictures.json`; the path of its report. `watch` is
        called meanwhile, with the seconds it may take.

        Raises FailedError if it fails.
        """
        report, log = folder / "report.csv", folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command(self._program, url, folder, loop),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            janitor.follow(process.pid)
            try:
                _wait(process, watch)
            finally:
                process.kill()
                process.wait()
                janitor.forget(process.pid)
        if process.returncode:
            raise FailedError(_last_line(log.read_text(errors="replace")))
        return report

    @property
    def _program(self) -> Path:
        return self.home / "env" / "bin" / "perf_analyzer"

    def _environment(self) -> dict[str, str]:
        """With the CUDA library that it is linked to."""
        libraries = self.home.glob("env/lib/python3*/site-packages/nvidia/cuda_runtime/lib")
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}


def _wait(process: subprocess.Popen[bytes], watch: Callable[[float], None]) -> None:
    for _ in range(round(LIMIT_S / LOOK_S)):
        if process.poll() is not None:
            return
        watch(LOOK_S)
    raise FailedError(f"it was still running after {LIMIT_S:.0f} s")


def show(rows: Sequence[Row], version: str) -> str:
    """Text for a terminal: both tools' figures for each loop, and why they differ."""
    lines = [
        f"The same loops by perf_analyzer {version}, which calls Triton directly:",
        "",
        f"{'':<24}requests/s  p50 ms  p99 ms",
    ]
    for loop, found in groupby(rows, lambda row: row.loop):
        lines.append(loop)
        lines += [
            f"  {row.by:<22}{row.rate:>10.1f}  {row.p50_ms:>6.0f}  {row.p99_ms:>6.0f}"
            for row in found
        ]
    return "\n".join([*lines, "", _WHY]) + "\n"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1]
