"""The worker process of a `benchmark` lab: it calls the learner's code through the lab's harness,
which asks the verifier's machine.
"""

from __future__ import annotations

import argparse
import socket
import time
from pathlib import Path

from bottleneck_lab.measure.channel.messages import Answer, Ask, Call, Ready, Told, Value
from bottleneck_lab.measure.channel.wire import Channel, WireError
from bottleneck_lab.measure.worker import as_values, load_module, serve


def serve_trials(channel: Channel, entry: Path, harness: Path) -> None:
    """Load harness and entry once, then run trials until the verifier closes the channel. Raises
    WireError for an unexpected message.
    """
    began = time.monotonic()
    run, learners = load_module(harness).run, load_module(entry)
    loading_s = time.monotonic() - began

    def ask(*values: Value) -> list[Value]:
        channel.send(Ask(list(values)))
        message = channel.receive(None)
        if not isinstance(message, Told):
            raise WireError(f"{type(message).__name__} arrived instead of Told")
        return message.answer

    channel.send(Ready(loading_s))
    while True:
        message = channel.receive(None)
        if isinstance(message, Call):
            channel.send(Answer(as_values(run(learners, ask, *message.inputs))))


def main() -> None:
    """Entry point: `python -I -m bottleneck_lab.measure.kinds.benchmark.child …`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--harness", type=Path, required=True)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    channel = Channel(socket.socket(fileno=options.socket))
    serve(
        channel, options.entry.parent, lambda: serve_trials(channel, options.entry, options.harness)
    )


if __name__ == "__main__":
    main()
