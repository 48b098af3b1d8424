"""How long `lab --help` and `lab list` take, beside a bare `python -c pass`, both in one run and in
turns.

    python benchmarks/cli_startup.py [--rounds 21]

Prints medians in ms, the spread, and the ratio to the bare interpreter; ends with status 1 when a
command takes more than 250 ms.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time

GOAL_MS = 250.0
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "lab --help": [sys.executable, "-m", "bottleneck_lab", "--help"],
    "lab list": [sys.executable, "-m", "bottleneck_lab", "list"],
    "lab": [sys.executable, "-m", "bottleneck_lab"],
}


def time_ms(command: list[str]) -> float:
    """Wall time of one run, ms; its output is thrown away."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - start) * 1e3


def measure(rounds: int) -> dict[str, list[float]]:
    """Times of every command, taken in turns so that a busy moment meets all of them; the first
    round warms the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(rounds + 1):
        for name, command in COMMANDS.items():
            taken = time_ms(command)
            if turn:
                times[name].append(taken)
    return times


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    times = measure(parser.parse_args().rounds)
    bare = statistics.median(times["python -c pass"])
    print(
        f"Python {platform.python_version()} on {platform.machine()}; medians of"
        f" {len(times['lab'])} runs in turns"
    )
    for name, values in times.items():
        median = statistics.median(values)
        print(
            f"{name:16} {median:7.1f} ms   ({min(values):.1f}-{max(values):.1f})  "
            f" {median / bare:5.1f} x the bare interpreter"
        )
    return int(any(statistics.median(values) > GOAL_MS for values in times.values()))


if __name__ == "__main__":
    sys.exit(main())
