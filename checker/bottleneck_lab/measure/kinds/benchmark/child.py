"""The worker process of a `benchmark` lab: it calls the learner's code through the lab's harness,
which asks the verifier's machine.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bottleneck_lab.measure.channel.messages import Answer, Ask, Call, Ready, Reply, Value
from bottleneck_lab.measure.channel.wire import Channel, WireError
from bottleneck_lab.measure.worker import as_values, load_checked, load_module, serve


def serve_trials(
    channel: Channel, entry: Path, harness: Path, *, own_process: bool = False
) -> None:
    """Load harness and entry once, then run trials, each in its `own_process` if that is wanted,
    until the verifier closes the channel. Raises WireError for an unexpected message.
    """
    began = time.monotonic()
    run, learners = load_module(harness).run, load_checked(channel, entry)
    loading_s = time.monotonic() - began

    def ask(*values: Value) -> list[Value]:
        channel.send(Ask(list(values)))
        message = channel.receive(None)
        if not isinstance(message, Reply):
            raise WireError(f"{type(message).__name__} arrived instead of Reply")
        return message.answer

    def answer(call: Call) -> None:
        channel.send(Answer(as_values(run(learners, ask, *call.inputs))))

    channel.send(Ready(loading_s))
    while True:
        message = channel.receive(None)
        if not isinstance(message, Call):
            continue
        if own_process:
            run_apart(channel, entry.parent, partial(answer, message))
        else:
            answer(message)


def run_apart(channel: Channel, folder: Path, work: Callable[[], None]) -> None:
    """Do the work in a fork of this process, which takes with it what the learner's code leaves in
    memory: the next trial finds the modules as they were loaded. A fork that fails ends this
    process with the same status.
    """
    if not (pid := os.fork()):
        np.random.seed()  # `random` does this by itself
        serve(channel, folder, work)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        os._exit(status if status > 0 else 128 - status)  # a signal as a shell reports it


def main() -> None:
    """Entry point: `python -I -m bottleneck_lab.measure.kinds.benchmark.child …`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--harness", type=Path, required=True)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--own-process", action="store_true")
    options = parser.parse_args()
    channel = Channel(socket.socket(fileno=options.socket))
    serve(
        channel,
        options.entry.parent,
        lambda: serve_trials(
            channel, options.entry, options.harness, own_process=options.own_process
        ),
    )


if __name__ == "__main__":
    main()
