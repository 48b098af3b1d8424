"""`lab run` and `lab profile` of measuring code: the lab's practice trials, in the learner's own
process and without a sandbox.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.channel.messages import Answer, Ask, Call, Told
from bottleneck_lab.measure.channel.wire import Channel, WireError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.emulated_row import emulated_row
from bottleneck_lab.measure.kinds.benchmark import BenchmarkSettings
from bottleneck_lab.measure.kinds.benchmark.bench import judge_settings
from bottleneck_lab.measure.kinds.benchmark.check import PROGRAM
from bottleneck_lab.measure.kinds.benchmark.trials import Judge, Row, Trial
from bottleneck_lab.measure.sandbox.children import OnLine, stream

HOST, DEVICE, STREAM = 1000, 0, 7


def run(context: Context[BenchmarkSettings], on_line: OnLine) -> int:
    """Plays the practice trials and prints a line for each; the exit status of the learner's
    process.
    """
    judge = cast(Judge, context.judge())

    def show(trial: Trial) -> None:
        if line := judge.practice_line(trial):
            on_line(line + "\n")

    with judge_settings(context) as settings:
        return _play(context, judge.practice(settings), show, on_line)


def profile(context: Context[BenchmarkSettings], trace: Path, on_line: OnLine) -> int:
    """Writes what host and device of the emulated machine did during one practice trial. Raises
    UsageError where there is no timeline.
    """
    if context.device != "virtual":
        raise UsageError(
            f"{context.lab.slug} can be captured on its emulated machine only, not on"
            f" `{context.device}`.",
            "Run `lab profile --device virtual`.",
        )
    judge = context.judge()
    if not hasattr(judge, "profiled"):
        raise UsageError(
            f"{context.lab.slug} has no timeline to capture; its evidence is the output of `lab"
            " run`.",
            "Run `lab run` and read its table.",
        )
    trial = judge.profiled(context.settings.judge)
    status = _play(context, [trial], lambda _trial: None, on_line)
    with gzip.open(trace, "wt", encoding="utf-8") as file:
        json.dump(_kineto(judge.rows(trial)), file)
    return status


def _play(
    context: Context[BenchmarkSettings],
    trials: Iterable[Trial],
    show: Callable[[Trial], None],
    on_line: OnLine,
) -> int:
    ours, theirs = Channel.pair()
    folder, harness = context.workspace, context.settings.harness
    command = [sys.executable, "-u", "-m", PROGRAM, "--entry", str(folder / context.lab.spec.entry)]
    command += ["--harness", str(folder / harness), "--socket", str(theirs.fileno())]
    channel = Channel(ours)
    server = threading.Thread(target=_serve, args=(channel, trials, show), daemon=True)
    server.start()
    try:
        status = stream(
            command, folder, context.janitor, on_line, context.environment(), (theirs.fileno(),)
        )
    finally:
        theirs.close()
    server.join()
    return status


def _serve(channel: Channel, trials: Iterable[Trial], show: Callable[[Trial], None]) -> None:
    """The machine's end. An exception in the learner's process is printed there and ends it."""
    with contextlib.suppress(WireError), contextlib.closing(channel):
        channel.receive(None)
        for trial in trials:
            channel.send(Call(list(trial.arguments)))
            while isinstance(message := channel.receive(None), Ask):
                channel.send(Told(list(trial.serve(message.question))))
            if not isinstance(message, Answer):
                return
            trial.finish(message.outputs)
            show(trial)


def _kineto(rows: Iterable[Row]) -> dict[str, Any]:
    """The rows as a trace in torch.profiler's format, each row marked as emulated."""
    return {
        "schemaVersion": 1,
        "emulated": "Modelled times on an emulated accelerator; not a capture of a GPU.",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": [
            *_labels(),
            *(_event(*row, correlation=number) for number, row in enumerate(rows)),
        ],
    }


def _labels() -> Iterator[dict[str, Any]]:
    for pid, name in ((HOST, "emulated host"), (DEVICE, "emulated GPU")):
        yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}


def _event(
    name: str, host: bool, begin_s: float, end_s: float, *, correlation: int
) -> dict[str, Any]:
    waits = host and name == "synchronize"
    category = ("cuda_runtime" if waits else "cpu_op") if host else "kernel"
    shown = (
        "cudaDeviceSynchronize" if waits else f"emulated: {name}"
    )  # the name by which readers of traces know a wait
    begin_us, end_us = 1e6 * begin_s, 1e6 * end_s
    if host:
        return emulated_row(category, shown, begin_us, end_us, HOST, HOST, correlation=correlation)
    where = {"device": DEVICE, "stream": STREAM}
    return emulated_row(
        category, shown, begin_us, end_us, DEVICE, STREAM, correlation=correlation, **where
    )
