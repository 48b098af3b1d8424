"""One stretch of a capture in the terminal: what every device and thread did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from bottleneck_lab.analysis.device.time import CPU
from bottleneck_lab.analysis.host.lines import LINE
from bottleneck_lab.analysis.selection import DeviceStretch, NamedTime, Selection, ThreadUse
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.report.breakdown import group_alike
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.kernel_names import short_name
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import Timeline

# So many threads are listed, the busiest first.
THREADS = 12


def render_selection(selection: Selection, timeline: Timeline, console: Console) -> None:
    """Print what every device and thread did in a stretch, for `lab report --at`."""
    sheet = Sheet(console)
    length = selection.end_ns - selection.start_ns
    sheet.heading(
        f"{words.format_duration(length)}, from {_moment(selection.start_ns)} to"
        f" {_moment(selection.end_ns)}"
    )
    # A kernel may run in it whose operator did not: their counts then differ.
    sheet.line(
        "What began before it or ends after it is listed, too, with its time inside.",
        indent=1,
        style="dim",
    )
    rows = []
    for device in selection.devices:
        parts = {
            "computing": device.compute_ns,
            "communicating only": device.exposed_communication_ns,
            "copying only": device.exposed_copy_ns,
            "no model operator" if device.device == CPU else "idle": device.idle_ns,
        }
        shares = "; ".join(
            f"{part} {words.format_share(ns / length)}, {words.format_duration(ns)}"
            for part, ns in parts.items()
            if ns
        )
        longest = ""
        if device.longest_idle_ns:
            longest = f" (longest {words.format_duration(device.longest_idle_ns)})"
        # Devices that are modelled alike do the same to the nanosecond.
        rows.append(((f"{shares or 'nothing'}{longest}", str(device.work)), device))
    for (text, _), alike in group_alike(rows):
        sheet.line(text, indent=1, lead=f"{_names(alike, timeline)}: ", style="bold")
        for row in alike[0].work:
            size = f" of {words.format_bytes(row.bytes)}" if row.bytes else ""
            count = f" ({row.rows:,} times)" if row.rows > 1 else ""
            _print_named(sheet, short_name(row.name), size, row.time_ns, count, length)
    sheet.heading("What every thread did")
    threads, times = [], Counter[tuple[str, int]]()
    for use in selection.threads:
        # Ranks that are modelled alike do the same to the nanosecond; a rank's own threads stay
        # apart.
        did = [(row.kind, row.name, row.time_ns, row.rows) for row in use.names]
        work = f"{_thread_name(use, timeline)} {use.busy_ns} {did}"
        times[work, use.rank] += 1
        threads.append(((work, times[work, use.rank]), use))
    groups = group_alike(threads)
    for _, same in groups[:THREADS]:
        _print_threads(sheet, same, timeline, length)
    if len(groups) > THREADS:
        sheet.line(f"and {len(groups) - THREADS} more threads", indent=2, style="dim")
    if not selection.threads:
        sheet.line("No thread activity was recorded in this stretch.", indent=2)


def _when(row: NamedTime) -> str:
    """Return when what took this time began and ended; of a range's several rows, the longest."""
    span = f"{row.start_ns / 1e6:,.3f}–{row.end_ns / 1e6:,.3f} ms"
    if row.rows == 1:
        return f" ({span})"
    # Many calls of operators are no stretch that anybody would mark, and their names are long.
    longest = f", longest {span}" if row.kind == "range" or LINE.match(row.name) else ""
    return f" ({row.rows:,} times{longest})"


def _moment(ns: int) -> str:
    return f"{ns / 1e6:,.3f} ms"


def _names(devices: Sequence[DeviceStretch], timeline: Timeline) -> str:
    """Return what tells devices from others: their ranks too, where there are several."""
    names = "CPU"
    if devices[0].device != CPU:
        names = words.name_several("device", [each.device for each in devices])
    if len(timeline.ranks) > 1:
        names = f"{words.name_several('rank', [each.rank for each in devices])}, {names}"
    return names


def _thread_name(use: ThreadUse, timeline: Timeline) -> str:
    if use.thread >= len(timeline.threads):
        return f"thread {use.thread}"
    info = timeline.threads[use.thread]
    if str(info.tid).startswith(LINES_OF):
        return capture_words.name_lines_track(info, timeline.threads)
    return info.name or f"process {info.pid}, thread {info.tid}"


def _print_threads(
    sheet: Sheet, same: Sequence[ThreadUse], timeline: Timeline, length: int
) -> None:
    """Print what a thread did, on every rank that it did the same on; its share of the stretch
    where it is not all of it.
    """
    use, ranks = same[0], ""
    if len(timeline.ranks) > 1:
        ranks = f"{words.name_several('rank', [each.rank for each in same])}, "
    thread, busy = f"{ranks}{_thread_name(use, timeline)}", words.format_share(use.busy_ns / length)
    if busy != "100%":
        thread += f": {busy} of the stretch"
    sheet.line(thread, indent=1, style="bold")
    for row in use.names:
        name, kind = short_name(row.name), f", {row.kind}"
        _print_named(sheet, name, kind, row.time_ns, _when(row), length)


def _print_named(sheet: Sheet, name: str, more: str, time_ns: int, count: str, length: int) -> None:
    """Print what took part of the stretch: its share, its time, its name, and how often it ran. A
    long name is cut before `more`, which tells it from others as well.
    """
    lead = f"{words.format_share_column(time_ns / length):>6} {words.format_duration(time_ns):>9} "
    more = "" if LINE.match(name) else more  # what it is, its form says
    room = sheet.width - len(lead) - 3 - len(count)
    name = sheet.fit_line(name, room - len(more)) + sheet.safe(more)
    sheet.path(sheet.safe(lead) + name + sheet.safe(count), indent=3)
