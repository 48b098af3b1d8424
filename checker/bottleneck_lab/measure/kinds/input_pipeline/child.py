"""The process of a check in which a training script runs: `python -I -m
bottleneck_lab.measure.kinds.input_pipeline.child …`.
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from types import ModuleType

from bottleneck_lab.measure.channel.messages import Ready
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import Accelerator
from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples
from bottleneck_lab.measure.worker import load_module, serve


def prepared(entry: Path, data: Path, cache: Path) -> ModuleType:
    """The script, loaded, after what it does once: `prepare(data, cache)`, if it has one."""
    module = load_module(entry)
    cache.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "prepare"):
        module.prepare(data, cache)
    return module


def script_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds what a script needs to reach its device and its data."""
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=Samples.told, required=True)
    return parser


def train(channel: Channel, options: argparse.Namespace) -> None:
    """Prepares, says so, and trains against the device process at the other end of the channel."""
    cache = Path("cache").absolute()
    module = prepared(options.entry, options.data, cache)
    channel.send(Ready())
    accelerator = Accelerator(channel, Arena.attach(options.arena), options.samples)
    module.train(accelerator, options.data, cache)
    accelerator.finish()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    options = script_parser(parser).parse_args()
    channel = Channel(socket.socket(fileno=options.socket))
    serve(channel, options.entry.parent, lambda: train(channel, options))


if __name__ == "__main__":
    main()
