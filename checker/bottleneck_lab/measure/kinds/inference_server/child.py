"""Run an inference server in a check: `python -I -m
bottleneck_lab.measure.kinds.inference_server.child …`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import socket
import time
from pathlib import Path

from bottleneck_lab.measure.channel.messages import Begin, Done, Loading, Ready
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.http_server.child import script_parser
from bottleneck_lab.measure.kinds.inference_server.learner_api import Model
from bottleneck_lab.measure.kinds.inference_server.triton.gateway import Gateway
from bottleneck_lab.measure.kinds.inference_server.triton.server import (
    MODELS,
    Tritonserver,
    device_fds,
)
from bottleneck_lab.measure.worker import load_checked, serve_options


def server_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options of an inference server: its device, and the environment and port of a Triton
    server if one serves.
    """
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--port", type=int, default=0)
    return script_parser(parser)


def checked_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options of a server in a check. `held`: it loads no code before it is told to."""
    parser.add_argument("--device", required=True)
    parser.add_argument("--held", action="store_true")
    return server_parser(parser)


def run_server(channel: Channel, options: argparse.Namespace) -> None:
    """Load the server and have it listen; it must not return."""
    if options.held:
        hold(channel, options)
    listener = socket.socket(fileno=options.listener)
    if options.environment:
        channel.send(Loading())
        channel.send(Ready())
        gateway_of(options).serve(listener)
    else:
        began = time.monotonic()
        module = load_checked(channel, options.entry)
        channel.send(Ready(time.monotonic() - began))
        module.serve(listener, Model(channel, Arena.attach(options.arena)))
    channel.send(Done())


def hold(channel: Channel, options: argparse.Namespace) -> None:
    """Wait for the verifier's word before any code of the learner's is loaded. For a lab on a GPU,
    whose servers need PyTorch, it is imported before.
    """
    if options.device == "cuda" and not options.environment:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    # That it waits has to be seen: an import may not run beside a measurement.
    channel.send(Ready())
    message = channel.receive(None)
    if not isinstance(message, Begin):
        raise TypeError(f"{type(message).__name__} came before Begin")


def gateway_of(options: argparse.Namespace, *, captured: bool = False) -> Gateway:
    """Return a gateway to Triton on the model repository beside the entry. `captured`: its models
    can be captured.
    """
    fds = device_fds(options.socket, options.arena)
    models = options.entry.parent / MODELS
    return Gateway(
        Tritonserver(options.environment, models, fds, port=options.port, captured=captured)
    )


if __name__ == "__main__":
    serve_options(checked_parser, run_server)
