"""Each time that a line of the user's own Python ran, with the lines that it called meanwhile."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from bottleneck_lab.analysis.host.lines import LIBRARY, line_tracks, without_folders
from bottleneck_lab.analysis.host.nesting import innermost_at, nest
from bottleneck_lab.analysis.rows import named, names_in
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import (
    HostTable,
    SmallInts,
    Timeline,
    concatenate,
    sort_table,
    take,
)

_NUMBER = re.compile(r"\(\d+\): ")


def find_visits(timeline: Timeline) -> HostTable:
    """Return a row for each time that a line ran in one call of its function: until another line of
    that call began, or the call ended.

    Recorded lines follow one another, so that a line which calls another is cut by it. Where no
    functions were recorded, as on an emulated device, nothing tells calls: rows are as recorded.
    """
    own = ~named(timeline, timeline.python, LIBRARY)
    visits = [take(timeline.python, slice(0))]
    for track in line_tracks(timeline):
        lines, of = take(timeline.python, timeline.python.thread == track), timeline.threads[track]
        thread = timeline.thread_number(of.rank, of.pid, of.tid.removeprefix(LINES_OF))
        frames = take(timeline.python, own & (timeline.python.thread == thread))
        visits.append(_of_calls(lines, frames, _calls_of(timeline, lines, frames)))
    return sort_table(concatenate(visits))


def _calls_of(timeline: Timeline, lines: HostTable, frames: HostTable) -> SmallInts:
    """Return the call of its function in which each line ran, as a row of `frames`; -1 for none."""
    # Lines have their own number, and functions the number of the line where they are defined.
    functions = np.zeros(len(timeline.strings), dtype=np.int64)
    numbers: dict[str, int] = {}
    for name in {*names_in(timeline, lines), *names_in(timeline, frames)}:
        function = _NUMBER.sub(": ", without_folders(timeline.strings[name]))
        functions[name] = numbers.setdefault(function, len(numbers))
    middles = (lines.start + lines.end) // 2  # the two clocks differ by a microsecond
    thread = frames.thread[:1].repeat(len(lines)) if len(frames) else lines.thread
    call, parent = innermost_at(frames, middles, thread), nest(frames).parent
    wrong = np.flatnonzero(call >= 0)
    while len(wrong):
        wrong = wrong[functions[frames.name[call[wrong]]] != functions[lines.name[wrong]]]
        call[wrong] = parent[call[wrong]]
        wrong = wrong[call[wrong] >= 0]
    return call


def _of_calls(lines: HostTable, frames: HostTable, call: SmallInts) -> HostTable:
    """Return the visits of one thread's lines, of which `call` is the row of `frames`."""
    if not (call >= 0).any():
        return lines
    order = np.lexsort((lines.start, call))
    lines, call = take(lines, order), call[order]
    # The recording of lines may end before the call does.
    ends = np.where(call >= 0, np.minimum(frames.end[call], lines.end.max()), lines.end)
    goes_on = (call[1:] == call[:-1]) & (call[1:] >= 0)
    ends[:-1][goes_on] = lines.start[1:][goes_on]
    same_line = goes_on & (lines.name[1:] == lines.name[:-1])
    visits, last = take(lines, np.append(True, ~same_line)), np.append(~same_line, True)
    return replace(visits, end=np.maximum(ends, lines.end)[last])
