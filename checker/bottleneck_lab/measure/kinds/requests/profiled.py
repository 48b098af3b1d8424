"""The learner's server in the learner's own folder, for `lab run` and `lab profile`: no sandbox, no secrets, and with `--trace` under torch.profiler.

Over a pipe it is told what to capture. When that is closed, it ends.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bottleneck_lab.measure.channel.messages import Ready
from bottleneck_lab.measure.channel.wire import Channel
from bottleneck_lab.measure.kinds.profiling import child_parser, export, run_child
from bottleneck_lab.measure.kinds.requests.script import script_parser
from bottleneck_lab.measure.machine import loading_cores
from bottleneck_lab.measure.worker import load_module


def capture(seconds: float, trace: Path | None) -> None:
    """Records every thread of this process for so long; without `trace` nothing is written."""
    import torch

    # The only way to record threads that ran before the profiler; torch publishes no other name for it.
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=everywhere) as profiler:
        time.sleep(seconds)
    if trace is not None:
        export(profiler, trace)


def obey(options: argparse.Namespace) -> None:
    """Captures (`capture SECONDS`) or sets a constant of the server (`MAX_BATCH 4`) when it is told to; ends this process when the pipe is closed."""
    with os.fdopen(options.control) as lines:
        for line in lines:
            word, value = line.split()
            if word == "capture":
                capture(float(value), options.trace)
            else:
                setattr(sys.modules[options.entry.stem], word, int(value))
    os._exit(0)


def serve(options: argparse.Namespace) -> None:
    """Loads the server and has it listen."""
    module = load_module(options.entry)
    Channel(socket.socket(fileno=options.socket)).send(Ready())
    module.serve(socket.socket(fileno=options.listener))


def run_server(serve: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Serves as it is told to. The profiler wants the main thread; the server does with another."""
    parser.add_argument("--control", type=int, required=True)
    options = script_parser(parser).parse_args()
    os.sched_setaffinity(0, loading_cores())
    if options.trace:
        capture(0.0, None)  # the first takes seconds to set up
    threading.Thread(target=_serve_to_the_end, args=(serve, options), daemon=True).start()
    obey(options)


def _serve_to_the_end(serve: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """The server with whatever it raises, which ends this process."""
    try:
        run_child(serve, options)
    finally:
        os._exit(1)  # it is not to return


if __name__ == "__main__":
    run_server(serve, child_parser())
