"""How well the report, and a peer, diagnose the library of cases (datasets/cases).

    python benchmarks/cases.py [--peer PYTHON]

The truth is measured: each program ran again without each of its causes. Per cause: how many cases
have it, how often the report's first finding names it, and how often it does so wrongly. Then
whether the gain it gives is a bound, and near. With `--peer`, an interpreter that has
HolisticTraceAnalysis, the peer's breakdown of the same captures stands beside it. Exits with 1
where the report names fewer than 95% of the top causes, breaks a bound in more than 1%, or gives
fewer than 80% of the gains within 20% of the cause gone altogether.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from bottleneck_lab import load, merge_ranks, summarise
from bottleneck_lab.catalog import content_root
from bottleneck_lab.grading.cases import Case
from bottleneck_lab.grading.causes import MEMORY_GROWTH
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.workspace.cases import load_library

CASES = content_root() / "datasets" / "cases"
UNSEEN = ("healthy", "compute-bound")
"""A device that is busy with needless arithmetic looks like one that is busy: the report is right
to find nothing, and only the source tells the two apart.
"""
BUSY = "busy, no finding"
JITTER = 1.02
"""Recordings vary by up to this factor from one to the next."""
COARSE = {
    **dict.fromkeys(
        ("input-bound", "launch-bound", "synchronisation-bound", "allocation-bound", "host-bound"),
        "host",
    ),
    **dict.fromkeys(("copy-bound", "communication-bound", "straggler"), "not computing"),
    **dict.fromkeys(("memory-bound", "compute-bound", "healthy", "shared-device", BUSY), "device"),
    MEMORY_GROWTH: "memory",
}
PEER = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
by_case = {}
for name, folder in json.loads(sys.argv[1]).items():
    try:
        shares = TraceAnalysis(trace_dir=folder).get_temporal_breakdown(visualize=False).mean()
        by_case[name] = {
            "host": shares["idle_time_pctg"],
            "device": shares["compute_time_pctg"],
            "not computing": shares["non_compute_time_pctg"],
        }
    except Exception as error:
        by_case[name] = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(by_case))
"""


def diagnose(case: Case) -> tuple[str, float, bool]:
    """Return the cause that the report names first, the gain it gives, and if that is a bound."""
    paths = [CASES / case.name / name for name in case.traces]
    summary = summarise(merge_ranks([load(path) for path in paths]))
    findings = summary.findings
    if not findings:
        return BUSY, 1.0, False
    first = findings[0]
    called, gain = first.cause, first.expected_gain_ratio
    if called == MEMORY_GROWTH:
        # A finding's own gain is one in time, and so is the bound on it.
        return called, figures_of(summary)["memory_growth_ratio"], False
    return called, gain, first.at_most


def is_right(case: Case, called: str) -> bool:
    """Return True if the report names the cause, or rightly nothing."""
    return called == case.cause or (called == BUSY and case.cause in UNSEEN)


def peer_rows(python: Path, cases: list[Case]) -> dict[str, dict[str, float]]:
    """Return HolisticTraceAnalysis's temporal breakdown of each case, in %."""
    folders = json.dumps({case.name: str(CASES / case.name) for case in cases})
    done = subprocess.run(
        [python, "-c", PEER, folders], capture_output=True, text=True, check=True, timeout=600
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="an interpreter with HolisticTraceAnalysis")
    options = parser.parse_args()
    cases = load_library().cases
    rows = [(case, *diagnose(case)) for case in cases]

    print(f"{'cause':24} {'cases':>6} {'named':>6} {'falsely':>8}")
    falsely = Counter(called for case, called, _, _ in rows if not is_right(case, called))
    for cause in sorted({case.cause for case in cases} | set(falsely)):
        having = [row for row in rows if row[0].cause == cause]
        named = sum(is_right(case, called) for case, called, _, _ in having)
        print(f"{cause:24} {len(having):6} {named:6} {falsely[cause]:8}")
    right = [row for row in rows if is_right(row[0], row[1])]
    for case, called, gain, _ in rows:
        if not is_right(case, called):
            print(f"  {case.name}: {case.cause} {case.gain:.2f}x, called {called} {gain:.2f}x")
    share = len(right) / len(rows)
    print(f"top cause right: {len(right)} of {len(rows)} ({share:.0%})")

    bounds = [(case, gain) for case, called, gain, at_most in right if at_most]
    broken = [case.name for case, gain in bounds if case.gain > JITTER * gain]
    print(f"bounds that hold: {len(bounds) - len(broken)} of {len(bounds)} {' '.join(broken)}")
    named = [(case, gain) for case, called, gain, _ in right if called == case.cause]
    for what, measured in (
        ("the fix", lambda case: case.gain),
        ("the cause gone altogether", lambda case: case.entire or case.gain),
    ):
        off = {case.name: gain / measured(case) for case, gain in named}
        far = [f"{name} {ratio:.2f}" for name, ratio in off.items() if not 1 / 1.2 <= ratio <= 1.2]
        print(f"gains within 20% of {what}: {len(off) - len(far)} of {len(off)}; {', '.join(far)}")

    # Of the last: the report's gain is about the cause, not about one fix of it.
    near_share = 1 - len(far) / len(off)
    if options.peer:
        peers = peer_rows(options.peer, cases)
        readable = {name: row for name, row in peers.items() if "error" not in row}
        print(f"HolisticTraceAnalysis reads {len(readable)} of {len(cases)}")
        kinds = {case.name: COARSE[case.cause] for case in cases}
        theirs = sum(max(row, key=row.get) == kinds[name] for name, row in readable.items())
        ours = sum(COARSE[called] == kinds[case.name] for case, called, _, _ in rows)
        print(
            f"largest part of three is the cause's: peer {theirs}, report {ours}, of {len(cases)}"
        )
        for name, row in peers.items():
            if "error" in row:
                print(f"  {name}: {row['error']}")
    sys.exit(share < 0.95 or len(broken) > 0.01 * len(bounds) or near_share < 0.8)


if __name__ == "__main__":
    main()
