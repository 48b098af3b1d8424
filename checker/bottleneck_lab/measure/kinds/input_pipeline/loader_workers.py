"""What happens inside a DataLoader's worker processes, which torch.profiler does not see: a range a
batch, and a sampled stack.
"""

from __future__ import annotations

import gzip
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

INTERVAL_S = 0.005
"""Seconds between two samples of the stack: 200 a second cost a worker less than 1% of its time."""

DEPTH = 6
"""Calls of the data set's own code that are kept of a stack, the outermost first."""

Row = tuple[str, str, int, int]
"""Category and name as in a Chrome trace; begin and end, ns of Unix time."""


@contextmanager
def recorded_workers(folder: Path) -> Iterator[None]:
    """Until the block ends, every worker that a DataLoader forks writes its rows into its own file
    in `folder`.
    """
    from torch.utils.data import get_worker_info

    fetch: Any = importlib.import_module(
        "torch.utils.data._utils.fetch"
    )  # there is no public place to look from

    folder.mkdir(parents=True, exist_ok=True)
    kinds: tuple[Any, ...] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    plain: list[Callable[..., Any]] = [kind.fetch for kind in kinds]
    recorder = _Recorder(folder)

    def watched(fetching: Callable[..., Any]) -> Callable[..., Any]:
        def fetch_batch(self: Any, indices: Any) -> Any:
            worker = get_worker_info()
            if worker is None:  # in the main process torch.profiler sees it
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
        """Records one batch, and writes it down when it is done: a worker is killed when it is no
        longer needed.
        """
        self._begin()
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
            written = {"worker": worker, "thread": threading.get_native_id(), "rows": rows}
            with (self._folder / f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(written) + "\n")

    def _begin(self) -> None:
        """Starts the sampling thread, once in each process."""
        if self._pid != os.getpid():
            self._pid, self._thread = os.getpid(), threading.get_ident()
            self._rows, self._stack = [], []
            threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            time.sleep(INTERVAL_S)
            frame = sys._current_frames().get(self._thread)
            if self._running and frame is not None:
                self._note(_own_calls(frame), time.time_ns())

    def _note(self, calls: list[str], now: int) -> None:
        """Frames still on the stack continue; the others are taken to have ended half a sample ago."""
        same = 0
        while same < min(len(calls), len(self._stack)) and self._stack[same][0] == calls[same]:
            same += 1
        then = now - int(INTERVAL_S * 5e8)
        self._close(same, then)
        self._stack += [(name, then) for name in calls[same:]]

    def _close(self, depth: int, now: int) -> None:
        for name, begun in self._stack[depth:]:
            self._rows.append(("python_function", name, begun, max(now, begun)))
        del self._stack[depth:]


def _own_calls(frame: FrameType | None) -> list[str]:
    """The stack from the data set's first call on, each as `file.py(line): function`, the line that
    is running.
    """
    calls = []
    while frame is not None:
        path = frame.f_code.co_filename
        if path == __file__ or path.endswith("torch/utils/data/_utils/fetch.py"):
            break
        calls.append(f"{_short(path)}({frame.f_lineno}): {frame.f_code.co_name}")
        frame = frame.f_back
    return calls[::-1][:DEPTH]


def _short(path: str) -> str:
    """`train.py` for a program's own file, `PIL/Image.py` for a package's."""
    parts = Path(path).parts
    return "/".join(
        parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else parts[-1:]
    )


def add_worker_rows(trace: Path, folder: Path) -> None:
    """Writes what the workers recorded into `trace`, a gzipped Chrome trace, where it lies within
    what the trace spans.
    """
    files = sorted(folder.glob("*.jsonl"))
    found = [
        (int(file.stem), json.loads(line))
        for file in files
        for line in file.read_text().splitlines()
    ]
    if not found or not trace.is_file():
        return
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        content = json.load(file)
    spans = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    low, high = (
        min(event["ts"] for event in spans),
        max(event["ts"] + event["dur"] for event in spans),
    )
    base_ns = int(content.get("baseTimeNanoseconds", 0))
    for pid, batch in found:
        place = {"pid": pid, "tid": batch["thread"]}
        for category, name, start, end in batch["rows"]:
            begin, stop = max(low, (start - base_ns) / 1e3), min(high, (end - base_ns) / 1e3)
            if stop > begin:
                row = {
                    "ph": "X",
                    "cat": category,
                    "name": name,
                    "ts": begin,
                    "dur": stop - begin,
                    "args": {},
                }
                content["traceEvents"].append(row | place)
        label = {
            "name": "thread_name",
            "ph": "M",
            "args": {"name": f"DataLoader worker {batch['worker']}"},
        }
        content["traceEvents"].append(label | place)
    with gzip.open(trace, "wt", encoding="utf-8", compresslevel=5) as file:
        json.dump(content, file)
