"""Run a training script in a check: `python -I -m
bottleneck_lab.measure.kinds.input_pipeline.child …`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from types import ModuleType

from bottleneck_lab.measure.channel.messages import Loading, Ready
from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import Accelerator
from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples
from bottleneck_lab.measure.worker import load_module, serve_options


def prepared(entry: Path, data: Path, cache: Path) -> ModuleType:
    """Load the script, have it `prepare(data, cache)` if it can, and return it."""
    module = load_module(entry)
    cache.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "prepare"):
        module.prepare(data, cache)
    return module


def script_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options by which a script reaches its device and its data."""
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=Samples.from_option, required=True)
    return parser


def train(channel: Channel, options: argparse.Namespace) -> None:
    """Prepare, send Ready, and train on the device process at the other end of the channel."""
    cache = Path("cache").absolute()
    began = time.monotonic()
    channel.send(Loading())
    module = prepared(options.entry, options.data, cache)
    channel.send(Ready(time.monotonic() - began))
    accelerator = Accelerator(channel, Arena.attach(options.arena), options.samples)
    module.train(accelerator, options.data, cache)
    accelerator.finish()


if __name__ == "__main__":
    serve_options(script_parser, train)
