"""Record what a DataLoader's worker processes do, which torch.profiler does not see: a range a
batch, and a sampled stack.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bottleneck_lab.measure.kinds.profiling import edited_trace

INTERVAL_S = 0.005
"""Seconds between two samples of the stack: 200 a second cost a worker less than 1% of its time."""

DEPTH = 6
"""Calls of the data set's own code that are kept of a stack, the outermost first."""

Row = tuple[str, str, int, int]
"""Category and name as in a Chrome trace; begin and end, ns of Unix time."""


@contextmanager
def recorded_workers(folder: Path) -> Iterator[None]:
    """Have every worker that a DataLoader forks inside the `with` write its rows to `folder`, each
    into a file of its own.
    """
    from torch.utils.data import get_worker_info

    # No public hook of torch is called in a worker for each batch.
    fetch: Any = importlib.import_module("torch.utils.data._utils.fetch")

    folder.mkdir(parents=True, exist_ok=True)
    kinds: tuple[Any, ...] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    plain: list[Callable[..., Any]] = [kind.fetch for kind in kinds]
    # Made before the fork: a worker inherits it with the patched methods.
    recorder = _Recorder(folder)

    def watched(fetching: Callable[..., Any]) -> Callable[..., Any]:
        def fetch_batch(self: Any, indices: Any) -> Any:
            worker = get_worker_info()
            if worker is None:  # the main process, which torch.profiler records
                return fetching(self, indices)
            with recorder.batch(worker.id, len(indices)):
                return fetching(self, indices)

        return fetch_batch

    for kind, fetching in zip(kinds, plain, strict=True):
        kind.fetch = watched(fetching)
    try:
        yield
    finally:
        for kind, fetching in zip(kinds, plain, strict=True):
            kind.fetch = fetching


class _Recorder:
    """The rows of one worker; made before the fork, used after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._rows: list[Row] = []
        self._stack: list[tuple[str, int]] = []
        self._thread = 0
        self._running = False

    @contextmanager
    def batch(self, worker: int, samples: int) -> Iterator[None]:
        """Record one batch, and append it to the worker's file when it is done."""
        # At once, not at exit: a DataLoader kills workers that it no longer needs.
        if self._pid != os.getpid():
            # Threads do not survive a fork, so each worker starts its own sampler.
            self._pid, self._thread = os.getpid(), threading.get_ident()
            self._rows, self._stack = [], []
            threading.Thread(target=self._sample, daemon=True).start()
        start = time.time_ns()
        self._running = True
        try:
            yield
        finally:
            self._running = False
            end = time.time_ns()
            self._close(0, end)
            rows, self._rows = self._rows, []
            rows.insert(0, ("user_annotation", f"batch of {samples}", start, end))
            record = {"worker": worker, "thread": threading.get_native_id(), "rows": rows}
            with (self._folder / f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")

    def _sample(self) -> None:
        while True:
            time.sleep(INTERVAL_S)
            frame = sys._current_frames().get(self._thread)
            # Between two batches a worker waits for indices: that is not the data set's time.
            if self._running and frame is not None:
                self._note(_own_calls(frame), time.time_ns())

    def _note(self, calls: list[str], now: int) -> None:
        """Continue the frames that are still on the stack, end the others, begin the new ones."""
        same = 0
        while same < min(len(calls), len(self._stack)) and self._stack[same][0] == calls[same]:
            same += 1
        # A call began or ended some time since the last sample: half an interval ago on average.
        then = now - int(INTERVAL_S * 5e8)
        self._close(same, then)
        self._stack += [(name, then) for name in calls[same:]]

    def _close(self, depth: int, now: int) -> None:
        for name, begun in self._stack[depth:]:
            self._rows.append(("python_function", name, begun, max(now, begun)))
        del self._stack[depth:]


def _own_calls(frame: FrameType | None) -> list[str]:
    """Return the stack from the data set's first call on, each frame as `file.py(line): function`
    with the line that is running.
    """
    calls = []
    while frame is not None:
        path = frame.f_code.co_filename
        if path == __file__ or path.endswith("torch/utils/data/_utils/fetch.py"):
            break
        # `train.py` for a program's own file, `PIL/Image.py` for a package's.
        parts = Path(path).parts
        if "site-packages" in parts:
            path = "/".join(parts[parts.index("site-packages") + 1 :])
        else:
            path = parts[-1]
        calls.append(f"{path}({frame.f_lineno}): {frame.f_code.co_name}")
        frame = frame.f_back
    return calls[::-1][:DEPTH]


def add_worker_rows(trace: Path, folder: Path) -> None:
    """Add the workers' records in `folder` to `trace`, a gzipped Chrome trace; rows are cut to what
    the trace spans.
    """
    records = []
    for file in sorted(folder.glob("*.jsonl")):
        records += [(int(file.stem), json.loads(line)) for line in file.read_text().splitlines()]
    if not records or not trace.is_file():
        return
    with edited_trace(trace) as content:
        events = content["traceEvents"]
        spans = [event for event in events if event.get("ph") == "X"]
        first_us = min(event["ts"] for event in spans)
        last_us = max(event["ts"] + event["dur"] for event in spans)
        base_ns = int(content.get("baseTimeNanoseconds", 0))
        for pid, batch in records:
            thread = {"pid": pid, "tid": batch["thread"]}
            name = {"name": f"DataLoader worker {batch['worker']}"}
            events.append({"name": "thread_name", "ph": "M", "args": name} | thread)
            for category, name, begin_ns, end_ns in batch["rows"]:
                begin_us = max(first_us, (begin_ns - base_ns) / 1e3)
                end_us = min(last_us, (end_ns - base_ns) / 1e3)
                if end_us > begin_us:
                    row = {"ph": "X", "cat": category, "name": name, "args": {}} | thread
                    events.append(row | {"ts": begin_us, "dur": end_us - begin_us})
