"""Run a training script for `lab run` and `lab profile`: `python -m
bottleneck_lab.measure.kinds.input_pipeline.child_profiled …`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import tempfile
from pathlib import Path

from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.input_pipeline.child import prepared, script_parser
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import Accelerator
from bottleneck_lab.measure.kinds.input_pipeline.loader_workers import (
    add_worker_rows,
    recorded_workers,
)
from bottleneck_lab.measure.kinds.profiling import child_parser, profiling, run_child
from bottleneck_lab.measure.machine import loading_cores


def train(options: argparse.Namespace) -> None:
    """Train on the device at the other end of the socket."""
    import torch

    # As many cores as in a check: with more, loading would look faster than a verdict finds it.
    os.sched_setaffinity(0, loading_cores())
    cache = options.entry.parent / ".lab" / "cache"
    module = prepared(options.entry, options.data, cache)
    channel = Channel(socket.socket(fileno=options.socket))
    with tempfile.TemporaryDirectory() as rows:
        workers = recorded_workers(Path(rows)) if options.trace else contextlib.nullcontext()
        with workers, profiling(options.trace, options.schedule) as step:
            arena, range_ = Arena.attach(options.arena), torch.profiler.record_function
            accelerator = Accelerator(channel, arena, options.samples, range_, step)
            module.train(accelerator, options.data, cache)
        accelerator.finish()
        if options.trace:
            add_worker_rows(options.trace, Path(rows))


def main() -> None:
    """Entry point."""
    run_child(train, script_parser(child_parser()).parse_args())


if __name__ == "__main__":
    main()
