"""Which line of the program ran when: `sys.settrace` on the program's own files, written into the
trace as a track of its own.

torch.profiler names the functions on the stack, each by the line where it is defined; which line of
it was running is not in its trace. Stands alone, like script.py.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import shutil
import sys
import sysconfig
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import IO, Any

# What the track's thread is called, with the number of the thread that ran the lines: what the
# reader knows it by.
TRACK = "lines of"

MOST_ROWS = 1_000_000

# No operator fits into less: such a line counts to the one before it.
SHORTEST_NS = 1_000

_EVENTS = b'"traceEvents": ['
_SCRIPT = str(Path(__file__).with_name("script.py"))
_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class Lines:
    """Records the lines of the calling thread from `start` to `stop`."""

    def __init__(self) -> None:
        self._times, self._places = array("q"), array("q")
        self._numbers: dict[tuple[CodeType, int], int] = {}
        self._own: dict[CodeType, bool] = {}
        self._thread = 0

    def start(self) -> None:
        """Start recording, also in the functions that are running already."""
        self._thread = threading.get_native_id()
        # settrace alone would follow only functions called from now on.
        frame: FrameType | None = sys._getframe(1)
        while frame:
            if self._is_own(frame.f_code):
                frame.f_trace = self._within
                if not self._times:
                    self._note(frame)
            frame = frame.f_back
        sys.settrace(self._called)

    def stop(self) -> None:
        """End the last line."""
        sys.settrace(None)
        self._note(None)

    def _is_own(self, code: CodeType) -> bool:
        if code not in self._own:
            name = code.co_filename
            # Code without a file, such as `<string>`, and installed packages are not the
            # program's own.
            foreign = name.startswith(("<", *_LIBRARIES)) or "site-packages" in name
            self._own[code] = not foreign and name not in (__file__, _SCRIPT)
        return self._own[code]

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if self._is_own(frame.f_code):
            return self._within
        return None

    def _within(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self._note(frame)
        elif event == "return":  # the rest of the caller's line goes on
            back = frame.f_back
            while back and not self._is_own(back.f_code):
                back = back.f_back
            self._note(back)
        return self._within

    def _note(self, frame: FrameType | None) -> None:
        line = -1
        if frame is not None and frame.f_lineno:
            line = self._numbers.setdefault((frame.f_code, frame.f_lineno), len(self._numbers))
        now, times, places = time.time_ns(), self._times, self._places
        # Too short a stretch counts to the one before it, and takes no room.
        if len(times) > 1 and now - times[-1] < SHORTEST_NS and places[-2] >= 0:
            times.pop()
            places.pop()
        if len(times) >= MOST_ROWS:
            sys.settrace(None)
            line = -1  # or the last line would seem to run to the end
        if not places or places[-1] != line:
            times.append(now)
            places.append(line)

    def events(self, base_ns: int) -> Iterator[dict[str, Any]]:
        """Yield the track: one event a stretch in which one line ran. Times are µs after `base_ns`,
        as in the trace.
        """
        where = {"pid": os.getpid(), "tid": f"{TRACK} {self._thread}"}
        yield {
            "ph": "M",
            "name": "thread_name",
            **where,
            "ts": 0,
            "args": {"name": "lines of your Python"},
        }
        names = [
            f"{Path(code.co_filename).name}({number}): {code.co_name}"
            for code, number in self._numbers
        ]
        for start, end, line in self._stretches():
            ts, duration = (start - base_ns) / 1000, (end - start) / 1000
            yield {
                "ph": "X",
                "cat": "python_function",
                "name": names[line],
                **where,
                "ts": ts,
                "dur": duration,
            }

    def _stretches(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, place); too short a stretch is added to the one before it."""
        start = end = 0
        current = -1
        for at, until, line in zip(self._times, self._times[1:], self._places, strict=False):
            if line == current or (until - at < SHORTEST_NS and current >= 0):
                end = until
                continue
            if current >= 0:
                yield start, end, current
            start, end, current = at, until, line
        if current >= 0:
            yield start, end, current


def steps(ends_ns: list[int], base_ns: int) -> Iterator[dict[str, Any]]:
    """Yield a range a step, from the end of one optimizer step to that of the next. What follows
    the last is not a step.
    """
    where = {"pid": os.getpid(), "tid": threading.get_native_id()}
    for number, (start, end) in enumerate(itertools.pairwise(ends_ns), 1):
        ts, duration = (start - base_ns) / 1000, (end - start) / 1000
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"step {number}",
            **where,
            "ts": ts,
            "dur": duration,
        }


def compress(trace: Path, target: Path, lines: Lines | None, ends_ns: list[int]) -> None:
    """Write the trace gzipped, quickly, with the track of lines and the steps among its events."""
    # The time since 1970 that the trace's own times are after. It stands before or after the
    # events.
    with trace.open("rb") as file:
        ends = file.read(1 << 16)
        file.seek(max(0, trace.stat().st_size - (1 << 16)))
        ends += file.read()
    match = re.search(rb'"baseTimeNanoseconds": (\d+)', ends)
    base = 0
    if match:
        base = int(match[1])
    with trace.open("rb") as source, gzip.open(target, "wb", compresslevel=1) as out:
        _add(
            source, out, itertools.chain(steps(ends_ns, base), lines.events(base) if lines else ())
        )
        shutil.copyfileobj(source, out, 4 << 20)


def _add(source: IO[bytes], out: gzip.GzipFile, events: Iterator[dict[str, Any]]) -> None:
    """Copy the trace up to its first event and put `events` there; without such a place, none."""
    head = source.read(1 << 20)
    at = head.find(_EVENTS)
    if at < 0:
        out.write(head)
        return
    at += len(_EVENTS)
    out.write(head[:at])
    for event in events:
        out.write(json.dumps(event).encode() + b",\n")
    out.write(head[at:])
