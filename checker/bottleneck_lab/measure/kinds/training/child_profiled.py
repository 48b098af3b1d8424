"""The process of `lab run` and `lab profile` that runs a training script in the learner's own
folder, under torch.profiler on a real device: `python -m
bottleneck_lab.measure.kinds.training.child_profiled …`.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import threading

from bottleneck_lab.measure.kinds.profiling import profiling, run_child
from bottleneck_lab.measure.kinds.training.child import program_of, training_parser


def _train(options: argparse.Namespace) -> None:
    """Train once, printing each report. With `--trace` torch.profiler records it."""

    def show(step: int, numbers: dict[str, float]) -> None:
        line = ", ".join(f"{name} {value:.5g}" for name, value in numbers.items())
        print(f"step {step}: {line}", flush=True)  # noqa: T201 - it is the workload that prints

    program = program_of(options)
    with profiling(options.trace, options.schedule) as step:
        program.train(0, on_step=step, on_report=show)


def main() -> None:
    """Entry point."""
    options = training_parser().parse_args()
    run_child(_train, options)
    if options.engine is not None:
        # End as multiprocessing ends its own processes: PyTorch is not taken apart, which takes a
        # second.
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
