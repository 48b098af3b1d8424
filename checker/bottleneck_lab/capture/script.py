"""torch.profiler around any Python program: `python script.py --trace FILE … -- program.py its
arguments`.

Stands alone: the interpreter may be any that has torch, and need not have bottleneck_lab. What came
of it is written to a file, since a program's exit status is its own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NO_TORCH = "no torch"
COSTED_CALLS = 300
"""So many calls of an operator are timed, five times over, to learn what recording one costs."""


def rank_suffix() -> str:
    """Return `.rank3` for a process of several, else nothing."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        if int(os.environ.get(size, "1")) > 1:
            return f".rank{os.environ[rank]}"
    return ""


def of_rank(name: str) -> Path:
    """Return a file of this rank: `trace.json.gz` becomes `trace.rank3.json.gz`."""
    path = Path(name)
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(stem + rank_suffix() + dot + suffixes)


class Steps:
    """Counts the optimizer's steps. With a schedule each moves the profiler on; without, when each
    ended is kept, and the trace gets ranges named `step N`.

    Only the optimizer seen first counts: a program with two would make two steps an iteration.
    `recorded` is called once, when `before` steps are over: from then on the profiler records.
    """

    def __init__(self) -> None:
        self.count = 0
        self.ends_ns: list[int] = []
        self.moved: Callable[[], Any] | None = None
        self.recorded: Callable[[], Any] | None = None
        self.before = 0
        self._first: int | None = None

    def __call__(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Count a step of the optimizer that just ended."""
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) != self._first:
            return
        self.count += 1
        if not self.moved:
            self.ends_ns.append(time.time_ns())
            return
        self.moved()
        if self.recorded and self.count == self.before:
            self.recorded()


def mark_loader_starts() -> None:
    """Put a range around each start of a DataLoader's worker processes, with their number and that
    of the cores: a trace has neither.
    """
    from torch.profiler import record_function
    from torch.utils.data import dataloader

    # A loader has no public hook for the moment at which it starts its workers.
    iterator = dataloader._MultiProcessingDataLoaderIter
    original = iterator.__init__
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 0

    def start(self: Any, loader: Any) -> None:
        kept = "kept" if loader.persistent_workers else "ended"
        with record_function(
            f"DataLoader starts its workers: {loader.num_workers} on {cores} cores, {kept} after an"
            " epoch"
        ):
            original(self, loader)

    iterator.__init__ = start  # type: ignore[method-assign]  # that is the purpose


@contextlib.contextmanager
def profiling(options: argparse.Namespace) -> Iterator[Steps]:
    """Record with the profiler, and the allocator's history where it is asked for; both are written
    however the program ends.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity, profile, schedule

    steps, cuda = Steps(), torch.cuda.is_available()
    register_optimizer_step_post_hook(steps)
    mark_loader_starts()
    lines = _lines_module()
    own = lines.Lines() if options.stack else None

    def write(done: Any) -> None:
        if own:
            own.stop()
        # Writing may take long, so it is said; of several ranks by the first alone.
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"lab: writing the trace of {steps.count} optimizer steps\n")
            sys.stderr.flush()
        target = of_rank(options.trace)
        plain = target.with_name(target.name.removesuffix(".gz"))
        done.export_chrome_trace(str(plain))
        lines.compress(plain, target, own, steps.ends_ns)
        plain.unlink()

    with (
        allocator_history(options.snapshot if cuda else None),
        profile(
            activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else []),
            schedule=schedule(**options.schedule, repeat=1) if options.schedule else None,
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=options.stack,
            on_trace_ready=write,
        ) as profiler,
    ):
        if options.schedule:
            steps.moved = profiler.step
        if own and options.schedule:
            steps.before = options.schedule["wait"] + options.schedule["warmup"]
            steps.recorded = own.start
        elif own:
            own.start()
        yield steps
        if cuda:
            torch.cuda.synchronize()


@contextlib.contextmanager
def allocator_history(snapshot: str | None) -> Iterator[None]:
    """Record the history of the GPU's allocator and write it to `snapshot`; nothing if None."""
    if snapshot is None:
        yield
        return
    import torch

    # Frames of C++ would take minutes to look up when the snapshot is written. Annotations tell its
    # steps.
    torch.cuda.memory._record_memory_history(
        stacks="python", max_entries=1_000_000, global_record_annotations=True
    )
    try:
        yield
    finally:
        dump: Any = torch.cuda.memory._dump_snapshot  # torch has no types for it
        dump(str(of_rank(snapshot)))


def costs_ns(options: argparse.Namespace) -> dict[str, float]:
    """Return what recording costs here per operator at least, ns: the operator itself, its shapes,
    and its allocations, each only if this capture records it. In a loop of one operator caches are
    warm; between others it was seen to cost up to three times as much.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    tensor = torch.ones(1, device="cpu")

    def shortest_call_ns() -> float:
        lengths = []
        for _ in range(5):
            began = time.perf_counter_ns()
            for _ in range(COSTED_CALLS):
                torch.add(tensor, tensor)
            lengths.append((time.perf_counter_ns() - began) / COSTED_CALLS)
        return min(lengths)

    costs, before = {}, shortest_call_ns()
    settings: dict[str, Any] = {}
    for name, setting, wanted in (
        ("operators", None, True),
        ("shapes", "record_shapes", options.shapes),
        ("allocations", "profile_memory", options.memory),
    ):
        if not wanted:
            continue
        if setting:
            settings[setting] = True
        with profile(activities=[ProfilerActivity.CPU], **settings):
            after = shortest_call_ns()
        costs[name] = round(max(after - before, 0.0), 1)
        before = after
    return costs


def _lines_module() -> Any:
    """Import lines.py beside this file, under a name that no program's own module has."""
    spec = importlib.util.spec_from_file_location(
        "_lab_lines", Path(__file__).with_name("lines.py")
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def execute(program: list[str]) -> None:
    """Run what an interpreter would: a file, `-m module` or `-c code`, each with its own `sys.argv`
    and `sys.path`.
    """
    if program[0] == "-m":
        sys.argv, sys.path[0] = program[1:], str(Path.cwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    elif program[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *program[2:]], ""
        exec(compile(program[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = program, str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


def run(options: argparse.Namespace, program: list[str], outcome: dict[str, Any]) -> int:
    """Return the program's exit status, and in `outcome` what came of it. A copy of the program,
    made by `os.fork`, ends here: the recording is not its own.
    """
    status, process = 0, os.getpid()
    with profiling(options) as steps:
        try:
            execute(program)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                sys.stderr.write(end.code + "\n")
        except KeyboardInterrupt:
            status = 130
        except BaseException as error:
            status, outcome["error"] = 1, f"{type(error).__name__}: {error}"
            _show(error)
        finally:
            outcome["steps"] = steps.count
        if os.getpid() != process:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(status)
    if not status and not options.stack:
        with contextlib.suppress(RuntimeError):  # such as a profiler of the program's own, still on
            outcome["costs_ns"] = costs_ns(options)
    return status


def _show(error: BaseException) -> None:
    """Print the traceback as it would be without the profiler: from the program's own first line
    on.
    """
    trace = error.__traceback__
    while trace and (
        trace.tb_frame.f_code.co_filename == __file__
        or "runpy" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse our options, and the program after `--`."""
    at = arguments.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", required=True)
    parser.add_argument("--outcome", required=True)
    parser.add_argument("--snapshot")
    parser.add_argument("--schedule", type=json.loads)
    for flag in ("--shapes", "--memory", "--stack"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(arguments[:at]), arguments[at + 1 :]


def _terminated(_signum: int, _frame: Any) -> None:
    raise SystemExit(143)


def main() -> int:
    """Run the program under the profiler and write its outcome."""
    options, program = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, _terminated)
    outcome: dict[str, Any] = {}
    try:
        import torch

        outcome["torch"] = torch.__version__
    except ImportError:
        outcome["problem"] = NO_TORCH
        of_rank(options.outcome).write_text(json.dumps(outcome), encoding="utf-8")
        return 1
    status = 1
    try:
        status = run(options, program, outcome)
    finally:
        of_rank(options.outcome).write_text(
            json.dumps({**outcome, "status": status}), encoding="utf-8"
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
