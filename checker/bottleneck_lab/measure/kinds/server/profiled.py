"""The learner's inference server in the learner's own folder, for `lab run` and `lab profile`, with a model on the verifier's device."""

from __future__ import annotations

import argparse
import socket

from bottleneck_lab.measure.channel.messages import Ready
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.profiling import child_parser
from bottleneck_lab.measure.kinds.requests.profiled import run_server
from bottleneck_lab.measure.kinds.server.learner_api import Model
from bottleneck_lab.measure.worker import load_module


def serve(options: argparse.Namespace) -> None:
    """Loads the server and has it listen."""
    import torch

    module = load_module(options.entry)
    channel = Channel(socket.socket(fileno=options.socket))
    channel.send(Ready())
    model = Model(channel, Arena.attach(options.arena), torch.profiler.record_function)
    module.serve(socket.socket(fileno=options.listener), model)


def main() -> None:
    """Entry point."""
    parser = child_parser()
    parser.add_argument("--arena", type=int, required=True)
    run_server(serve, parser)


if __name__ == "__main__":
    main()
