"""One stretch of a capture in the terminal: what every device and thread did."""

from __future__ import annotations

from rich.console import Console

from bottleneck_lab.analysis.device.time import CPU
from bottleneck_lab.analysis.selection import Selection, ThreadUse
from bottleneck_lab.report import words
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.kernel_names import short_name
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
    for device in selection.devices:
        name = f"device {device.device}"
        if device.device == CPU:
            name = "CPU"
        parts = {
            "computing": device.compute_ns,
            "communicating only": device.exposed_communication_ns,
            "copying only": device.exposed_copy_ns,
            "no model operator" if device.device == CPU else "idle": device.idle_ns,
        }
        shares = ", ".join(
            f"{part} {words.format_share(ns / length)}" for part, ns in parts.items() if ns
        )
        lead = name
        if len(timeline.ranks) > 1:
            lead = f"rank {device.rank}, {name}"
        if device.longest_idle_ns:
            longest = f" (longest {words.format_duration(device.longest_idle_ns)})"
        else:
            longest = ""
        sheet.line(f"{shares or 'nothing'}{longest}", indent=1, lead=f"{lead}: ")
    sheet.heading("What every thread did")
    seen: list[ThreadUse] = []
    for use in selection.threads[:THREADS]:
        # Ranks that are modelled alike do the same to the nanosecond.
        twin = next((each for each in seen if _same_work(each, use)), None)
        _print_thread(sheet, use, timeline, length, as_rank=twin.rank if twin else None)
        seen.append(use)
    if len(selection.threads) > THREADS:
        sheet.line(f"and {len(selection.threads) - THREADS} more threads", indent=2, style="dim")
    if not selection.threads:
        sheet.line("No thread activity was recorded in this stretch.", indent=2)


def _moment(ns: int) -> str:
    return f"{ns / 1e6:,.3f} ms"


def _same_work(one: ThreadUse, other: ThreadUse) -> bool:
    """Return True if two ranks' threads did the same for as long."""
    same = (one.busy_ns, one.names) == (other.busy_ns, other.names)
    return same and one.rank != other.rank


def _print_thread(
    sheet: Sheet, use: ThreadUse, timeline: Timeline, length: int, *, as_rank: int | None
) -> None:
    """Print what a thread did; where rank `as_rank` did the same, only that."""
    name = f"thread {use.thread}"
    if use.thread < len(timeline.threads):
        info = timeline.threads[use.thread]
        name = info.name or f"process {info.pid}, thread {info.tid}"
    rank = ""
    if len(timeline.ranks) > 1:
        rank = f"rank {use.rank}, "
    busy = f"busy {words.format_share(use.busy_ns / length)}"
    if as_rank is not None:
        sheet.line(f"{rank}{name}: {busy}, the same as rank {as_rank}", indent=1, style="bold")
        return
    sheet.line(f"{rank}{name}: {busy}", indent=1, style="bold")
    for row in use.names:
        lead = (
            f"{words.format_share_column(row.time_ns / length):>6}"
            f" {words.format_duration(row.time_ns):>9} "
        )
        count = ""
        if row.rows > 1:
            count = f" ({row.rows:,} times)"
        room = sheet.width - len(lead) - 3 - len(count)
        sheet.path(
            f"{sheet.safe(lead)}{sheet.fit(f'{short_name(row.name)}, {row.kind}', room)}{count}",
            indent=3,
        )
