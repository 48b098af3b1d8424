"""The process that answers a lab's calls under torch.profiler: `python -m bottleneck_lab.measure.kinds.speedup.profiled …`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bottleneck_lab.measure.channel.wire import unpack_message
from bottleneck_lab.measure.kinds.profiling import child_parser, profiling, run_child
from bottleneck_lab.measure.worker import as_values, load_module


def calls(options: argparse.Namespace) -> None:
    """The function of a lab that answers calls, on inputs that lie ready in files."""
    from torch.profiler import record_function

    function = load_module(options.entry).load(options.device)
    files = sorted(options.inputs.glob("*.call"), key=lambda path: int(path.stem))
    with profiling(options.trace, options.schedule) as step:
        for file in files:
            message = unpack_message(file.read_bytes())
            inputs = message.values()
            with record_function("call"):
                as_values(function(*inputs))
            step()


def main() -> None:
    """Entry point."""
    parser = child_parser()
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    run_child(calls, parser.parse_args())


if __name__ == "__main__":
    main()
