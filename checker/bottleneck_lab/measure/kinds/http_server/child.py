"""Run a server in a check: `python -I -m bottleneck_lab.measure.kinds.http_server.child …`."""

from __future__ import annotations

import argparse
import socket
import time

from bottleneck_lab.measure.channel.messages import Done, Ready
from bottleneck_lab.measure.channel.wire import Channel
from bottleneck_lab.measure.worker import load_checked, serve_options


def script_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options by which a server reaches the verifier and its clients."""
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--listener", type=int, required=True)
    return parser


def run_server(channel: Channel, options: argparse.Namespace) -> None:
    """Load the server and have it listen; it must not return."""
    began = time.monotonic()
    module = load_checked(channel, options.entry)
    channel.send(Ready(time.monotonic() - began))
    module.serve(socket.socket(fileno=options.listener))
    channel.send(Done())


if __name__ == "__main__":
    serve_options(script_parser, run_server)
