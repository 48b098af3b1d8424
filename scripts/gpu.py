"""Everything that only a machine with a CUDA device can show, a step at a time: `make gpu`, or

    python scripts/gpu.py [--only grade: --only capture:] [--budget-s 1500] [--fresh] [--list]
                          [--pretend]

Every lab that is measured on `cuda`: its starter FAILs for its declared reason, its solution and
variants PASS. Then captures of starter and solution with each tool that is there, attention against
every backend of PyTorch's, and the tests marked `gpu`. Figures go to docs/measured/<gpu>.json,
captures to datasets/captures/<gpu>/. What is in order is remembered in build/gpu/, so a run that
was cut short goes on where it stopped, and what went wrong is tried again after what has not been
tried. What this machine cannot do is not tried; the record says what it lacks. Exit status: 0 all
well, 1 something is wrong, 3 steps are left, 4 no CUDA device (nothing is changed).

With `--pretend` all of it is rehearsed on a device that is not there (scripts/pretend_gpu).
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # scripts.gpu_run, scripts.cases

from scripts.gpu_run import actions, captures, forecast, plan, records
from scripts.gpu_run.records import State
from scripts.gpu_run.runner import Ran, Runner, run_step

SCRIPT = Path(__file__).resolve()
BUDGET_S = 840.0
"""People rent fifteen minutes, of which one goes into writing down this machine's state."""
STEP_LIMIT_S = 900.0
ALL_OF_IT = 0.9
"""A step that had this share (0–1) of the budget and was not done is too long for any run."""
OK, WRONG, LEFT, NO_GPU = 0, 1, 3, 4


def say(text: str) -> None:
    """Print a line at once: a step may take minutes."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(command: list[str], limit_s: float) -> Ran:
    """Run a step in a process of its own: a warm one, if the step is this script's."""
    # The warm process finds this script by its being the main program.
    own = __name__ == "__main__" and command[:2] == [sys.executable, str(SCRIPT)]
    return run_step(command, limit_s, main if own else None)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="steps whose names begin so")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=BUDGET_S,
        help="stop after this many seconds, plus half a minute to tidy up; run again to go on",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="do these steps again, also those that are in order"
    )
    parser.add_argument(
        "--pretend", action="store_true", help="rehearse without a GPU; nothing is recorded"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="show the plan: each step, how long it takes, and what fits the budget",
    )
    parser.add_argument(
        "--write-never-run", action="store_true", help="renew the list in docs/measured/README.md"
    )
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(
    arguments: list[str] | None = None, *, runner: Runner = run, root: Path = plan.ROOT
) -> int:
    """Entry point."""
    options = parse(arguments)
    if options.pretend:
        plan.pretend()
    from bottleneck_lab.capture.devices import gpus

    labs, docs = plan.gpu_labs(), root / "docs" / "measured"
    if options.do:
        say(json.dumps(actions.do_step(options.do, options.into)))
        return OK
    if options.write_never_run:
        records.write_never_run(docs / "README.md", labs)
        return OK
    if not (names := gpus()):
        sys.stderr.write(
            "There is no CUDA device that this process can use; nothing was run and nothing"
            " changed.\n"
        )
        return NO_GPU
    return run_steps(options, names, labs, runner, root)


def run_steps(
    options: argparse.Namespace, gpus: list[str], labs: list[Any], runner: Runner, root: Path
) -> int:
    """Run the steps that were asked for, and record them. Returns the exit status."""
    gpu = gpus[0]
    folder = root / "build" / "gpu" / gpu_slug(gpu)
    state, steps = State(folder), plan.plan_steps(labs, installed_tools(), len(gpus))
    named = {
        step: lacks
        for step, lacks in steps.items()
        if not options.only or step.startswith(("data", *options.only))
    }
    chosen = [step for step, lacks in named.items() if not lacks]
    if options.list:
        known = records.read_records(root / "docs" / "measured")
        say(forecast.describe_plan(named, state, known, options.budget_s))
        return OK
    if options.fresh:
        state.forget(chosen)
    left = work(chosen, state, runner, budget_s=options.budget_s)
    if plan.pretending():
        say("This was a rehearsal: nothing was measured, and nothing is recorded.")
    else:
        record(gpu, state, folder, steps, labs, root)
    if left:
        say(f"{len(left)} steps are left; the same command goes on with {left[0]}.")
        return LEFT
    return WRONG if any(state.done[step]["problems"] for step in chosen) else OK


def work(
    steps: list[str],
    state: State,
    runner: Runner,
    *,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Run what is not in order yet, while there is time, first what was never tried. Returns the
    steps that are left.

    A step that ran out of the budget is not held against it, unless it had all of it: it would
    never be done.
    """
    ends = clock() + budget_s
    left = sorted(
        (step for step in steps if not state.in_order(step)),
        key=lambda step: step in state.done and step != "data",
    )
    while left:
        remaining = ends - clock()
        if remaining <= 1:
            break
        limit = min(STEP_LIMIT_S, remaining)
        began = clock()
        ran = runner(command_of(left[0], state.folder / "captures"), limit)
        if ran.status is None and limit < min(STEP_LIMIT_S, ALL_OF_IT * budget_s):
            break
        row = records.record_of(ran) | {"seconds": round(clock() - began, 1)}
        for step in same_refusal(left) if "cannot" in row else left[:1]:
            state.add(step, row)
            print_outcome(step, row)
        left = [step for step in left if state.done.get(step) is not row]
    return left


def same_refusal(left: list[str]) -> list[str]:
    """Return the first step and those after it that record with the same tool: what the first was
    refused, they are, too.
    """
    return [
        step
        for step in left
        if step == left[0] or step.rsplit(":", 1)[-1] == left[0].rsplit(":", 1)[-1]
    ]


def print_outcome(step: str, row: dict[str, Any]) -> None:
    """Print a line for a step, and its problems."""
    mark = "✗" if row["problems"] else "-"
    if records.is_good(row):
        mark = "✓"
    say(f"{mark} {step} {row.get('cannot', '')}".rstrip())
    for problem in row["problems"]:
        say(f"    {problem}")


def command_of(step: str, kept: Path) -> list[str]:
    """Return the command line of a step."""
    if step == "data":
        return [sys.executable, "-m", "bottleneck_lab", "data"]
    if step == "benchmark":
        return [sys.executable, "benchmarks/attention.py", "--device", "cuda"]
    if step in plan.PYTESTS:
        pytest = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--timeout", "850"]
        return [*pytest, plan.PYTESTS[step]]
    return [sys.executable, str(SCRIPT), "--do", step, "--into", str(kept)]


def installed_tools() -> Iterator[str]:
    """Yield the tools of this machine that captures are made with."""
    from bottleneck_lab.capture.tools import TOOLS, locate_tool
    from bottleneck_lab.errors import MachineError

    for tool in TOOLS:
        try:
            locate_tool(tool)
        except MachineError as error:
            say(f"  without {tool}: {error.message}")
        else:
            yield tool


def gpu_slug(name: str) -> str:
    """Return the name of a GPU's files: `a100-sxm4-80gb` for `NVIDIA A100-SXM4-80GB`."""
    short = re.sub(r"\b(nvidia|geforce|tesla|quadro)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", short).strip("-") or "gpu"


def record(
    gpu: str, state: State, folder: Path, steps: dict[str, str], labs: list[Any], root: Path
) -> None:
    """Publish captures and write docs/measured/<gpu>.json, which names no host."""
    from bottleneck_lab.measure.machine import fingerprint

    docs, cannot = root / "docs" / "measured", {step: why for step, why in steps.items() if why}
    if (folder / "captures").is_dir():
        captures.publish_captures(
            folder / "captures", root / "datasets" / "captures" / gpu_slug(gpu)
        )
    docs.mkdir(parents=True, exist_ok=True)
    cannot |= {step: row["cannot"] for step, row in state.done.items() if "cannot" in row}
    written = {
        "recorded_by": records.RECORDED_BY,
        "gpu": gpu,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": fingerprint(),
        "steps": {step: row for step, row in state.done.items() if "cannot" not in row},
        "left": [step for step in steps if step not in state.done and step not in cannot],
        "cannot": cannot,
    }
    (docs / f"{gpu_slug(gpu)}.json").write_text(
        json.dumps(written, indent=1) + "\n", encoding="utf-8"
    )
    records.write_never_run(docs / "README.md", labs)


if __name__ == "__main__":
    # As Ctrl-C does: what runs is stopped, and temporary files go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
