"""Capture a Triton Inference Server: its Python models capture themselves, each in its own process,
and their traces become one.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.kinds.http_server import nvtx
from bottleneck_lab.measure.kinds.http_server.child_profiled import capture
from bottleneck_lab.trace.kineto.reader import NOTES

LEARNERS = "learners_model"
"""The name of a model's own module while it is captured."""
_PROFILED = Path(__file__).with_name("model_profiled.py")
_WHEN = "when"
_READY, _TRACE = ".ready", ".json.gz"
LEAD_S, LOOK_S, WRITING_S = 0.2, 0.02, 30.0
"""From the order to the start of the window; between two checks for a file; and the longest that
processes may take to write.
"""


def put_under_profiler(repository: Path) -> None:
    """Make every Python model of a repository able to capture itself on command."""
    for model in repository.glob("*/1/model.py"):
        model.rename(model.with_stem(LEARNERS))
        shutil.copyfile(_PROFILED, model)


class Ranges(threading.local):
    """Marks the work of a thread, one range after another."""

    _open: Any = None

    def begin(self, name: str | None) -> None:
        """End the current range and begin this one; without a name none."""
        from torch.profiler import record_function

        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = record_function(name) if name else None
        if self._open is not None:
            self._open.__enter__()

    @contextmanager
    def instead(self, name: str, after: str) -> Iterator[None]:
        """Put the range `name` in place of the current one inside the `with`, and `after` behind it
        if a range was open before.
        """
        was_open = self._open is not None
        self.begin(name)
        try:
            yield
        finally:
            self.begin(after if was_open else None)


class Batches:
    """Marks the work of a thread on batches that overlap, each a coroutine: a stretch between two
    waits belongs to one batch, and between stretches the thread waits for all that are under way. A
    batch is in `preprocess` until it sends another model a request.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._sent: dict[int, bool] = {}
        self._running: int | None = None

    def request_sent(self) -> None:
        """Note that the running batch has sent a request to another model."""
        if self._running is not None:
            self._sent[self._running] = True

    async def mark(self, batch: Coroutine[Any, Any, Any]) -> Any:
        """Run a batch with its parts marked."""
        self._sent[id(batch)] = False
        return await _Marked(batch, self)

    @contextmanager
    def stretch(self, number: int) -> Iterator[None]:
        """Mark a batch from when it continues until it waits again or ends."""
        self._running = number
        self._ranges.begin("postprocess" if self._sent[number] else "preprocess")
        try:
            yield
        except BaseException:  # StopIteration too: the batch's end
            del self._sent[number]
            raise
        finally:
            self._running = None
            self._ranges.begin(self._waits_for())

    def _waits_for(self) -> str:
        if not self._sent:
            return "queue"
        if all(self._sent.values()):
            return "request to another model"
        return "preprocess"


@dataclass(frozen=True)
class _Marked:
    """An awaitable that runs a coroutine stretch by stretch: a coroutine itself has no hook for
    when it continues.
    """

    batch: Coroutine[Any, Any, Any]
    batches: Batches

    def __await__(self) -> Generator[Any, Any, Any]:
        move: Callable[[Any], Any] = self.batch.send
        value: Any = None
        try:
            while True:
                with self.batches.stretch(id(self.batch)):
                    awaited = move(value)
                try:
                    move, value = self.batch.send, (yield awaited)
                except BaseException as error:
                    move, value = self.batch.throw, error
        except StopIteration as end:
            return end.value


def capture_on_order(folder: Path, model: str) -> None:
    """Have this process capture all its threads, or show them to nsys, when `order` is called. A
    first capture, whose set-up takes seconds, is made here.
    """
    if not nvtx.wanted():
        capture(0.0, None)
    name = f"{model} {os.getpid()}"
    (folder / f"{name}{_READY}").touch()
    threading.Thread(target=_take, args=(folder, name), name="capture", daemon=True).start()


def _take(folder: Path, name: str) -> None:
    when = folder / _WHEN
    while not when.exists():
        time.sleep(LOOK_S)
    # The order names the moment: all processes begin at once, however late each reads it.
    begin_s, seconds = map(float, when.read_text().split())
    time.sleep(max(0.0, begin_s - time.monotonic()))
    unfinished = folder / f"{name}.unfinished{_TRACE}"
    if nvtx.wanted():
        nvtx.show(seconds)
        unfinished.touch()
    else:
        capture(seconds, unfinished)
    unfinished.rename(folder / f"{name}{_TRACE}")


def order(folder: Path, seconds: float) -> list[Path]:
    """Have all processes capture the same window of `seconds`. Returns their traces, once all are
    written. Raises TimeoutError if one is not.
    """
    # Renamed when it is whole: the processes read it as soon as it is there.
    unfinished = folder / f"{_WHEN}.unfinished"
    unfinished.write_text(f"{time.monotonic() + LEAD_S} {seconds}")
    unfinished.rename(folder / _WHEN)
    models = sorted(folder.glob(f"*{_READY}"))
    traces = [ready.with_name(f"{ready.stem}{_TRACE}") for ready in models]
    deadline = time.monotonic() + LEAD_S + seconds + WRITING_S
    while missing := [trace for trace in traces if not trace.exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no trace of the model {_model_of(missing[0])}")
        time.sleep(LOOK_S)
    return traces


def merge(traces: Iterable[Path], notes: list[str], merged: Path) -> None:
    """Merge the traces of several processes into one, with one origin of time and the processes
    named after their models. `notes`: sentences for reports of it.
    """
    whole: dict[str, Any] = {"traceEvents": []}
    for trace in traces:
        with gzip.open(trace, "rt", encoding="utf-8") as file:
            content = json.load(file)
        events = content.pop("traceEvents")
        whole = {**content, **whole}
        # Each process counts from a time of its own.
        later_us = (int(content["baseTimeNanoseconds"]) - int(whole["baseTimeNanoseconds"])) / 1000
        for event in events:
            if event.get("name") == "process_name":
                event["args"] = {"name": f"Triton: {_model_of(trace)}"}
            if "ts" in event:
                event["ts"] += later_us
        whole["traceEvents"] += events
    unfinished = merged.with_name(f"unfinished-{merged.name}")
    with gzip.open(unfinished, "wt", compresslevel=1, encoding="utf-8") as file:
        json.dump({**whole, NOTES: notes}, file)
    unfinished.rename(merged)


def _model_of(trace: Path) -> str:
    return trace.name.rpartition(" ")[0]
