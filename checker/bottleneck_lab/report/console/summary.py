"""A capture in the terminal, top-down: where the time went, which block is the biggest, what is
inside it, what to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.causes import OUTSIDE
from bottleneck_lab.analysis.device.gaps import Gap
from bottleneck_lab.analysis.device.use import STRIP
from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report import words
from bottleneck_lab.report.breakdown import (
    Part,
    costly_operators,
    describe_capture,
    describe_collectives,
    describe_lines,
    device_label,
    short_name,
    wall_parts,
)
from bottleneck_lab.report.console.memory import print_holders
from bottleneck_lab.report.console.roofline import LETTERS, NARROWEST, draw_roofline
from bottleneck_lab.report.console.terminal import Sheet

TOP = 5
"""Rows of a list: the place to begin is never below the fifth."""

_NEARLY_ALL = 0.9
"""If one block is nearly everything, the gain from removing it says nothing; what is inside it
does.
"""


def render_summary(summary: Summary, console: Console) -> None:
    """Print the summary of a capture, top-down."""
    sheet = Sheet(console)
    parts = wall_parts(summary.devices)
    _print_title(sheet, summary)
    _print_parts(sheet, summary, parts)
    _print_strips(sheet, summary)
    if summary.blind:
        _print_evidence(sheet, summary)
    elif parts:
        # The part to look at first: the largest that is not work, if it is 10% or more.
        lead = next(
            (part for part in parts if part.key != "compute" and part.share >= _LOST), parts[0]
        )
        _print_biggest(sheet, summary, lead)
        sheet.heading("3  What is inside it")
        for row in _inside(summary, lead):
            _print_named(sheet, *row)
        if lead.cause:
            gaps = [
                gap
                for use in summary.devices
                for gap in use.largest_gaps
                if gap.cause == lead.cause
            ]
            if gaps:
                sheet.line("The longest of these gaps:", indent=2)
            for gap in sorted(gaps, key=_gap_order)[:3]:
                _print_gap(sheet, summary, gap)
        if lead.cause == "launch":
            _print_launches(sheet, summary)
    _print_memory(sheet, summary)
    _print_workers(sheet, summary)
    _print_serving(sheet, summary)
    rows, on_device = costly_operators(summary)
    if rows:
        sheet.heading(f"Top operators, by share of {'device' if on_device else 'CPU'} self time")
    for operator in rows[:TOP]:
        own = operator.device_self_ns if on_device else operator.self_ns
        _print_named(sheet, operator.name, operator.share, words.format_duration(own))
    _print_roofline(sheet, summary)
    _print_lines(sheet, summary)
    if summary.blind:
        sheet.blank()
        sheet.line(words.BLIND, indent=1)
    else:
        _print_findings(sheet, summary.findings)


def _print_title(sheet: Sheet, summary: Summary) -> None:
    sheet.rule()
    sheet.line("Where the time went", style="bold", indent=1)
    sheet.rule()
    sheet.line(describe_capture(summary), indent=1)
    devices = [device_label(use, ranks=len(summary.ranks)) for use in summary.devices]
    sheet.line(
        "; ".join(devices[:4]) + (f" and {len(devices) - 4} more" if len(devices) > 4 else ""),
        indent=1,
    )
    if summary.emulated:
        sheet.line(words.EMULATED, indent=1, style="yellow")
    for reason in summary.quality.reasons:
        sheet.line(f"Unreliable, because {reason}.", indent=1, lead="! ", style="bold red")
    if summary.withheld:
        withheld = ", ".join(finding.id for finding in summary.withheld)
        sheet.line(
            f"Withheld, because the data behind it is missing: {withheld}.",
            indent=1,
            style="yellow",
        )
    for note in summary.quality.notes:
        sheet.line(note, indent=1, style="dim")
    for finding in summary.findings[:1]:  # the biggest block below may be useful work
        sheet.line(
            f"Costliest finding: {finding.title} ({words.describe_gain(finding)}).",
            indent=1,
            style="bold",
        )


def _print_parts(sheet: Sheet, summary: Summary, parts: Sequence[Part]) -> None:
    many = len(summary.devices) > 1
    sheet.heading(
        f"1  Where did the wall time go{f' on {len(summary.devices)} devices' if many else ''}?"
    )
    for part in parts:
        _print_bar(sheet, part.label, part.share, words.format_duration(part.ns))
    if many:
        sheet.blank()
        for use in summary.devices[: 2 * TOP]:
            _print_bar(
                sheet, device_label(use, ranks=len(summary.ranks)), use.working_share, "working"
            )


def _print_strips(sheet: Sheet, summary: Summary) -> None:
    """Print how busy each device was from the first step to the last, left to right, with a mark
    where a step begins.
    """
    width = max(20, min(sheet.width - 14, STRIP))
    shown = [use for use in summary.devices if use.busy_strip][:TOP]
    if not shown:
        return
    sheet.heading("How busy over time")
    for use in shown:
        if len(summary.ranks) > 1:
            label = f"rank {use.rank}"
        else:
            label = "CPU" if use.is_cpu else f"device {use.device}"
        sheet.path(f"{label:10} {sheet.strip(use.busy_strip, width)}", indent=2)
    marks = [" "] * width
    for step in summary.steps:
        at = (step.start_ns - summary.start_ns) * width // max(summary.wall_ns, 1)
        if step.rank == summary.steps[0].rank and 0 <= at < width:
            marks[at] = sheet.safe("·") if sheet.ascii else "╵"
    if summary.steps:
        sheet.path(f"{'steps':10} {''.join(marks).rstrip()}", indent=2)


def _print_evidence(sheet: Sheet, summary: Summary) -> None:
    """Print the evidence to look for causes in: a step's ranges, the longest gaps, waits and
    copies, without comment.
    """
    shares = list(summary.range_shares.items())[:TOP]
    if shares:
        sheet.heading("A step on the main thread, by the ranges marked in it")
    for name, share in shares:
        _print_named(sheet, name, share, words.format_duration(share * summary.step_mean_ns))
    wall = sum(use.wall_ns for use in summary.devices) or 1
    contents = {
        "Where the host waited, by share of the recording": [
            (words.describe_wait(row), row.total_ns) for row in summary.syncs
        ],
        "Copies, by share of the recording": [
            (f"{row.direction}, {row.host_memory} memory", row.total_ns) for row in summary.copies
        ],
        "Top kernels, by share of the recording": [
            (short_name(row.name), row.total_ns) for row in summary.kernels
        ],
    }
    for title, rows in contents.items():
        if rows:
            sheet.heading(title)
        for name, ns in rows[:TOP]:
            _print_named(sheet, name, ns / wall, words.format_duration(ns))
    _print_launches(sheet, summary)
    gaps = sorted((gap for use in summary.devices for gap in use.largest_gaps), key=_gap_order)[
        :TOP
    ]
    if gaps:
        sheet.heading(
            "The longest gaps: `lab report --gap 1` shows what every thread did in the first"
        )
    for number, gap in enumerate(gaps, start=1):
        _print_gap(sheet, summary, gap, number)


def _gap_order(gap: Gap) -> tuple[int, int]:
    return gap.start_ns - gap.end_ns, gap.start_ns


def _print_bar(sheet: Sheet, label: str, share: float, figure: str) -> None:
    """Print `label ███░░░ 41.2% figure`, with columns that line up whatever the width."""
    room = max(22, sheet.width // 3 - 3)
    bar = sheet.bar(low=share, high=share, end=1.0, width=max(6, sheet.width - room - 22))
    sheet.path(
        f"{sheet.fit(label, room):{room}} {bar} {words.format_share_column(share):>6} {figure:>9}",
        indent=2,
    )


def _print_named(sheet: Sheet, name: str, share: float, figure: str) -> None:
    """Print `41.2% figure ███ name`: a short bar leaves room for the long names of kernels,
    operators and lines.
    """
    bar = sheet.bar(low=share, high=share, end=1.0, width=8)
    lead = f"{words.format_share_column(share):>6} {figure:>9} {bar} "
    sheet.path(sheet.safe(lead) + sheet.fit(name, sheet.width - len(lead) - 2), indent=1)


_LOST = 0.1


def _print_biggest(sheet: Sheet, summary: Summary, biggest: Part) -> None:
    title = "Where most time is lost"
    if biggest.key == "compute":
        title = "The biggest block"
    sheet.heading(f"2  {title}: {biggest.label}, {words.format_share(biggest.share)}")
    sheet.line(f"In that time {biggest.explained}.", indent=3)
    wall = sum(use.wall_ns for use in summary.devices)
    working = sum(use.working_ns for use in summary.devices)
    in_loop = biggest.cause not in OUTSIDE
    share = biggest.ns / (working if in_loop else wall)
    if share < _NEARLY_ALL:
        if in_loop and working < wall:
            whole = "the part between the first and the last work"
        else:
            whole = "the run"
        sheet.line(
            f"Removing this alone, with the work unchanged, would make {whole}"
            f" {ceiling(share):.2f}x as fast (Amdahl).",
            indent=3,
        )


Row = tuple[str, float, str]


def _inside(summary: Summary, biggest: Part) -> list[Row]:
    """Return the largest contents of the block: name, share of the whole time, time."""
    wall = sum(use.wall_ns for use in summary.devices) or 1
    if biggest.cause == "synchronisation":
        rows: Iterable[tuple[str, int]] = (
            (words.describe_wait(row), row.total_ns) for row in summary.syncs
        )
    elif "copy" in biggest.key:
        rows = (
            (f"{row.direction}, {row.host_memory} memory", row.total_ns) for row in summary.copies
        )
    elif biggest.key == "compute" and summary.cpu_only:
        rows = (
            (row.name, row.self_ns)
            for row in sorted(summary.operators, key=lambda row: -row.self_ns)
        )
    elif biggest.key == "communication":
        rows = describe_collectives(summary)
    elif biggest.key == "compute":
        rows = (
            (short_name(row.name), row.total_ns) for row in summary.kernels if not row.communication
        )
    else:
        return [(name, share, "host") for name, share in list(summary.range_shares.items())[:TOP]]
    return [(name, ns / wall, words.format_duration(ns)) for name, ns in list(rows)[:TOP]]


def _print_gap(sheet: Sheet, summary: Summary, gap: Gap, number: int = 0) -> None:
    length = sheet.safe(words.format_duration(gap.end_ns - gap.start_ns))
    at = words.format_duration(gap.start_ns - summary.origin_ns)
    after = ""
    if gap.after:
        after = f", until {short_name(gap.after)}"
    lead = ""
    if number:
        lead = f"{number} "
    sheet.path(
        f"{lead}{length:>9} {sheet.fit(f'at {at}{after}', sheet.width - 15)}",
        indent=3 - 2 * bool(number),
    )


def _print_launches(sheet: Sheet, summary: Summary) -> None:
    for use in summary.launches[:TOP]:
        if summary.steps:
            count = f"{use.kernels_per_step:,.0f} kernels per step"
        else:
            count = f"{use.kernels:,} kernels"
        text = f"{count}, half of them under {words.format_duration(use.median_kernel_ns)}"
        sheet.line(f"{text}; {words.format_share(use.short_share)} are under 10 µs.", indent=2)


def _print_memory(sheet: Sheet, summary: Summary) -> None:
    """Print how much each device held over the capture, where allocations were recorded."""
    if summary.memory:
        sheet.heading("Memory held over time")
    for use in summary.memory[:TOP]:
        where = "host" if use.device < 0 else f"device {use.device}"
        levels = sheet.strip(
            [level / max(use.peak_bytes, 1) for level in use.levels_bytes],
            max(20, sheet.width - 16),
        )
        first, peak = words.format_bytes(use.first_bytes), words.format_bytes(use.peak_bytes)
        if use.growth_bytes_per_step:
            grown = f"; {words.format_bytes(use.growth_bytes_per_step)} more each step"
        else:
            grown = ""
        sheet.path(f"{where:10} {levels}", indent=2)
        sheet.line(f"{first} at the start, {peak} at the peak{grown}.", indent=2)
        if use.holders:
            print_holders(
                sheet,
                f"Lines that allocated the memory held, in this capture: {where}",
                use.holders,
                TOP,
            )


def _print_workers(sheet: Sheet, summary: Summary) -> None:
    """Print how the loader's worker processes spent their time; the lines are those of the busiest
    worker.
    """
    for number, use in enumerate(summary.workers[:TOP]):
        made = (
            f"{use.batches} batch{'es' * (use.batches != 1)} of"
            f" {words.format_duration(use.batch_ns)}"
        )
        took = f"{made}, busy {words.format_share(use.busy_share)} of the time"
        if not number:
            sheet.heading("Inside the loader's worker processes")
        sheet.line(f"{use.worker}: {took}", indent=1)
    for row in summary.workers[0].lines[: TOP + 3] if summary.workers else ():
        _print_named(sheet, row.line, row.share, words.format_duration(row.time_ns))


def _print_serving(sheet: Sheet, summary: Summary) -> None:
    """Print a server's batches, and what the host did for each."""
    use = summary.serving
    if use is None:
        return
    sheet.heading("Batches served")
    sheet.line(f"{words.format_serving(use)}.", indent=1)
    for part in use.parts:
        beside = f"{words.format_share(part.beside_device_share)} of it while the device works"
        sheet.line(
            f"{part.name:<12} {words.format_duration(part.batch_ns):>9} per batch, {beside}",
            indent=2,
        )


def _print_roofline(sheet: Sheet, summary: Summary) -> None:
    """Print how near matrix operators come to the ceiling above them, where the device's ceilings
    are known.
    """
    machine = summary.roofline.machine
    if summary.blind:
        _print_intensities(sheet, summary)
        return
    rows = [row for row in summary.roofline.rows if row.ceiling_share >= 0]
    if machine is None or not rows:
        return
    sheet.heading(f"Operators under the roofline of {machine.name}: share of the ceiling reached")
    for letter, row in zip(LETTERS, rows[:TOP], strict=False):
        name = f"{letter} {row.operator} {row.precision}, {row.bound}"
        _print_named(sheet, name, row.ceiling_share, words.format_duration(row.time_ns))
    for line in (
        draw_roofline(machine, rows[:TOP], sheet.width - 2) if sheet.width >= NARROWEST else ()
    ):
        sheet.path(line, indent=1)
    sheet.line(summary.roofline.note, indent=1, style="dim")


def _print_intensities(sheet: Sheet, summary: Summary) -> None:
    """Print work and traffic of the operators whose shapes determine them, and the machine's
    balance to compare with.
    """
    roofline = summary.roofline
    if not roofline.rows:
        return
    sheet.heading("Arithmetic per byte that must move, computed from the shapes")
    for row in roofline.rows[:TOP]:
        figures = f"{row.intensity:8,.2f} FLOP/byte {words.format_flops(row.flops_per_s):>14}  "
        sheet.path(
            sheet.safe(figures)
            + sheet.fit(f"{row.operator} {row.precision}", sheet.width - len(figures) - 1),
            indent=1,
        )
    for precision in sorted({row.precision for row in roofline.rows}) if roofline.machine else ():
        if roofline.machine and precision in roofline.machine.flops:
            balance = roofline.machine.balance(precision)
            sheet.line(
                f"{roofline.machine.name}: memory and {precision} arithmetic balance at"
                f" {balance:,.1f} FLOP/byte.",
                indent=1,
            )
    if roofline.machine is None:
        sheet.line(roofline.note, indent=1, style="dim")


def _print_lines(sheet: Sheet, summary: Summary) -> None:
    """Print the reader's own Python, where stacks were recorded."""
    on_device = any(row.device_ns for row in summary.lines)
    wall = sum(use.wall_ns for use in summary.devices) or 1
    rows = sorted(
        (
            (row.device_ns if on_device else row.host_ns + row.backward_ns, row.line)
            for row in summary.lines
        ),
        reverse=True,
    )
    if rows:
        sheet.heading(
            f"{describe_lines(summary)}, by"
            f" {'device time launched' if on_device else 'time spent in them'}"
        )
    for ns, line in rows[:TOP]:
        _print_named(sheet, line, ns / wall, words.format_duration(ns))


def _print_findings(sheet: Sheet, findings: Sequence[Finding]) -> None:
    sheet.heading("Findings, costliest first")
    if not findings:
        sheet.line("Nothing stands out: no detector found a known bottleneck.", indent=1)
    for number, finding in enumerate(findings, start=1):
        gain = words.describe_gain(finding)
        sheet.line(f"{finding.title} ({gain})", indent=1, lead=f"{number} ", style="bold")
        sheet.line(finding.evidence, indent=3)
        if finding.doubt:
            sheet.line(f"In doubt: {finding.doubt}.", indent=3, style="yellow")
        sheet.line(finding.advice, indent=3, lead=sheet.safe("→ "))
