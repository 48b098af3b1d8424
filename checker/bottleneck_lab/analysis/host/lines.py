"""The lines of the user's own Python that the time goes to, with the operators that they call and
the backward of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.backward import (
    Backward,
    forward_operator,
    trace_backward,
    undone_operators,
)
from bottleneck_lab.analysis.host.nesting import innermost_at, outermost
from bottleneck_lab.analysis.host.operators import (
    OPERATOR,
    PYTHON,
    RUNTIME,
    CallTree,
    build_calls,
    nearest_above,
)
from bottleneck_lab.analysis.host.workers import worker_threads
from bottleneck_lab.analysis.rows import look_up, named, numbers_in, union_of
from bottleneck_lab.analysis.steps.window import host_window
from bottleneck_lab.trace.names import LINES_OF, STEP_NAME
from bottleneck_lab.trace.timeline import (
    Floats64,
    HostTable,
    Ints,
    SmallInts,
    Timeline,
    take,
)

LIBRARY = re.compile(
    r"(?:^|/)(?:torch|torchvision|numpy|PIL|threading|contextlib|site-packages|dist-packages"
    r"|lib/python3)[/.(]|^<|^nn\.Module|^built-in"
    # Python's own, of which a profiler cuts the path to them
    r"|^(?:abc|ast|codecs|collections|concurrent|copyreg|enum|functools|importlib|inspect|json"
    r"|linecache|logging|multiprocessing|os|pathlib|pickle|posixpath|re|shutil|socket|subprocess"
    r"|tempfile|typing|warnings|weakref|zipfile)[/.(]"
)
_ENGINE = re.compile(r"^autograd::")
_AT_LINE = re.compile(r"\(\d+\): ")
_FOLDERS = re.compile(r"^[^()]*/")

CLOCKS_DIFFER_NS = 1_000
"""The clocks of lines and of operators differ by so much."""
NO_OPERATORS = np.empty(0, dtype=np.int32)

LINE = re.compile(r"(.+)\((\d+)\): (.+)$")
"""The name of a line of the user's own Python, "train.py(31): train": file, number, function."""
NAMED_SHARE = 0.3
"""A function is named as the place of a loss where it ran for this share (0-1) of it or more."""
NAMED_LINES_SHARE = 0.5
"""Its lines are the fewest that took more than this share (0-1) of its time."""


class LineRow(msgspec.Struct, frozen=True):
    """A line of the user's own Python, with the time in it and not in a deeper such line, over all
    steps.

    `exact`: the very line that ran, "file.py(line): function", as captures of `lab profile --stack`
    hold it. Otherwise the function, by the line where it is defined, or by none where it ran all
    the while. `operators`: calls of operators from there that no other operator encloses (the
    backward's are none), and `operator_ns` their time on the host; `backward_ns`: the host's time
    in their backward; `device_ns`: work launched while the line ran, and by the backward of what
    ran, `backward_device_ns`. The line that calls `backward()` has what is traced to no other.
    """

    line: str
    calls: int
    host_ns: int
    device_ns: int
    exact: bool = False
    operators: int = 0
    operator_ns: int = 0
    backward_ns: int = 0
    backward_device_ns: int = 0
    rank: int = -1
    """Of exact lines; functions are summed over all ranks."""


def find_lines(timeline: Timeline, calls: CallTree, top: int = 30) -> list[LineRow]:
    """Return the user's own lines by the longer of their time on the device and on the host. Empty
    unless the capture was made with stacks.
    """
    if not len(timeline.python):
        return []
    rows: list[LineRow] = []
    tracks = _tracks(timeline)
    if tracks:
        charges = _charges(timeline, calls, tracks)
    for track, threads in tracks:
        rows += _of_track(timeline, calls, charges, track, threads)
    rows = rows or _of_functions(timeline, calls)
    return sorted(rows, key=lambda row: -max(row.device_ns, row.host_ns + row.backward_ns))[:top]


def longest_line(timeline: Timeline, rank: int) -> iv.Intervals:
    """Return when a rank's host was on the line that takes it longest within its steps; where no
    lines were recorded, when it was in operators on the thread on which they take longest.
    """
    python, operators = timeline.python, timeline.operators
    window = host_window(timeline, rank)
    rows = take(python, np.isin(python.thread, line_tracks(timeline)) & (python.rank == rank))
    if len(rows):
        lengths = np.minimum(rows.end, window.end) - np.maximum(rows.start, window.start)
        totals = np.bincount(rows.name, weights=np.maximum(lengths, 0))
        mine = rows.name == totals.argmax()
        return iv.clip(iv.union(rows.start[mine], rows.end[mine]), *window)
    # A backward has a thread of its own, so that it is told from the rest even so.
    longest = iv.NONE
    own = take(operators, operators.rank == rank)
    for thread in numbers_in(own.thread, len(timeline.threads) + 1):
        mine = operators.thread == thread
        covered = iv.clip(union_of(operators, mine), *window)
        longest = max(longest, covered, key=lambda times: times.total)
    return longest


def lines_at(timeline: Timeline, rows: HostTable) -> SmallInts:
    """Return the name of the user's own line that ran at each row of a host table, -1 where that
    was not recorded. On a thread of the backward's own it is the line that waits for the backward.
    """
    names = np.broadcast_to(np.int32(-1), len(rows))  # takes no memory
    for track, threads in _tracks(timeline):
        lines = take(timeline.python, timeline.python.thread == track)
        if len(lines) and threads:
            # Each row is on one thread, so at most one track has a name for it; -1 gives way.
            names = np.maximum(names, _line_of(lines, rows, np.isin(rows.thread, threads)))
    return names


def calling_lines(timeline: Timeline) -> SmallInts:
    """Return the name of the user's own line that called each operator, -1 where that was not
    recorded. Of the backward's, inside which a checkpoint may run lines of the forward again, it is
    the line that ran when they began.
    """
    operators = timeline.operators
    lines = lines_at(timeline, operators)
    engine = named(timeline, operators, _ENGINE)
    return np.where(engine, _lines_at_begin(timeline), lines) if engine.any() else lines


def _lines_at_begin(timeline: Timeline) -> SmallInts:
    operators = timeline.operators
    return lines_at(timeline, replace(operators, end=operators.start + 2 * CLOCKS_DIFFER_NS))


def undone_lines(timeline: Timeline) -> SmallInts:
    """Return the name of the line of the forward that each call of the runtime undoes, -1 for calls
    of no backward and where that was not recorded.
    """
    tracks = _tracks(timeline)
    if not tracks or not len(timeline.runtime):
        return np.broadcast_to(np.int32(-1), len(timeline.runtime))
    calls = build_calls(timeline, python=False)
    charges, rows = _charges(timeline, calls, tracks), calls.rows(RUNTIME)
    return np.where(charges.traced[rows], charges.line[rows], np.int32(-1))


def code_at(timeline: Timeline, moments: Ints, threads: SmallInts) -> list[str]:
    """Return where the program was at each moment (ns) on its thread: the user's own line where
    lines were recorded, else their function, else the outermost operator; empty if none of these
    was recorded. Files are named without their folders.
    """
    nothing = np.zeros(len(moments), dtype=np.int32)
    points = HostTable(
        start=moments, end=moments, name=nothing, rank=nothing, thread=threads, correlation=moments
    )
    lines = lines_at(timeline, points)
    texts = [
        without_folders(timeline.strings[name]) if name >= 0 else "" for name in lines.tolist()
    ]
    # Where no line was recorded: the frames of the user's own functions, then the operators that
    # no other encloses.
    own = ~named(timeline, timeline.python, LIBRARY)
    functions, whole = take(timeline.python, own), _all_along(timeline)[own].tolist()
    function_names = [
        _called(without_folders(name), open_all_along)
        for name, open_all_along in zip(timeline.names(functions), whole, strict=True)
    ]
    operators = timeline.operators
    enclosing = take(operators, outermost(operators))
    for table, names in (
        (functions, function_names),
        (enclosing, timeline.names(enclosing)),
    ):
        rest = np.array([i for i, text in enumerate(texts) if not text], dtype=np.int64)
        if not len(rest) or not len(table):
            continue
        rows = innermost_at(table, moments[rest], threads[rest])
        for i, row in zip(rest[rows >= 0].tolist(), rows[rows >= 0].tolist(), strict=True):
            texts[i] = names[row]
    return texts


def without_folders(name: str) -> str:
    """Return the name of a line or function with its file's alone."""
    return _FOLDERS.sub("", name)


def lines_during(timeline: Timeline, stretches: iv.Intervals, rank: int) -> str:
    """Return the user's own function, with its lines, that ran for most of these stretches, as
    "file.py(23-24): function"; empty where no lines were recorded, or none ran for long. Where that
    was the backward of another function for long, too, that is named behind it.
    """
    function = _longest_function(timeline, _time_by_line(timeline, stretches, rank), stretches)
    undone = _undone_during(timeline, stretches, rank) if function else ""
    return f"{function}, mostly in the backward of {undone}" if undone else function


def _undone_during(timeline: Timeline, stretches: iv.Intervals, rank: int) -> str:
    """Return the function, with its lines, of the forward that was undone for most of these
    stretches; empty where that is not known, or none was undone for long.
    """
    operators = timeline.operators
    rows, undone = undone_operators(timeline)
    known = (undone >= 0) & (operators.rank[rows] == rank)
    order = np.argsort(rows[known])
    rows, undone = rows[known][order], undone[known][order]
    undoing, made = take(operators, rows), take(operators, undone)
    lines = lines_at(timeline, made)
    mine = outermost(undoing) & (lines >= 0) & (lines != lines_at(timeline, undoing))
    ran = iv.covered_within(stretches, undoing.start[mine], undoing.end[mine])
    sums = np.zeros(len(timeline.strings))
    np.add.at(sums, lines[mine], ran)
    return _longest_function(timeline, sums, stretches)


def _longest_function(timeline: Timeline, sums: Floats64, stretches: iv.Intervals) -> str:
    """Return the function, with its lines, that most of these `sums` by line are of; empty where it
    is little of the stretches.
    """
    functions: dict[tuple[str, str], dict[int, float]] = {}
    for name in np.flatnonzero(sums).tolist():
        match = LINE.match(timeline.strings[name])
        if match:
            file, number, function = match.groups()
            functions.setdefault((file, function), {})[int(number)] = float(sums[name])
    if not functions:
        return ""
    (file, function), times = max(functions.items(), key=lambda item: sum(item[1].values()))
    whole = sum(times.values())
    if whole < NAMED_SHARE * stretches.total:
        return ""
    numbers: list[int] = []
    for number in sorted(times, key=lambda each: (-times[each], each)):
        numbers.append(number)
        if sum(times[each] for each in numbers) > NAMED_LINES_SHARE * whole:
            break
    first, last = min(numbers), max(numbers)
    return f"{file}({first if first == last else f'{first}-{last}'}): {function}"


def _time_by_line(timeline: Timeline, stretches: iv.Intervals, rank: int) -> Floats64:
    """Return how long each of the user's own lines ran in these stretches, ns, by its name."""
    sums = np.zeros(len(timeline.strings))
    for track, _ in _tracks(timeline):
        if timeline.threads[track].rank == rank:
            lines = take(timeline.python, timeline.python.thread == track)
            ran = iv.covered_within(stretches, lines.start, lines.end)
            sums += np.bincount(lines.name, weights=ran, minlength=len(sums))
    return sums


class Places(NamedTuple):
    """Where the host was, with the time in each place, and in none that was recorded, ns;
    `different` is how many places there are, of which `longest` may be a part.
    """

    longest: list[tuple[str, int]]
    nowhere_ns: int
    different: int


def places_during(
    timeline: Timeline,
    stretches: iv.Intervals,
    rank: int,
    threads: NDArray[np.bool_],
    outermost: SmallInts = NO_OPERATORS,
    *,
    top: int = 10,
) -> Places:
    """Return where the host was in these stretches and for how long, ns, longest first: on the
    user's own lines and, where none were recorded, in operators (the `outermost` ones) and in
    marked ranges, of each those that no other encloses. A moment counts once for each of the
    `threads` that launch, a mask.
    """
    sums = _time_by_line(timeline, stretches, rank)
    lines = np.isin(timeline.python.thread, line_tracks(timeline))
    left = iv.subtract(stretches, union_of(timeline.python, lines & (timeline.python.rank == rank)))
    every_range = np.arange(len(timeline.ranges))
    for table, rows in ((timeline.operators, outermost), (timeline.ranges, every_range)):
        mine = look_up(threads, table.thread[rows])
        mine &= ~named(timeline, table, STEP_NAME)[rows]
        left = iv.subtract(left, iv.chain(_added(sums, table, rows[mine], left)))
    longest = np.argsort(-sums, kind="stable")[:top]
    named_so = [
        (timeline.strings[name], int(sums[name])) for name in longest.tolist() if sums[name]
    ]
    return Places(named_so, left.total, int(np.count_nonzero(sums)))


def _added(
    sums: Floats64, table: HostTable, rows: NDArray[np.integer], stretches: iv.Intervals
) -> Iterator[tuple[Ints, Ints]]:
    """Yield, in blocks, starts and ends of the rows that ran in these stretches and that no other
    of them encloses, once the time in which they did is added to the `sums` by name.
    """
    for name, moments in _outermost_during(table, rows, stretches):
        ran = iv.covered_within(stretches, *moments)
        sums += np.bincount(name, weights=ran, minlength=len(sums))
        yield moments


def operator_during(
    timeline: Timeline, stretches: iv.Intervals, rank: int, outermost: SmallInts
) -> str:
    """Return which of the `outermost` operators ran for most of these stretches; empty where none
    ran for long.
    """
    operators = timeline.operators
    sums = np.zeros(max(len(timeline.strings), 1))
    for _ in _added(sums, operators, outermost[operators.rank[outermost] == rank], stretches):
        pass
    most = int(sums.argmax())
    if sums[most] < NAMED_SHARE * stretches.total or not sums[most]:
        return ""
    return timeline.strings[most]


def _outermost_during(
    table: HostTable, rows: NDArray[np.integer], stretches: iv.Intervals
) -> Iterator[tuple[SmallInts, tuple[Ints, Ints]]]:
    """Yield, in blocks, names, starts and ends of the rows that ran in these stretches and that no
    other of them encloses. What encloses a row that ran meanwhile ran meanwhile too.
    """
    reached: dict[int, int] = {}  # by thread, when all its rows so far have ended
    for block in iv.blocks(len(rows)):
        some = rows[block]
        some = some[iv.meets(stretches, table.start[some], table.end[some])]
        start, end, thread = table.start[some], table.end[some], table.thread[some]
        enclosing = np.zeros(len(some), dtype=bool)
        for number in np.flatnonzero(np.bincount(thread)).tolist():
            own = np.flatnonzero(thread == number)
            ended = np.maximum.accumulate(np.append(reached.get(number, start[own[0]]), end[own]))
            enclosing[own] = ended[:-1] <= start[own]
            reached[number] = int(ended[-1])
        yield table.name[some[enclosing]], (start[enclosing], end[enclosing])


def line_tracks(timeline: Timeline) -> list[int]:
    """Return the numbers of the tracks that hold the lines that ran, among `timeline.threads`."""
    return [track for track, _ in _tracks(timeline)]


def _tracks(timeline: Timeline) -> list[tuple[int, list[int]]]:
    """Return the tracks that hold the lines that ran, each with the threads whose work they start:
    the one they ran on (none where that is not in the capture), and autograd's own, on which the
    backward runs while that one waits for it.
    """
    tracks = [
        (track, timeline.thread_number(own.rank, own.pid, own.tid.removeprefix(LINES_OF)))
        for track, own in enumerate(timeline.threads)
        if own.tid.startswith(LINES_OF)
    ]
    if not tracks:
        return []
    engines = _engine_threads(timeline) - {thread for _, thread in tracks}
    counts = np.bincount(timeline.python.thread, minlength=len(timeline.threads))
    # Of several threads with lines, the one with most of them trains.
    longest = {
        timeline.threads[track].rank: track
        for track, _ in sorted(tracks, key=lambda pair: int(counts[pair[0]]))
    }
    rows = []
    for track, thread in tracks:
        rank = timeline.threads[track].rank
        of_rank = [each for each in engines if timeline.threads[each].rank == rank]
        threads = [*([thread] if thread >= 0 else []), *(of_rank if longest[rank] == track else [])]
        rows.append((track, threads))
    return rows


def _engine_threads(timeline: Timeline) -> set[int]:
    """Return the threads that run autograd's backward; on a CPU, the one that asked for it."""
    operators = timeline.operators
    return set(np.unique(operators.thread[named(timeline, operators, _ENGINE)]).tolist())


class _Charges(NamedTuple):
    """What each row of a call tree counts to: the name of a line, and the track of the thread with
    it (-1: none); `traced` are the rows that a line of the forward has from its backward.
    """

    line: SmallInts
    track: SmallInts
    traced: NDArray[np.bool_]
    backward_ns: Ints
    """The time of rows of the backward, without that of those inside; 0 of all others."""
    operator_ns: Ints
    """The time of each operator; of the backward's, without that on lines which run in it."""


def _charges(
    timeline: Timeline, calls: CallTree, tracks: Sequence[tuple[int, list[int]]]
) -> _Charges:
    """Return the lines that operators and calls count to: those on which they ran, and of the
    backward those of the forward that it undoes.
    """
    backward = trace_backward(timeline, calls)
    lines, tracks_of = (np.full(len(calls.layer), -1, dtype=np.int32) for _ in range(2))
    track_of = np.full(len(timeline.threads), -1, dtype=np.int32)
    for track, threads in tracks:
        track_of[threads] = track
    for layer, table in ((OPERATOR, timeline.operators), (RUNTIME, timeline.runtime)):
        lines[calls.rows(layer)] = lines_at(timeline, table)
        tracks_of[calls.rows(layer)] = track_of[table.thread]
    # Python of the program's own that runs in a backward has lines of its own there.
    began = np.full(len(calls.layer), -1, dtype=np.int32)
    rows = calls.rows(OPERATOR)
    began[rows] = _lines_at_begin(timeline)
    own = (backward.node >= 0) & (lines != began[backward.node])
    undone = backward.undone(own)
    traced = (undone != np.arange(len(undone))) & (lines[undone] >= 0)
    undone = np.where(traced, undone, np.arange(len(undone)))
    undoing = named(timeline, timeline.operators, _ENGINE)
    undoing |= np.isin(rows, backward.rows)
    operator_ns = timeline.operators.end - timeline.operators.start
    operator_ns -= _times_on_other_lines(timeline, undoing, tracks_of[rows], began[rows])
    times = np.zeros(len(calls.layer), dtype=np.int64)
    times[rows] = operator_ns
    # What began on another line is no part of the time on this one.
    backward_ns = _without_those_inside(calls, backward, times, began)
    return _Charges(lines[undone], tracks_of[undone], traced, backward_ns, operator_ns)


def _times_on_other_lines(
    timeline: Timeline, undoing: NDArray[np.bool_], tracks: SmallInts, began: SmallInts
) -> Ints:
    """Return how long other lines ran in each operator of the backward (`undoing`, a mask) than the
    one on which it began, ns: those of a checkpoint's second forward have that time themselves.

    `tracks` has the lines of each operator's thread (-1: none).
    """
    operators = timeline.operators
    elsewhere = np.zeros(len(operators), dtype=np.int64)
    undoing = undoing & (began >= 0)
    for track in np.unique(tracks[undoing]).tolist():
        lines, mine = take(timeline.python, timeline.python.thread == track), tracks == track
        for name in np.unique(began[undoing & mine]).tolist():
            rows = np.flatnonzero(undoing & mine & (began == name))
            others = union_of(lines, lines.name != name)
            start, end = operators.start[rows], operators.end[rows]
            elsewhere[rows] = iv.covered_within(others, start, end)
    return elsewhere


def _without_those_inside(
    calls: CallTree, backward: Backward, times: Ints, began: SmallInts
) -> Ints:
    """Return the `times` of each row of the backward without those of the rows of the backward that
    it holds, and that began where it did; 0 of all other rows.
    """
    rows, own = backward.rows, np.zeros(len(times), dtype=np.int64)
    own[rows] = times[rows]
    above = calls.tree.parent[rows]
    above = np.where(above >= 0, backward.node[above], np.int32(-1))
    inside = (above >= 0) & (began[above] == began[rows])
    np.subtract.at(own, above[inside], times[rows[inside]])
    return np.maximum(own, 0)


def _of_track(
    timeline: Timeline, calls: CallTree, charges: _Charges, track: int, threads: list[int]
) -> Iterator[LineRow]:
    """Yield the lines that ran one after another on a thread, each with what began in it."""
    lines = take(timeline.python, timeline.python.thread == track)
    if not len(lines) or not threads:
        return
    # Only the part inside the steps counts.
    window = host_window(timeline, int(lines.rank[0]))
    start, end = np.maximum(lines.start, window.start), np.minimum(lines.end, window.end)
    lines = take(replace(lines, start=start, end=end), end > start)
    if not len(lines):
        return
    operators, count = timeline.operators, len(timeline.strings)
    mine = (charges.track == track) & (charges.line >= 0)
    rows = calls.rows(OPERATOR)
    line = np.where(mine & ~charges.traced, charges.line, np.int32(-1))[rows]
    top = nearest_above(calls, OPERATOR)[rows] < 0
    # The backward's operators are no calls that the line makes.
    outer = np.flatnonzero(top & (line >= 0) & ~named(timeline, operators, _ENGINE))

    def by_line(names: SmallInts, values: Ints | None = None) -> Ints:
        return np.bincount(names, weights=values, minlength=count).astype(np.int64)

    launched, undone, undoing = (
        by_line(charges.line[some], values[some])
        for values, some in (
            (calls.device_ns, mine),
            (calls.device_ns, mine & charges.traced),
            (charges.backward_ns, mine & charges.traced),
        )
    )
    duration = operators.end - operators.start
    untraced = np.where(charges.traced[rows], 0, charges.operator_ns)
    undoing += _backward_by_name(timeline, line, untraced, count)
    times, hosts = by_line(lines.name), by_line(lines.name, lines.end - lines.start)
    called = line[outer]
    counts, lengths = (by_line(called, values) for values in (None, duration[outer]))
    for i in np.flatnonzero(times).tolist():
        yield LineRow(
            line=timeline.strings[i],
            calls=int(times[i]),
            host_ns=int(hosts[i]),
            device_ns=int(launched[i]),
            exact=True,
            operators=int(counts[i]),
            operator_ns=int(lengths[i]),
            backward_ns=int(undoing[i]),
            backward_device_ns=int(undone[i]),
            rank=int(lines.rank[0]),
        )


def _line_of(lines: HostTable, operators: HostTable, mine: NDArray[np.bool_]) -> SmallInts:
    """Return the name of the line that ran in the middle of each operator (the two clocks differ by
    a microsecond), -1 for none.
    """
    middle = (operators.start + operators.end) // 2
    at = np.searchsorted(lines.start, middle, side="right") - 1
    within = mine & (at >= 0) & (middle < lines.end[np.maximum(at, 0)])
    return np.where(within, lines.name[np.maximum(at, 0)], np.int32(-1))


def _backward_by_name(timeline: Timeline, line: SmallInts, duration: Ints, count: int) -> Ints:
    """Return host time of the operators' backward by line, where it is not traced to calls: that of
    MulBackward0 goes to the lines that call aten::mul, by how often they do.
    """
    operators, times = timeline.operators, np.zeros(count)
    numbers = {name: number for number, name in enumerate(timeline.strings)}
    for name, number in numbers.items():
        forward = numbers.get(forward_operator(name)) if _ENGINE.match(name) else None
        if forward is None:
            continue
        # Lines share the backward's time by their calls: it is not recorded which call each undoes.
        mine = operators.name == forward
        called = np.bincount(line[mine & (line >= 0)], minlength=count)
        times += duration[operators.name == number].sum() * called / max(int(mine.sum()), 1)
    return times.astype(np.int64)


def own_frames(timeline: Timeline) -> HostTable:
    """Return the frames of the user's own functions on threads that work in the steps."""
    return take(timeline.python, _is_own_frame(timeline))


def _is_own_frame(timeline: Timeline) -> NDArray[np.bool_]:
    python = timeline.python
    # A loader's workers have a list of their own. A thread that neither calls operators nor the
    # runtime, as a monitor that sleeps, is no part of a step.
    working = np.union1d(timeline.operators.thread, timeline.runtime.thread)
    own = np.isin(python.thread, working) & ~np.isin(python.thread, worker_threads(timeline))
    return own & ~named(timeline, python, LIBRARY)


def _of_functions(timeline: Timeline, calls: CallTree) -> list[LineRow]:
    """Return the frames of the user's own functions, of which a trace tells only where they are
    defined.
    """
    python = timeline.python
    if not (calls.layer == PYTHON).any():
        return []
    own = _is_own_frame(timeline)
    # Only the part inside the steps counts.
    start, end = python.start.copy(), python.end.copy()
    for rank in timeline.ranks:
        mine, window = python.rank == rank, host_window(timeline, rank)
        start[mine] = np.maximum(start[mine], window.start)
        end[mine] = np.minimum(end[mine], window.end)
    own &= end >= start
    rows, duration = calls.rows(PYTHON)[own], (end - start)[own]
    layer = np.full(len(calls.layer), -1, dtype=np.int8)
    layer[rows] = PYTHON
    nearest = nearest_above(replace(calls, layer=layer), PYTHON)
    above = nearest[rows]
    inside = np.bincount(
        above[above >= 0], weights=duration[above >= 0], minlength=len(layer)
    ).astype(np.int64)
    host = np.maximum(duration - inside[rows], 0)
    # A backward counts to the function that made what it undoes, unless it is the user's own.
    backward = trace_backward(timeline, calls)
    undone = backward.undone((backward.node >= 0) & (nearest != nearest[backward.node]))
    undone = np.where(nearest[undone] >= 0, undone, np.arange(len(undone)))
    traced = undone != np.arange(len(undone))
    device, backward_device, undoing = (np.zeros(len(layer), dtype=np.int64) for _ in range(3))
    for sums, some, values in (
        (device, nearest[undone] >= 0, calls.device_ns),
        (backward_device, traced, calls.device_ns),
        (undoing, traced, _times_without_frames(timeline, calls, backward, rows)),
    ):
        np.add.at(sums, nearest[undone[some]], values[some])
    key = python.name[own].astype(np.int32) * 2 + _all_along(timeline)[own]
    times, hosts, devices, undone_on_host, undone_on_device = (
        np.bincount(key, weights=values)
        for values in (None, host, device[rows], undoing[rows], backward_device[rows])
    )
    return [
        LineRow(
            _called(timeline.strings[i // 2], bool(i % 2)),
            int(times[i]),
            int(hosts[i]),
            int(devices[i]),
            backward_ns=int(undone_on_host[i]),
            backward_device_ns=int(undone_on_device[i]),
        )
        for i in np.flatnonzero(times).tolist()
    ]


def _times_without_frames(
    timeline: Timeline, calls: CallTree, backward: Backward, frames: SmallInts
) -> Ints:
    """Return the time of each row of the backward without that of rows of the backward, and of
    these `frames`, inside it: a checkpoint's second forward has that itself. 0 of all other rows.
    """
    operators, python = timeline.operators, timeline.python
    times, own = (np.zeros(len(calls.layer), dtype=np.int64) for _ in range(2))
    times[calls.rows(OPERATOR)] = operators.end - operators.start
    times[calls.rows(PYTHON)] = python.end - python.start
    inside = np.concatenate([backward.rows, frames])
    layer = np.full(len(calls.layer), -1, dtype=np.int8)
    layer[inside] = OPERATOR
    above = nearest_above(replace(calls, layer=layer), OPERATOR)[inside]
    held = (above >= 0) & (backward.node[above] == above)
    own[backward.rows] = times[backward.rows]
    np.subtract.at(own, above[held], times[inside[held]])
    return np.maximum(own, 0)


def _called(name: str, all_along: bool) -> str:
    """Return a frame's name. Of one that was open all along, the line is where the profiler began,
    and says nothing.
    """
    return _AT_LINE.sub(": ", name) if all_along else name


def _all_along(timeline: Timeline) -> NDArray[np.bool_]:
    """Return a mask of the frames that were open from the first to the last of its thread's
    frames.
    """
    python = timeline.python
    begins = np.full(len(timeline.threads) + 1, np.iinfo(np.int64).max)
    ends = np.zeros(len(timeline.threads) + 1, dtype=np.int64)
    np.minimum.at(begins, python.thread, python.start)
    np.maximum.at(ends, python.thread, python.end)
    slack = (ends - begins) // 100
    whole: NDArray[np.bool_] = (python.start <= (begins + slack)[python.thread]) & (
        python.end >= (ends - slack)[python.thread]
    )
    return whole
