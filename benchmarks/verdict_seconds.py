"""Where the seconds of a check go: for every lab its starter, its solution, and work at a tenth of
the target.

    python benchmarks/verdict_seconds.py [--lab roofline …] [--work tenth …] [--repeat 3]
    python benchmarks/verdict_seconds.py --beside ../old-checkout     # both sides, pair by pair
    python benchmarks/verdict_seconds.py --busy 2      # beside two programs that never pause

Prints one row a work: median seconds of its check, their phases (measure/clock.py says what each
is), and the outcome. With `--beside` each check is also made with another checkout's package, one
right after the other, so that both meet the same machine. Work at a tenth is made where it can be
made without knowing the lab: of a lab that answers calls, the shipped code whose calls are
dragged out; of a lab that feeds a device, the solution at a tenth of the pace.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKS = ("starter", "solution", "tenth")
SLOWED = """

_shipped_load = load


def load(device):
    import time

    function = _shipped_load(device)
    calls = 0

    def slowed(*inputs):
        nonlocal calls
        began = time.perf_counter()
        answer = function(*inputs)
        until = began + {factor!r} * (time.perf_counter() - began)
        # The first call also starts things up, which a slower script does no more often.
        while calls and time.perf_counter() < until:
            pass
        calls += 1
        return answer

    return slowed
"""


def slowed_starter(lab: Any) -> dict[str, str] | None:
    """Return the shipped entry with every call but the first, which warms up, dragged out to ten
    times what the target allows.

    None for a lab that does not answer calls.
    """
    from bottleneck_lab.course.proving import check

    criteria = lab.spec.devices[device_of(lab)].criteria
    speedup = next((spec for spec in criteria if spec.id == "speedup"), None)
    if lab.spec.measure != "speedup" or not speedup or lab.spec.entry not in lab.spec.editable:
        return None
    shipped = speedup.shipped
    if shipped is None:
        starter = check(lab, lab.path, device_of(lab))
        shipped = next(result.value for result in starter.criteria if result.id == "speedup")
    entry = (lab.path / lab.spec.entry).read_text(encoding="utf-8")
    head, guard, tail = entry.partition('\nif __name__ == "__main__":')
    slowed = SLOWED.format(factor=10 * shipped / speedup.target)
    return {lab.spec.entry: head + slowed + guard + tail}


def device_of(lab: Any) -> Any:
    """Return the lab's device on a machine without a GPU."""
    return next(device for device in lab.spec.devices if device != "cuda")


def files_of(lab: Any, work: str) -> dict[str, str] | None:
    """Return the files of a work to lay over the shipped ones; None where it cannot be made."""
    if work == "starter":
        return {}
    if work == "solution":
        names = [*lab.spec.editable, "diagnosis.toml"]
        files = [(name, lab.solution / name) for name in names]
        return {name: path.read_text(encoding="utf-8") for name, path in files if path.is_file()}
    if lab.spec.measure == "input_pipeline":
        from verdict_reliability import pace

        return dict(pace(lab, 0.1, lab.path)[1])
    return slowed_starter(lab)


def check_one(slug: str, work: str) -> dict[str, Any] | None:
    """Check a work with the package of this process. Returns seconds, phases and outcome."""
    from bottleneck_lab.catalog import find_lab
    from bottleneck_lab.course.proving import check

    lab = find_lab(slug)
    files = files_of(lab, work)
    if files is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(lab.path, folder, dirs_exist_ok=True)
        if work == "solution" and lab.solution.is_dir():
            shutil.copytree(lab.solution, folder, dirs_exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        verdict = check(lab, lab.path if work == "starter" else folder, device_of(lab))
    return {
        "seconds": verdict.duration_s,
        "phases": getattr(verdict, "seconds", {}),
        "outcome": str(verdict.outcome),
        "reason": verdict.reason or "",
        "summary": verdict.summary,
    }


def in_checkout(checkout: Path, slug: str, work: str) -> dict[str, Any] | None:
    """Check a work in a process of its own, with the package of `checkout`."""
    # Its own environment: a check's workers are isolated from PYTHONPATH.
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{checkout} has no .venv. `make setup` there makes one.")
    environment = {**os.environ, "BOTTLENECK_LAB_CONTENT": str(checkout)}
    program = [str(python), __file__, "--one", slug, work]
    done = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] | None = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep as many cores busy by other programs, until the block ends."""
    program = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(program) for _ in range(cores)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def labs() -> list[str]:
    """Return the labs that this machine can check without a GPU."""
    from bottleneck_lab.catalog import load_labs

    return [lab.slug for lab in load_labs().values() if set(lab.spec.devices) != {"cuda"}]


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the head of the table, then one row for each work and side."""
    sides = {"here": ROOT} | ({"beside": options.beside} if options.beside else {})
    phases: list[str] = []
    for slug in options.lab or labs():
        for work in options.work:
            results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
            for _ in range(options.repeat):
                for side, checkout in sides.items():
                    result = in_checkout(checkout, slug, work)
                    if result is not None:
                        results[side].append(result)
            for side, checks in results.items():
                if not checks:
                    continue
                if not phases:
                    phases = list(checks[0]["phases"])
                    yield ["lab", "work", "side", "seconds", *phases, "outcome"]
                figures = [f"{median(check['seconds'] for check in checks):.1f}"]
                for phase in phases:
                    known = [check["phases"][phase] for check in checks if check["phases"]]
                    figures.append(f"{median(known):.1f}" if known else "")
                outcomes = sorted(
                    {f"{each['outcome']} {each['reason']}".strip() for each in checks}
                )
                yield [slug, work, side, *figures, ", ".join(outcomes)]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--lab", nargs="*", help="only these labs")
    parser.add_argument("--work", nargs="*", choices=WORKS, default=list(WORKS))
    parser.add_argument(
        "--repeat", type=int, default=1, help="checks of each work, whose median counts"
    )
    parser.add_argument("--beside", type=Path, help="another checkout to compare with")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="CORES", help="cores that other programs keep busy"
    )
    parser.add_argument("--one", nargs=2, metavar=("LAB", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(check_one(*options.one)))
        return
    with busy(options.busy):
        for row in rows(options):
            print("| " + " | ".join(row) + " |", flush=True)
            if row[0] == "lab":
                print("|" + " --- |" * len(row), flush=True)


if __name__ == "__main__":
    main()
