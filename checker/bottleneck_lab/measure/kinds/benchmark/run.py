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
from bottleneck_lab.measure.channel.messages import Answer, Ask, Call, Ready, Reply
from bottleneck_lab.measure.channel.wire import Channel, WireError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.emulated_row import emulated_row
from bottleneck_lab.measure.kinds.benchmark import BenchmarkSettings
from bottleneck_lab.measure.kinds.benchmark.bench import judge_settings
from bottleneck_lab.measure.kinds.benchmark.session import PROGRAM, child_options
from bottleneck_lab.measure.kinds.benchmark.trials import Judge, Row, Trial
from bottleneck_lab.measure.sandbox.children import OnLine, stream
from bottleneck_lab.trace.names import MODELLED_HOST

HOST, DEVICE, STREAM = 1000, 0, 7


def run(context: Context[BenchmarkSettings], on_line: OnLine) -> int:
    """Play the practice trials and print a line for each, and one on all of them at the end. Of a
    trial that ran out of machine time its line stands in place of the traceback. Returns the exit
    status of the learner's process.
    """
    judge, begun, done = cast(Judge, context.judge()), list[Trial](), list[Trial]()
    ended = False

    def show(trial: Trial) -> None:
        done.append(trial)
        if line := judge.practice_line(trial):
            on_line(line + "\n")

    def begin(trials: Iterable[Trial]) -> Iterator[Trial]:
        for trial in trials:
            begun.append(trial)
            yield trial

    def tell(line: str) -> None:
        nonlocal ended
        ended = ended or (line.startswith("Traceback") and bool(begun) and begun[-1].late)
        if not ended:
            on_line(line)

    with judge_settings(context) as settings:
        status = _play(context, begin(judge.practice(settings)), show, tell)
        if status and ended:
            on_line(judge.practice_line(begun[-1]) + "\n")
        if not status:
            on_line(f"\n{judge.practice_summary(done, settings)}\n")
    return status


def profile(context: Context[BenchmarkSettings], trace: Path, on_line: OnLine) -> int:
    """Write to `trace` what host and device of the emulated machine did in one practice trial.
    Returns the exit status. Raises UsageError where there is no timeline.
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
        json.dump(kineto_trace(judge.rows(trial)), file)
    return status


def _play(
    context: Context[BenchmarkSettings],
    trials: Iterable[Trial],
    show: Callable[[Trial], None],
    on_line: OnLine,
) -> int:
    ours, theirs = Channel.pair()
    folder = context.workspace
    command = [sys.executable, "-u", "-m", PROGRAM]
    command += child_options(context, folder, theirs.fileno())
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
    """Serve the machine's end. An exception in the learner's process ends it, and is printed
    there.
    """
    with contextlib.suppress(WireError), contextlib.closing(channel):
        while not isinstance(channel.receive(None), Ready):
            pass  # it says first that it begins to load
        for trial in trials:
            channel.send(Call(list(trial.arguments)))
            while isinstance(message := channel.receive(None), Ask):
                channel.send(Reply(list(trial.serve(message.question))))
            if not isinstance(message, Answer):
                return
            trial.finish(message.outputs)
            show(trial)


def kineto_trace(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the rows as a trace in torch.profiler's format, each row marked as emulated."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in ((HOST, "emulated host"), (DEVICE, "emulated GPU"))
    ]
    for number, (name, on_host, begin_s, end_s) in enumerate(rows):
        times = (1e6 * begin_s, 1e6 * end_s)
        ids = {"correlation": number}
        if not on_host:
            ids |= {"device": DEVICE, "stream": STREAM}
            row = emulated_row("kernel", f"emulated: {name}", *times, DEVICE, STREAM, **ids)
        elif name == "synchronize":
            # This is the name by which readers of traces know a wait.
            row = emulated_row("cuda_runtime", "cudaDeviceSynchronize", *times, HOST, HOST, **ids)
        else:
            row = emulated_row("cpu_op", f"emulated: {name}", *times, HOST, HOST, **ids)
        events.append(row)
    return {
        "schemaVersion": 1,
        "emulated": "Modelled times on an emulated accelerator; not a capture of a GPU.",
        MODELLED_HOST: 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": events,
    }
