"""The page's sections about a capture: where the time went, what stands out, and the tables behind
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.causes import CAUSE_OF
from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report import words
from bottleneck_lab.report.breakdown import (
    costly_operators,
    describe_capture,
    describe_collectives,
    describe_lines,
    device_label,
    short_name,
    wall_parts,
)
from bottleneck_lab.report.memory_words import COLUMNS, holder_cells
from bottleneck_lab.report.page import charts
from bottleneck_lab.report.page.markup import Markup, Section, join, table, tag
from bottleneck_lab.report.page.verdict import section

TOP = 15
RANGE_COLOURS = 6
"""How many colours page.css has for ranges; the seventh range has the first's again."""


def time_section(summary: Summary) -> Section:
    """Render wall time by cause: in figures, as one bar, for every device, and by the ranges that
    the program marked.
    """
    # How long each step took; one rank's steps, where there are several ranks.
    steps = [step for step in summary.steps if step.rank == summary.steps[0].rank]
    drawn = charts.steps_chart(steps)
    return section(
        "time",
        "Where the time went",
        _warnings(summary),
        _figures(summary),
        _wall_bar(summary),
        _device_bars(summary) if len(summary.devices) > 1 else None,
        (tag("div", tag("h3", f"Each of {len(steps)} steps"), drawn) if drawn else None),
        _range_bar(summary),
        lead=describe_capture(summary),
    )


def _warnings(summary: Summary) -> list[Markup]:
    shown = [
        tag("p", "Unreliable, because ", tag("b", reason), ".", class_="warning")
        for reason in summary.quality.reasons
    ]
    if summary.withheld:
        withheld = ", ".join(finding.id for finding in summary.withheld)
        shown.append(
            tag(
                "p",
                f"Withheld, because the data behind it is missing: {withheld}.",
                class_="warning",
            )
        )
    if summary.emulated:
        shown.append(tag("p", words.EMULATED, class_="warning"))
    return [*shown, *(tag("p", note, class_="soft") for note in summary.quality.notes)]


def _figures(summary: Summary) -> Markup:
    wall = sum(use.wall_ns for use in summary.devices) or 1
    busy = sum(use.busy_ns for use in summary.devices) / wall
    worst = next((part for part in wall_parts(summary.devices) if part.cause), None)
    idle = sum(use.idle_ns for use in summary.devices) / wall
    shown = [
        (words.format_share(busy), "device busy" if not summary.cpu_only else "operators running")
    ]
    if worst:
        shown.append(
            (words.format_share(worst.share), f"largest idle part: {CAUSE_OF[worst.cause].label}")
        )
    elif summary.blind:
        shown.append(
            (
                words.format_share(idle),
                "device idle" if not summary.cpu_only else "no operator running",
            )
        )
    if summary.steps:
        shown.append((words.format_duration(summary.step_mean_ns), "mean step"))
    if summary.findings and summary.findings[0].share_of_wall:
        shown.append(
            (
                words.describe_gain(summary.findings[0]),
                "most that fixing the first finding can gain",
            )
        )
    return tag(
        "ul",
        [tag("li", tag("b", figure), tag("span", what)) for figure, what in shown],
        class_="figures",
    )


def _wall_bar(summary: Summary) -> Markup:
    parts = wall_parts(summary.devices)
    bar = charts.stacked_bar(
        [(part.label, part.colour, part.share) for part in parts], label="Wall time by cause"
    )
    rows = [
        [
            _keyed(part.colour, part.label),
            words.format_share_column(part.share),
            words.format_duration(part.ns),
            part.explained,
        ]
        for part in parts
    ]
    many = ""
    if len(summary.devices) > 1:
        many = f" of all {len(summary.devices)} devices"
    return join(
        [
            bar,
            table(
                ["part", "share", "time", "what happened"],
                rows,
                caption=f"Wall time{many}, by activity",
                numeric={1, 2},
            ),
        ]
    )


def _device_bars(summary: Summary) -> Markup:
    bars = [
        tag(
            "div",
            tag("p", device_label(use, ranks=len(summary.ranks)), class_="soft"),
            _device_bar(use),
        )
        for use in summary.devices
    ]
    return tag("div", tag("h3", "Each device"), bars)


def _device_bar(use: DeviceUse) -> Markup:
    parts = [(part.label, part.colour, part.share) for part in wall_parts([use])]
    return charts.stacked_bar(parts, label=f"Wall time of {device_label(use, ranks=2)} by cause")


def _range_bar(summary: Summary) -> Markup | None:
    """Return the ranges beside each other in a step. Ranges that lie inside another would count
    twice: those are left to the table.
    """
    shares = summary.range_shares
    if not shares:
        return None
    coloured = {name: f"range-{nth % RANGE_COLOURS}" for nth, name in enumerate(shares)}
    drawn = None
    if sum(shares.values()) <= 1:
        drawn = charts.stacked_bar(
            [(name, coloured[name], share) for name, share in shares.items()],
            label="A step by range",
        )
    rows = [
        [_keyed(coloured[name], name) if drawn else name, words.format_share_column(share)]
        for name, share in shares.items()
    ]
    return join(
        [
            drawn,
            table(
                ["range", "share of the step"],
                rows[:TOP],
                caption="A step by the ranges marked in it",
                numeric={1},
            ),
        ]
    )


def _keyed(colour: str, label: str) -> Markup:
    return tag("span", tag("span", class_=f"key {colour}"), label)


def findings_section(summary: Summary) -> Section:
    """Render findings, costliest first, each with what to try and what removing it would gain."""
    if not summary.findings:
        return section(
            "findings",
            "Findings",
            tag("p", "Nothing stands out: no detector found a known bottleneck."),
        )
    lead = (
        "Ranked by the time they cost. The gain is what removing a finding entirely would bring"
        " (Amdahl's law)."
    )
    return section(
        "findings", "Findings", [_finding(finding) for finding in summary.findings], lead=lead
    )


def _finding(finding: Finding) -> Markup:
    gain = "–"
    if finding.share_of_wall:
        gain = words.describe_gain(finding)
    doubted = [("In doubt", f"{finding.doubt}.")] if finding.doubt else []
    facts = [
        ("Evidence", finding.evidence),
        *doubted,
        ("What to try", finding.advice),
        ("Kind", finding.cause),
    ]
    return tag(
        "div",
        tag(
            "div",
            gain,
            tag("small", f"{words.format_share(finding.share_of_wall)} of the time"),
            class_="gain",
        ),
        tag(
            "div",
            tag("h3", finding.title),
            tag("dl", [join([tag("dt", name), tag("dd", text)]) for name, text in facts]),
        ),
        class_="finding",
    )


def operators_section(summary: Summary) -> Section | None:
    """Return the tables behind the summary: operators, kernels, the reader's own lines, waits,
    copies, launches, memory, ranks.
    """
    wide = [
        build(summary) for build in (_workers, _serving, _kernels, _operators, _roofline, _lines)
    ]
    small = [
        build(summary) for build in (_syncs, _copies, _collectives, _launches, _memory, _stragglers)
    ]
    if not any(wide) and not any(small):
        return None
    return section("operators", "Operators and kernels", *wide, tag("div", small, class_="pair"))


def _workers(summary: Summary) -> Markup | None:
    """Return one row per line of every worker process of the data loader, under the worker's own
    figures.
    """
    cells = []
    for use in summary.workers:
        took = (
            f"{use.batches} batch{'es' * (use.batches != 1)} of"
            f" {words.format_duration(use.batch_ns)}"
        )
        cells.append([tag("b", use.worker), took, words.format_share_column(use.busy_share)])
        cells += [
            [
                _name(row.line),
                words.format_duration(row.time_ns),
                words.format_share_column(row.share),
            ]
            for row in use.lines
        ]
    head = ["worker, and its lines (sampled)", "time", "share"]
    return _table(head, cells, "Inside the loader's worker processes", numeric=(1, 2))


def _serving(summary: Summary) -> Markup | None:
    """Return one row a part of the work for a server's batches."""
    use = summary.serving
    if use is None:
        return None
    cells = [
        [
            part.name,
            words.format_duration(part.batch_ns),
            words.format_share_column(part.beside_device_share),
        ]
        for part in use.parts
    ]
    head = ["the host's part", "per batch", "while the device works"]
    return _table(head, cells, f"Batches served: {words.format_serving(use)}", numeric=(1, 2))


def _operators(summary: Summary) -> Markup | None:
    rows, on_device = costly_operators(summary)
    head = ["operator", "calls", "share", "CPU, self", "CPU, total"]
    if on_device:
        head[3:3] = ["device, self", "device, total"]
    cells = [
        [
            _name(row.name),
            f"{row.calls:,}",
            words.format_share_column(row.share),
            *map(
                words.format_duration,
                (row.device_self_ns, row.device_total_ns) if on_device else (),
            ),
            words.format_duration(row.self_ns),
            words.format_duration(row.total_ns),
        ]
        for row in rows[:TOP]
    ]
    by = "CPU"
    if on_device:
        by = "device"
    return _table(head, cells, f"Top operators, by {by} self time", numeric=range(1, len(head)))


def _kernels(summary: Summary) -> Markup | None:
    cells = [
        [
            _name(row.name),
            f"{row.calls:,}",
            words.format_share_column(row.share),
            *(words.format_duration(ns) for ns in (row.total_ns, row.mean_ns, row.max_ns)),
            "" if row.occupancy < 0 else f"{row.occupancy:.0f}%",
        ]
        for row in summary.kernels[:TOP]
    ]
    head = ["kernel", "calls", "share", "total", "mean", "longest", "occupancy"]
    return _table(head, cells, "Top kernels", numeric=range(1, 7))


def _roofline(summary: Summary) -> Markup | None:
    """Render operators against the device's ceilings, by the FLOP and bytes that their shapes
    imply.
    """
    roofline = summary.roofline
    cells = [
        [
            _name(row.operator),
            row.precision,
            f"{row.calls:,}",
            words.format_duration(row.time_ns),
            words.format_flops(row.flops_per_s),
            f"{row.intensity:,.3g}",
            row.bound if row.ceiling_share >= 0 else "–",
            words.format_share(row.ceiling_share) if row.ceiling_share >= 0 else "–",
        ]
        for row in roofline.rows[:TOP]
    ]
    head = [
        "operator",
        "type",
        "calls",
        "time",
        "achieved",
        "FLOP/byte",
        "limited by",
        "of the ceiling",
    ]
    listed = _table(head, cells, "Operators under the roofline", numeric=(2, 3, 4, 5, 7))
    how = (
        "FLOP and bytes are computed from the input shapes, each byte moved once: the minimum for"
        " any kernel."
    )
    method = tag("p", f"{roofline.note} {how}", class_="soft")
    if listed:
        return join([listed, charts.roofline_chart(roofline), method])
    return None


def _lines(summary: Summary) -> Markup | None:
    on_device, exact = (
        any(row.device_ns for row in summary.lines),
        any(row.exact for row in summary.lines),
    )
    head = [
        "where",
        "times",
        *(["device"] if on_device else []),
        "in it",
        *(["operators", "backward"] if exact else []),
    ]
    cells = [
        [
            _name(row.line),
            f"{row.calls:,}",
            *([words.format_duration(row.device_ns)] if on_device else []),
            words.format_duration(row.host_ns),
            *([f"{row.operators:,}", words.format_duration(row.backward_ns)] if exact else []),
        ]
        for row in summary.lines[:TOP]
    ]
    return _table(head, cells, describe_lines(summary), numeric=range(1, len(head)))


def _collectives(summary: Summary) -> Markup | None:
    cells = [[name, words.format_duration(ns)] for name, ns in describe_collectives(summary)[:TOP]]
    return _table(["collective", "time"], cells, "What ranks sent each other", numeric=[1])


def _syncs(summary: Summary) -> Markup | None:
    cells = [
        [
            _name(row.line or row.name),
            _name(row.caused_by or "called directly"),
            f"{row.calls_per_step:.1f}",
            words.format_duration(row.total_ns),
            _name(words.describe_awaited(row)),
        ]
        for row in summary.syncs[:TOP]
    ]
    head = ["line or call that waited", "caused by", "per step", "total", "mostly for"]
    return _table(head, cells, "Where the host waited", numeric=(2, 3))


def _copies(summary: Summary) -> Markup | None:
    cells = [
        [
            row.direction,
            row.host_memory,
            f"{row.calls:,}",
            words.format_bytes(row.bytes),
            words.format_duration(row.total_ns),
            f"{row.gb_per_s:.1f} GB/s" if row.gb_per_s else "not recorded",
        ]
        for row in summary.copies
    ]
    return _table(
        ["direction", "host memory", "calls", "bytes", "total", "rate"],
        cells,
        "Copies",
        numeric=range(2, 6),
    )


def _launches(summary: Summary) -> Markup | None:
    cells = [
        [
            _device(summary, row.rank, row.device),
            f"{row.kernels_per_step:,.0f}",
            words.format_duration(row.median_kernel_ns),
            words.format_share_column(row.short_share),
            words.format_duration(row.median_delay_ns),
            f"{row.median_queue_depth:.0f}",
        ]
        for row in summary.launches
    ]
    head = [
        "device",
        "kernels per step",
        "median kernel",
        "under 10 µs",
        "median launch delay",
        "median queue",
    ]
    return _table(head, cells, "How kernels were launched", numeric=range(1, 6))


def _memory(summary: Summary) -> Markup | None:
    cells = [
        [
            _device(summary, row.rank, row.device),
            words.format_bytes(row.first_bytes),
            words.format_bytes(row.peak_bytes),
            words.format_bytes(row.growth_bytes_per_step),
            f"{row.allocations:,}",
            f"{row.driver_calls:,}",
        ]
        for row in summary.memory
    ]
    drawn = [
        tag(
            "div",
            tag("p", f"{_device(summary, use.rank, use.device)}, over time", class_="soft"),
            chart,
        )
        for use in summary.memory
        if (chart := charts.memory_chart(use))
    ]
    head = ["where", "at first", "peak", "growth per step", "allocations", "driver calls"]
    listed = _table(head, cells, "Memory", numeric=range(1, 6))
    held = [
        _table(
            list(COLUMNS),
            [holder_cells(row) for row in use.holders],
            "Lines that allocated the memory held, in this capture:"
            f" {_device(summary, use.rank, use.device)}",
            numeric=range(1, 5),
        )
        for use in summary.memory
    ]
    if listed:
        return tag("div", listed, drawn, held)
    return None


def _stragglers(summary: Summary) -> Markup | None:
    cells = [
        [
            f"rank {row.rank}",
            words.format_duration(row.work_ns),
            words.format_duration(row.excess_ns),
            words.format_share_column(row.share_of_step),
        ]
        for row in summary.stragglers
    ]
    head = ["rank", "own work per step", "longer than the median", "share of a step"]
    return _table(head, cells, "Ranks side by side", numeric=range(1, 4))


def _device(summary: Summary, rank: int, device: int) -> str:
    where = "host" if device < 0 else f"device {device}"
    if len(summary.ranks) > 1:
        return f"rank {rank}, {where}"
    return where


def _name(name: str) -> Markup:
    """Return a name shortened for reading; the whole one appears on pointing at it."""
    short = short_name(name)
    return tag(
        "code",
        short if len(short) <= 120 else f"{short[:119]}…",
        title=name[:2000] if short != name or len(name) > 120 else None,
    )


def _table(
    head: list[str], cells: Sequence[Sequence[str]], caption: str, *, numeric: Sequence[int]
) -> Markup | None:
    if cells:
        return table(head, cells, caption=caption, numeric=set(numeric))
    return None
