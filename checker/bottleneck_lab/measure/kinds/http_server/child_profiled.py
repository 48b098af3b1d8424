"""Run the learner's server in the learner's own folder, for `lab run` and `lab profile`: without
sandbox or secrets, and with `--trace` under torch.profiler.

Commands arrive over a pipe. When the pipe is closed, this process ends.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from pathlib import Path

from bottleneck_lab.measure.channel.messages import Ready
from bottleneck_lab.measure.channel.wire import Channel
from bottleneck_lab.measure.kinds.http_server import nvtx
from bottleneck_lab.measure.kinds.http_server.child import script_parser
from bottleneck_lab.measure.kinds.profiling import child_parser, export, run_child
from bottleneck_lab.measure.machine import loading_cores
from bottleneck_lab.measure.worker import load_module


def capture(seconds: float, trace: Path | None) -> None:
    """Record every thread of this process for `seconds`, and write `trace` if there is one."""
    import torch

    # The only way to record threads that started before the profiler; torch has no public name.
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=everywhere) as profiler:
        time.sleep(seconds)
    if trace is not None:
        export(profiler, trace)


class Served:
    """The server of the learner's entry file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def serve(self) -> None:
        """Load the server and have it listen. It must not return."""
        module = load_module(self.options.entry)
        Channel(socket.socket(fileno=self.options.socket)).send(Ready())
        module.serve(socket.socket(fileno=self.options.listener))

    def prepare(self) -> None:
        """Make a first capture, whose set-up takes seconds that a later one then saves."""
        capture(0.0, None)

    def capture(self, seconds: float) -> None:
        """Capture it for `seconds`, or let nsys see it for as long."""
        if self.options.nvtx:
            nvtx.show(seconds)
        else:
            capture(seconds, self.options.trace)

    def set_constant(self, name: str, value: int) -> None:
        """Set a constant of the server while it runs."""
        setattr(sys.modules[self.options.entry.stem], name, value)

    def end(self) -> None:
        """End what it started."""


def obey(served: Served) -> None:
    """Follow commands until the pipe is closed: `capture SECONDS`, or a constant of the server with
    its new value (`MAX_BATCH 4`).
    """
    options = served.options
    with os.fdopen(options.control) as lines:
        for line in lines:
            word, value = line.split()
            if word == "capture":
                served.capture(float(value))
            else:
                served.set_constant(word, int(value))


def run_server(served: Served) -> None:
    """Serve until the pipe of commands is closed, then end this process."""
    options = served.options
    os.sched_setaffinity(0, loading_cores())
    if options.nvtx:
        nvtx.mark()
    if options.trace:
        served.prepare()
    # The profiler needs the main thread, so the server gets another.
    threading.Thread(target=_serve_to_the_end, args=(served,), daemon=True).start()
    obey(served)
    served.end()
    # Not `sys.exit`: threads that the server has started could keep this process alive.
    os._exit(0)


def _serve_to_the_end(served: Served) -> None:
    """Serve; if that returns or raises, end this process."""
    try:
        run_child(lambda _: served.serve(), served.options)
    finally:
        os._exit(1)  # it must not return


def controlled(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options for the pipe of commands, and for marking the server's parts for nsys."""
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--nvtx", action="store_true")
    return parser


if __name__ == "__main__":
    run_server(Served(controlled(script_parser(child_parser())).parse_args()))
