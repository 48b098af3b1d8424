"""The process of a check in which a server runs: `python -I -m bottleneck_lab.measure.kinds.server.script …`."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from bottleneck_lab.measure.channel.messages import Done, Ready
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.requests.script import script_parser
from bottleneck_lab.measure.kinds.server.learner_api import Model
from bottleneck_lab.measure.worker import load_module, serve


def run_server(channel: Channel, options: argparse.Namespace) -> None:
    """Loads the server and has it listen; it is not to return."""
    module = load_module(options.entry)
    channel.send(Ready())
    model = Model(channel, Arena.attach(options.arena))
    module.serve(socket.socket(fileno=options.listener), model)
    channel.send(Done())


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--arena", type=int, required=True)
    options = script_parser(parser).parse_args()
    channel = Channel(socket.socket(fileno=options.socket))
    serve(channel, options.entry.parent, lambda: run_server(channel, options))


if __name__ == "__main__":
    main()
