"""The page's tables behind a summary: one function a table, in the order of the page.

A table that has nothing to show is None. A new table is one function here and its name in `WIDE` or
`NARROW`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.report.breakdown import (
    Wait,
    costly_lines,
    costly_operators,
    describe_collectives,
    describe_late_ranks,
    describe_lines,
    describe_side_by_side,
    kernel_time_ns,
    line_label,
    time_of_other_lines,
    waits_by_cost,
)
from bottleneck_lab.report.kernel_names import cut_name, short_name, short_names
from bottleneck_lab.report.memory_table import tabulate_use
from bottleneck_lab.report.memory_words import (
    ALLOCATED_ONLY,
    describe_counts,
    describe_growth,
    describe_late_lines,
    describe_left_behind,
    describe_peak_without_steps,
)
from bottleneck_lab.report.page import charts
from bottleneck_lab.report.page.markup import Markup, join, table, tag
from bottleneck_lab.report.page.memory import cause_tables
from bottleneck_lab.report.page.roofline_chart import roofline_chart
from bottleneck_lab.report.roofline_axes import LETTERS
from bottleneck_lab.wording import counted

# Rows of a table; `lab report --query` shows all.
TOP = 15
SOURCE = 90
"""A line of source code is cut to so many characters."""


def workers_table(summary: Summary) -> Markup | None:
    """Render one row per line of every worker process of the data loader, under the worker's own
    figures.
    """
    cells = []
    for use in summary.workers:
        took = (
            f"{counted(use.batches, 'batch', 'batches')} of {words.format_duration(use.batch_ns)}"
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
    table = _table(head, cells, "Inside the loader's worker processes", numeric=(1, 2))
    if table is None or not any(use.lines for use in summary.workers):
        return table
    return join([table, tag("p", capture_words.WORKER_LINES, class_="soft")])


def serving_table(summary: Summary) -> Markup | None:
    """Render one row a part of the work for a server's batches."""
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
    return _table(
        head, cells, f"Batches served: {capture_words.format_serving(use)}", numeric=(1, 2)
    )


def generation_table(summary: Summary) -> Markup | None:
    """Render what a generated token takes on host and device, and what sets its pace."""
    use = summary.generation
    if use is None:
        return None
    parts = {
        "the device works": use.device_ns,
        "the host works": use.host_ns,
        "the host waits for the device": use.wait_ns,
    }
    if use.on_cpu:
        parts = {"operators run": use.device_ns, "Python": use.token_ns - use.device_ns}
    cells = [
        [name, words.format_duration(ns), words.format_share_column(ns / max(use.token_ns, 1))]
        for name, ns in parts.items()
    ]
    head = [f"in the time of a {use.unit}", f"per {use.unit}", "share"]
    listed = _table(head, cells, f"Why a {use.unit} takes its time", numeric=(1, 2))
    sentences = capture_words.describe_tokens(use)
    if not summary.blind and not summary.remedies_later:
        sentences.append(capture_words.advise_tokens(use, emulated=summary.emulated))
    return join([listed or "", tag("p", " ".join(sentences), class_="soft")])


def operators_table(summary: Summary) -> Markup | None:
    """Render operators by self time, costliest first."""
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


def kernels_table(summary: Summary) -> Markup | None:
    """Render kernels by total time, longest first."""
    short = short_names(row.name for row in summary.kernels)
    whole = kernel_time_ns(summary)
    occupied = any(row.occupancy >= 0 for row in summary.kernels)
    cells = [
        [
            _name(row.name, short[row.name]),
            f"{row.calls:,}",
            words.format_share_column(row.total_ns / whole),
            *(words.format_duration(ns) for ns in (row.total_ns, row.mean_ns, row.max_ns)),
            *(["" if row.occupancy < 0 else f"{row.occupancy:.0f}%"] if occupied else []),
        ]
        for row in summary.kernels[:TOP]
    ]
    head = ["kernel", "calls", "share", "total", "mean", "longest"]
    if occupied:
        head.append("occupancy")
    title = "Top kernels, by share of the wall time"
    if describe_side_by_side(summary):
        title = "Top kernels, by share of their summed time: they ran side by side"
    return _table(head, cells, title, numeric=range(1, len(head)))


def roofline_table(summary: Summary) -> Markup | None:
    """Render operators against the device's ceilings, by the FLOP and bytes that their shapes
    imply.
    """
    rows = summary.roofline.rows[:TOP]
    roofline = msgspec.structs.replace(summary.roofline, rows=rows)
    cells = [
        [
            letter,
            _name(row.operator),
            row.precision,
            f"{row.calls:,}",
            words.format_duration(row.time_ns),
            words.format_flops(row.flops_per_s),
            f"{row.intensity:,.3g}",
            row.bound if row.ceiling_share >= 0 else "–",
            words.format_share(row.ceiling_share) if row.ceiling_share >= 0 else "–",
        ]
        for letter, row in zip(LETTERS, rows, strict=False)
    ]
    head = [
        "",
        "operator",
        "type",
        "calls",
        "time with all it calls",
        "achieved",
        "FLOP/byte",
        "limited by",
        "of the ceiling",
    ]
    listed = _table(head, cells, "Operators under the roofline", numeric=(3, 4, 5, 6, 8))
    how = (
        "FLOP and bytes are computed from the input shapes, each byte moved once: the minimum for"
        " any kernel."
    )
    method = tag("p", f"{roofline.note} {how}", class_="soft")
    if listed:
        return join([listed, roofline_chart(roofline), method])
    return None


def lines_table(summary: Summary) -> Markup | None:
    """Render the reader's own Python, where stacks were recorded."""
    on_device = any(row.device_ns for row in summary.lines)
    exact = any(row.exact for row in summary.lines)
    rows, by_device = costly_lines(summary)
    head = ["where", "times", "host's time in it"]
    if on_device:
        head.insert(2, "device time launched")
    # torch.profiler alone records functions, which count no operators of their own.
    backward = any(row.backward_ns for row in summary.lines)
    undone = on_device and any(row.backward_device_ns for row in summary.lines)
    if undone:
        head.insert(3, "of it by their backward")
    if exact:
        head += ["operators"]
    if backward:
        head += ["host's time in their backward"]
    cells = []
    for _, row in rows[:TOP]:
        where = _line(summary, row.line, line_label(summary, row))
        cell = [where, f"{row.calls:,}", words.format_duration(row.host_ns)]
        if on_device:
            cell.insert(2, words.format_duration(row.device_ns))
        if undone:
            cell.insert(3, words.format_duration(row.backward_device_ns))
        if exact:
            cell.append(f"{row.operators:,}")
        if backward:
            cell.append(words.format_duration(row.backward_ns))
        cells.append(cell)
    if by_device and rows and (rest := time_of_other_lines(summary, rows[:TOP])):
        cells.append(
            [capture_words.OTHER_LINES, "", words.format_duration(rest), *[""] * (len(head) - 3)]
        )
    return _table(
        head, cells, describe_lines(summary, on_device=by_device), numeric=range(1, len(head))
    )


def collectives_table(summary: Summary) -> Markup | None:
    """Render what ranks sent each other, longest first."""
    cells = [
        [name, words.format_duration(total_ns), words.format_duration(exposed_ns)]
        for name, total_ns, exposed_ns in describe_collectives(summary)[:TOP]
    ]
    head = ["collective", "time", "not hidden behind computation"]
    return _table(head, cells, "What ranks sent each other", numeric=[1, 2])


def waits_table(summary: Summary) -> Markup | None:
    """Render where the host waited, for what, and what a step saves without the line or, where that
    is not known, how long the device was idle after its waits; lines that cost most first. Times
    are those in a step, where there are steps.
    """
    steps, waits = max(len(summary.steps), 1), waits_by_cost(summary)
    saves = bool(waits) and waits[0].saved is not None
    cells = [
        [
            _line(summary, row.line, row.line or row.name),
            _name(row.caused_by or "called directly"),
            f"{row.calls_per_step:.1f}" if summary.steps else f"{row.calls:,}",
            words.format_duration(row.total_ns / steps),
            _name(capture_words.describe_awaited(row)),
            words.format_duration(row.awaited_ns / steps) if row.awaited else "",
            _cost_of(wait, steps, saves=saves) if row is wait.rows[0] else "",
        ]
        for wait in waits
        for row in wait.rows
    ][:TOP]
    head = [
        "line or call that waited",
        "caused by",
        "calls",
        "waiting",
        "longest for",
        "which ran for",
        "saves" if saves else "idle after",
    ]
    if saves and summary.blind:  # it is the reader's to find until they have said
        head, cells = head[:-1], [row[:-1] for row in cells]
    title = capture_words.title_waits(summary)
    caption = f"{title}. {capture_words.explain_waits(summary, saves=saves)}"
    return _table(head, cells, caption.removesuffix(". "), numeric=(2, 3, 5, 6))


def _cost_of(wait: Wait, steps: int, *, saves: bool) -> str:
    """Return what the waits of a line cost, as the table has it."""
    if not saves:
        return words.format_duration(wait.idle_ns / steps)
    return "" if wait.saved is None else f"{wait.saved:.1%}"


def copies_table(summary: Summary) -> Markup | None:
    """Render copies by direction and host memory."""
    cells = [
        [
            row.direction,
            row.host_memory,
            f"{row.calls:,}",
            words.format_bytes(row.bytes),
            words.format_duration(row.total_ns),
            f"{row.gb_per_s:.3g} GB/s" if row.gb_per_s else "not recorded",
        ]
        for row in summary.copies
    ]
    return _table(
        ["direction", "host memory", "calls", "bytes", "total", "rate"],
        cells,
        "Copies",
        numeric=range(2, 6),
    )


def launches_table(summary: Summary) -> Markup | None:
    """Render how kernels were launched, a row a device."""
    cells = [
        [
            _device(summary, row.rank, row.device),
            f"{row.kernels_per_step if summary.steps else row.kernels:,.0f}",
            words.format_duration(row.median_kernel_ns),
            words.format_share_column(row.short_share),
            words.format_duration(row.median_delay_ns),
            f"{row.median_queue_depth:.0f}",
        ]
        for row in summary.launches
    ]
    head = [
        "device",
        "kernels per step" if summary.steps else "kernels",
        "median kernel",
        "under 10 µs",
        "median launch delay",
        "median queue",
    ]
    return _table(
        head, cells, "How kernels were launched (copies not counted)", numeric=range(1, 6)
    )


def memory_tables(summary: Summary) -> Markup | None:
    """Render memory held over the capture, and the lines that allocated it."""
    cells = [
        [
            _device(summary, row.rank, row.device),
            words.format_bytes(row.start_bytes),
            words.format_bytes(row.peak_bytes),
            describe_growth(row),
            f"{row.allocations:,}",
            f"{row.driver_calls:,}",
        ]
        for row in summary.memory
    ]
    drawn = [
        tag(
            "div",
            tag(
                "p",
                f"{_device(summary, use.rank, use.device)}, from 0 to"
                f" {words.format_bytes(use.peak_bytes)}, over the whole capture; level where"
                " nothing was allocated or freed",
                class_="soft",
            ),
            chart,
            tag("p", describe_peak_without_steps(use), class_="soft"),
            tag("p", describe_left_behind(use, blind=summary.blind), class_="soft"),
        )
        for use in summary.memory
        if (chart := charts.memory_chart(use))
    ]
    head = ["where", "at first", "peak", "growth per step", "allocations", "driver calls"]
    listed = _table(head, cells, "Memory", numeric=range(1, 6))
    held = [
        cause_tables(
            tabulate_use(use),
            use.holders,
            f"Lines that caused the memory at the peak: {_device(summary, use.rank, use.device)}",
            lambda row: _line(summary, row.name, row.name),
        )
        for use in summary.memory
        if use.holders
    ]
    late = [
        tag("p", sentence, class_="soft")
        for use in summary.memory
        for sentence in (describe_counts(use), describe_late_lines(use.holders, summary.code))
        if use.holders and sentence
    ]
    if listed:
        return tag("div", listed, tag("p", ALLOCATED_ONLY, class_="soft"), drawn, held, late)
    return None


def ranks_table(summary: Summary) -> Markup | None:
    """Render each rank's own work per step."""
    cells = [
        [
            f"rank {row.rank}",
            words.format_duration(row.work_ns),
            words.format_duration(row.excess_ns),
            words.format_share_column(row.share_of_step),
        ]
        for row in summary.stragglers
    ]
    work = "own work"
    if summary.steps:
        work = "own work per step"
    head = ["rank", work, "longer than the median", "share of it"]
    return _table(head, cells, "Ranks side by side", numeric=range(1, 4))


def late_ranks_table(summary: Summary) -> Markup | None:
    """Render who was waited for in collectives, and what made it late."""
    cells = [
        [rank, because, words.format_duration(ns), f"{times:,}"]
        for rank, because, ns, times in describe_late_ranks(summary)[:TOP]
    ]
    head = ["waited for", "late because of", "waiting, all ranks", "collectives"]
    return _table(head, cells, "Who waited for whom", numeric=(2, 3))


def _device(summary: Summary, rank: int, device: int) -> str:
    where = f"device {device}"
    if device < 0:
        where = "host"
    if len(summary.ranks) > 1:
        return f"rank {rank}, {where}"
    return where


def _name(name: str, short: str = "") -> Markup:
    """Return a name shortened for reading; the whole one appears on pointing at it."""
    short = short or short_name(name)
    return tag(
        "code",
        cut_name(short, 120),
        class_="code-name",
        title=name[:2000] if short != name or len(name) > 120 else None,
    )


def _line(summary: Summary, line: str, shown: str) -> Markup:
    """Return a line of the reader's code as it is shown, with its source, cut, where that is at
    hand.
    """
    code = summary.code.get(line, "")
    if not code:
        return _name(shown)
    cut = code if len(code) <= SOURCE else f"{code[: SOURCE - 1]}…"
    return join([_name(shown), tag("code", cut, class_="soft source", title=code)])


def _table(
    head: list[str], cells: Sequence[Sequence[str]], caption: str, *, numeric: Sequence[int]
) -> Markup | None:
    if cells:
        return table(head, cells, caption=caption, numeric=set(numeric))
    return None


# Tables that take the page's width, in order.
WIDE: tuple[Callable[[Summary], Markup | None], ...] = (
    workers_table,
    serving_table,
    generation_table,
    kernels_table,
    operators_table,
    roofline_table,
    lines_table,
    waits_table,
    launches_table,
    memory_tables,
)

# Tables that stand in two columns, in order.
NARROW: tuple[Callable[[Summary], Markup | None], ...] = (
    copies_table,
    collectives_table,
    ranks_table,
    late_ranks_table,
)
