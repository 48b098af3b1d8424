"""A capture in the terminal, top-down: where the time went, which block is the biggest, what is
inside it, what to try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from bottleneck_lab.analysis.device.use import STRIP, numbered_gaps
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.report.breakdown import (
    Part,
    Wait,
    costly_operators,
    describe_capture,
    describe_collectives,
    describe_devices,
    describe_earlier_launches,
    describe_lead,
    describe_ranges,
    describe_scope,
    describe_short_gaps,
    describe_side_by_side,
    describe_steps,
    device_names,
    group_alike,
    kernel_time_ns,
    leading_part,
    range_times,
    split_waits,
    waits_by_cost,
    wall_parts,
)
from bottleneck_lab.report.console.lists import (
    TOP,
    print_findings,
    print_gaps,
    print_generation,
    print_late_ranks,
    print_launches,
    print_lines,
    print_memory,
    print_operators,
    print_roofline,
    print_serving,
    print_workers,
)
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.kernel_names import short_names
from bottleneck_lab.report.memory_words import changes_between_steps
from bottleneck_lab.wording import counted

EMULATED_KERNEL = "emulated: "
"""How the names of kernels begin that stand for operators in a trace of the virtual GPU."""
_ALL_BUSY = 0.95
"""Share of the time with work from which gaps are no evidence of anything."""
_HARDLY = 0.005
"""Waits, or copies, that take less than this share (0-1) of the wall time together are one line."""
_MARK_COLUMNS = 5
_MARK_EVERY = [size * 10**power for power in range(12) for size in (1, 2, 5)]


def render_summary(summary: Summary, console: Console, *, whole: bool = False) -> None:
    """Print the summary of a capture, top-down. `whole`: with the lists that lead to a cause also
    where the causes stand above them.
    """
    sheet = Sheet(console)
    parts = wall_parts(summary.devices)
    _print_title(sheet, summary)
    if summary.of_memory:
        _print_memory_first(sheet, summary, whole=whole)
        if not whole:
            return
    lead = None if summary.blind or summary.of_memory else leading_part(parts)
    if summary.cpu_only and lead and lead.key == "compute":
        lead = None  # the operators in it have a list of their own below
    # How near operators come to a ceiling is no matter where the device mostly waits.
    rates = whole or summary.cpu_only or lead is None or lead.key == "compute"
    # Without causes there is no second part.
    _print_parts(sheet, summary, parts, number="1  " if lead else "")
    _print_strips(sheet, summary)
    if summary.blind:
        _print_evidence(sheet, summary, whole=whole)
    elif lead:
        _print_biggest(sheet, summary, lead)
        _print_inside(sheet, summary, lead, whole=whole)
    if whole and not summary.blind:
        _print_evidence(sheet, summary, whole=True)
    if not summary.of_memory:
        print_memory(sheet, summary, steady=whole, whole=whole)
    print_workers(sheet, summary)
    print_serving(sheet, summary)
    print_generation(sheet, summary)
    print_operators(sheet, summary)
    if rates:
        print_roofline(sheet, summary)
    print_lines(sheet, summary)
    if summary.blind:
        sheet.blank()
        sheet.line(capture_words.describe_hidden(summary), indent=1)
    elif not summary.of_memory:
        print_findings(sheet, summary)
    lists = {
        "the ranges of a step": bool(range_times(summary)),
        "copies": summary.copies,
        "kernels": summary.kernels,
        "the longest gaps": numbered_gaps(summary.devices),
        "the roofline": not rates and summary.roofline.rows,
        "the lines that hold memory": [
            use for use in summary.memory if use.holders and not changes_between_steps(use)
        ],
    }
    left_out = [name for name, rows in lists.items() if rows]
    if left_out and not whole and not summary.blind:
        sheet.blank()
        sheet.line(
            f"Left out here: {', '.join(left_out)}. With `--all` they are listed, and the page of"
            " `--html` has everything.",
            indent=1,
            style="dim",
        )


def _print_memory_first(sheet: Sheet, summary: Summary, *, whole: bool) -> None:
    """Print what a lab about memory asks for."""
    print_memory(sheet, summary, whole=whole)
    if not summary.blind:
        print_findings(sheet, summary, whole=whole)
    sheet.blank()
    for text in filter(None, (capture_words.OF_TIME, capture_words.describe_hidden(summary))):
        sheet.line(text, indent=1)


def render_top(summary: Summary, rest: str, console: Console) -> None:
    """Print the top of a summary: what was captured and where its time went. `rest` is the command
    that prints the whole.
    """
    sheet = Sheet(console)
    _print_title(sheet, summary)
    if summary.of_memory:
        print_memory(sheet, summary, holders=False)
    else:
        _print_parts(sheet, summary, wall_parts(summary.devices), number="")
        _print_strips(sheet, summary)
    sheet.blank()
    sheet.line(capture_words.describe_rest(rest, summary), indent=1)


def _print_title(sheet: Sheet, summary: Summary) -> None:
    sheet.rule()
    what = "memory" if summary.of_memory else "time"
    sheet.line(f"Where the {what} went", style="bold", indent=1)
    sheet.rule()
    sheet.line(describe_capture(summary), indent=1)
    devices = describe_devices(summary)
    sheet.line(
        "; ".join(devices[:4]) + (f" and {len(devices) - 4} more" if len(devices) > 4 else ""),
        indent=1,
    )
    if summary.emulated:
        sentence = words.describe_emulation(modelled_host=summary.modelled_host)
        sheet.line(sentence, indent=1, style="yellow")
    if summary.disturbed:
        sheet.line(summary.disturbed, indent=1, lead="! ", style="yellow")
    for reason in summary.quality.reasons:
        sheet.line(f"Unreliable, because {reason}.", indent=1, lead="! ", style="bold red")
    if withheld := capture_words.describe_withheld(summary.withheld):
        sheet.line(withheld, indent=1, style="yellow")
    startup = capture_words.describe_startup(summary.startup)
    for note in filter(None, [describe_steps(summary), startup, *summary.quality.notes]):
        sheet.line(note, indent=1, style="dim")
    scope = describe_scope(summary)
    if scope:
        scope = f" {scope}"
    # The biggest block below may be useful work.
    findings = capture_words.main_findings(summary)
    for finding in findings[:1]:
        most = summary.check_ceiling
        if most is not None and finding.expected_gain_ratio > most:
            scope = f"{scope}; a check measures {most:.2f}x at most"
        count = f"of {len(findings)} findings" if len(findings) > 1 else "finding"
        sheet.line(
            f"{'First' if finding.share_of_wall <= 0 else 'Costliest'} {count}: {finding.title}"
            f" ({capture_words.describe_gain(finding)}{scope}).",
            indent=1,
            style="bold",
        )


def _print_parts(sheet: Sheet, summary: Summary, parts: Sequence[Part], *, number: str) -> None:
    many = len(summary.devices) > 1
    where = ""
    if many:  # a part's time is summed over them, and would seem to be more than all there is
        whole = words.format_duration(sum(use.wall_ns for use in summary.devices))
        where = f" on {len(summary.devices)} devices, {whole} together"
    sheet.heading(f"{number}Where did the wall time go{where}?")
    for part in parts:
        sheet.share_bar(part.label, part.share, words.format_duration(part.ns))
    if not summary.blind:  # else it names what has not been shown yet
        _print_fixed_prices(sheet, [part.label for part in parts])
    if many:
        sheet.blank()
        computing = [(words.format_share_column(use.compute_share), use) for use in summary.devices]
        for _, alike in group_alike(computing)[: 2 * TOP]:
            sheet.share_bar(device_names(alike, summary), alike[0].compute_share, "computing")


def _print_fixed_prices(sheet: Sheet, names: Sequence[str]) -> None:
    if fixed := capture_words.describe_fixed_prices(names):
        sheet.line(fixed, indent=2, style="dim")


def _print_strips(sheet: Sheet, summary: Summary) -> None:
    """Print how busy each device was from the first step to the last, left to right, and where it
    mostly communicated only; with a mark where the first rank's steps begin: where the one before
    was done, on host and device.
    """
    name_width = 14 if len(summary.devices) > 1 else 10
    width = max(20, min(sheet.width - name_width - 4, STRIP))
    strips = [
        (sheet.strip(use.busy_strip, width, use.exposed_strip), use)
        for use in summary.devices
        if use.busy_strip
    ]
    if not strips:
        return
    steps = [step for step in summary.steps if step.rank == summary.steps[0].rank]
    # Closer marks than these would stand unevenly: a column is as narrow as a mark can be.
    every = next(n for n in _MARK_EVERY if n * width >= _MARK_COLUMNS * len(steps))
    exposed = any(sheet.signs.pale in strip for strip, _ in strips)
    signs = [f"{sheet.signs.pale}: communicating only"] if exposed else []
    if any(" " in strip for strip, _ in strips):
        signs.append("height: share busy; blank: idle")
    if every > 1:
        signs.append(f"marked: every {'2nd' if every == 2 else f'{every:,}th'} step")
    note = f" ({'; '.join(signs)})" if signs else ""
    sheet.heading(f"How busy over time{note}")
    for strip, alike in group_alike(strips)[:TOP]:
        name = sheet.fit(device_names(alike, summary), name_width)
        sheet.path(f"{name:{name_width}} {strip}", indent=2)
    if not steps:
        return
    marks, begin_ns = [" "] * width, steps[0].start_ns
    for number, step in enumerate(steps):
        at = (begin_ns - summary.start_ns) * width // max(summary.wall_ns, 1)
        if number % every == 0 and 0 <= at < width:
            marks[at] = sheet.safe("·") if sheet.ascii else "╵"
        begin_ns += step.cost_ns
    sheet.path(f"{'steps':{name_width}} {''.join(marks).rstrip()}", indent=2)


def _print_evidence(sheet: Sheet, summary: Summary, *, whole: bool) -> None:
    """Print the evidence to look for causes in: a step's ranges, the longest gaps, waits and
    copies, without comment.
    """
    ranges = range_times(summary)[:TOP]
    if ranges:
        of = describe_ranges(summary)
        sheet.heading(
            f"The main thread in a step, by the ranges marked in it{f' ({of})' if of else ''}"
        )
    for name, share, ns in ranges:
        sheet.ranked(name, share, words.format_duration(ns))
    _print_fixed_prices(sheet, [name for name, _, _ in ranges])
    if summary.blind or summary.of_memory:  # else they stand below the largest block
        _print_waits(sheet, summary, whole=whole)
    _print_copies(sheet, summary, whole=whole)
    if summary.kernels and _kernels_are_operators(summary):
        sheet.heading("Launches (emulated: each kernel is one of the operators below)")
    else:
        short = short_names(row.name for row in summary.kernels)
        kernels = [(short[row.name], row.total_ns) for row in summary.kernels]
        _print_list(sheet, summary, "Top kernels, by share of the wall time", kernels)
    print_launches(sheet, summary)
    _print_earlier(sheet, summary)
    gaps = numbered_gaps(summary.devices)
    busy = sum(each.share for each in wall_parts(summary.devices) if each.key == "compute")
    if summary.blind and busy >= _ALL_BUSY:
        return
    if gaps:
        numbers = f"`--gap N`, 1 to {len(gaps)}," if len(gaps) > 1 else "`--gap 1`"
        title = f"The longest gap{'s' * (len(gaps) > 1)}"
        sheet.heading(f"{title} (add {numbers} to see what every thread did)")
        if short_gaps := describe_short_gaps(summary.devices):
            sheet.line(short_gaps, indent=1)
    print_gaps(
        sheet,
        summary,
        ((number, use, gap) for number, (use, gap) in enumerate(gaps, start=1)),
        TOP,
    )


def _print_earlier(sheet: Sheet, summary: Summary) -> None:
    if earlier := describe_earlier_launches(summary):
        sheet.line(earlier, indent=2, style="dim")


def _print_copies(sheet: Sheet, summary: Summary, *, whole: bool) -> None:
    """Print what was copied, or in one line that copies took next to nothing, unless `whole`."""
    copies = [
        (f"{row.direction}, {row.host_memory} memory", row.total_ns) for row in summary.copies
    ]
    share = sum(ns for _, ns in copies) / _wall_ns(summary)
    if copies and share < _HARDLY and not whole:
        sheet.blank()
        sheet.line(f"Copies took {words.format_share(share)} of the wall time.")
        return
    _print_list(sheet, summary, "Copies, by share of the wall time", copies)


def _print_list(
    sheet: Sheet, summary: Summary, title: str, rows: Sequence[tuple[str, int]]
) -> None:
    """Print the first rows, of name and ns, under a title."""
    if rows:
        sheet.heading(title)
    for name, ns in rows[:TOP]:
        sheet.ranked(name, ns / _wall_ns(summary), words.format_duration(ns))


def _kernels_are_operators(summary: Summary) -> bool:
    """Return True where every kernel is an operator on the emulated device, by another name. One of
    an operator's kernels may have a name of its own, which tells more.
    """
    rows, on_device = costly_operators(summary)
    operators = {f"{EMULATED_KERNEL}{row.name.removeprefix('aten::')}" for row in rows}
    least_ns = summary.wall_ns / 1000  # below that, operators are not listed
    return on_device and all(
        row.name in operators for row in summary.kernels if row.total_ns > least_ns
    )


def _print_biggest(sheet: Sheet, summary: Summary, biggest: Part) -> None:
    title = "Where most time is lost"
    fixed = max(
        (part.ns for part in wall_parts(summary.devices) if part.cause == "fixed"), default=0
    )
    if biggest.key == "compute":
        title = "The biggest block"
    elif fixed > biggest.ns:
        title = "Where most time is lost besides fixed charges"
    sheet.heading(f"2  {title}: {biggest.label}, {words.format_share(biggest.share)}")
    sheet.line(f"In that time {biggest.explained}.", indent=3)
    for line in describe_lead(summary, biggest):
        sheet.line(line, indent=3)


def _print_inside(sheet: Sheet, summary: Summary, lead: Part, *, whole: bool) -> None:
    if lead.cause == "synchronisation":
        _print_waits(sheet, summary, whole=True, number="3  ")
        sheet.line(capture_words.describe_waiting_line(summary), indent=1)
        _print_longest_gaps(sheet, summary, lead)
        return
    sheet.heading("3  What is inside it, by share of the wall time")
    rows = _inside(summary, lead)
    if lead.cause and summary.lines and not summary.cpu_only:
        sheet.line(capture_words.ONLY_IDLE, indent=2)
    for row in rows:
        sheet.ranked(*row)
    if not whole:  # else below the ranges of a step
        _print_fixed_prices(sheet, [name for name, *_ in rows])
    beside = describe_side_by_side(summary)
    if beside and lead.key == "compute":
        sheet.line(beside, indent=2)
    if lead.key == "compute" and not whole:  # else below the launches of a step
        _print_earlier(sheet, summary)
    if lead.cause == "launch":
        _print_launch_gaps(sheet, summary, lead)
    elif lead.cause:
        _print_longest_gaps(sheet, summary, lead)
    if lead.key == "communication":
        print_late_ranks(sheet, summary)
    # A few waits may be all that is left of a cause.
    _print_waits(sheet, summary, whole=whole)


def _print_longest_gaps(sheet: Sheet, summary: Summary, lead: Part) -> None:
    numbered = enumerate(numbered_gaps(summary.devices), start=1)
    longest = [(number, use, gap) for number, (use, gap) in numbered if gap.cause == lead.cause]
    if longest:
        sheet.line(
            "The longest of these gaps (add `--gap N` to see what every thread did):", indent=2
        )
    print_gaps(sheet, summary, longest, 3)


def _print_waits(sheet: Sheet, summary: Summary, *, whole: bool, number: str = "") -> None:
    """Print where the host waited beside what a step saves without the line, or how long the device
    was idle afterwards where that is not known; or in one line that it hardly waited, unless
    `whole`.
    """
    waits, wall_ns = waits_by_cost(summary), _wall_ns(summary)
    if not waits:
        return
    waited_ns, idle_ns = (sum(ns) for ns in zip(*map(_times, waits), strict=True))
    if waited_ns + idle_ns < _HARDLY * wall_ns and not whole:
        little = f"The host hardly waited for the device: {words.format_share(waited_ns / wall_ns)}"
        sheet.blank()
        sheet.line(f"{little} of the wall time.")
        return
    sheet.heading(f"{number}{capture_words.title_waits(summary)}")
    saves = waits[0].saved is not None
    cost_title = "idle after"
    if saves:  # which of the longest waits costs most is the reader's to find until they have said
        cost_title = "" if summary.blind else "saves"
    sheet.path(f"{'waiting':>8} {cost_title:>11}".rstrip(), indent=1)
    rows, rest = split_waits(summary, TOP)
    if rest:
        waiting_ns, after_ns = (sum(ns) for ns in zip(*map(_times, rest), strict=True))
        rows.append(Wait(counted(len(rest), "other place"), "", waiting_ns, after_ns, None, []))
    for wait in rows:
        waiting, cost = (
            words.format_duration(ns / max(len(summary.steps), 1)) for ns in _times(wait)
        )
        if saves:
            cost = "" if wait.saved is None else f"{wait.saved:.1%}"
        lead = f"{waiting:>8} {cost:>11}  " if cost_title else f"{waiting:>8}  "
        sheet.line(wait.name, lead=lead, indent=1)
        sheet.source(wait.code, indent=len(lead) + 1)
    # Where waits are the largest block, what they cost stands above.
    if explained := capture_words.explain_waits(summary, saves=saves, costs=not number):
        sheet.line(explained, indent=1, style="dim")


def _times(wait: Wait) -> tuple[int, int]:
    return wait.waiting_ns, wait.idle_ns


def _print_launch_gaps(sheet: Sheet, summary: Summary, lead: Part) -> None:
    """Print how many gaps the idle time is made of: no single one of them explains it."""
    causes = [part for use in summary.devices for part in use.gap_causes]
    gaps = sum(part.gaps for part in causes if part.cause == lead.cause)
    if gaps:
        mean = words.format_duration(lead.ns / gaps)
        sheet.line(f"This block is the sum of {gaps:,} gaps, {mean} each on average.", indent=2)
    print_launches(sheet, summary)


Row = tuple[str, float, str, str]


def _wall_ns(summary: Summary) -> int:
    """Return the time of all devices together, which shares are of."""
    return sum(use.wall_ns for use in summary.devices) or 1


def _inside(summary: Summary, biggest: Part) -> list[Row]:
    """Return the largest contents of the block: name, share of the whole time, time, and the source
    of a line. What stands inside idle time sums to it.
    """
    whole = kernel_time_ns(summary) if biggest.key == "compute" else _wall_ns(summary)
    return [
        (name, ns / whole, words.format_duration(ns), code)
        for name, ns, code in _contents(summary, biggest)
    ]


def _contents(summary: Summary, biggest: Part) -> list[tuple[str, int, str]]:
    """Return the largest contents of the block, longest first, and what is left of it: name, ns,
    and the source of a line.
    """
    rows: list[tuple[str, int, str]]
    others = capture_words.OTHERS.get(biggest.key, "")
    if biggest.cause:
        rows, others = _host_during(summary, biggest), capture_words.OTHER_PLACES
    elif biggest.key == "copy":
        rows = [
            (f"{row.direction}, {row.host_memory} memory", row.total_ns, "")
            for row in summary.copies
        ]
    elif biggest.key == "communication":
        # The block is time with no computation in parallel: only that part of each is inside it.
        rows = [(name, ns, "") for name, _, ns in describe_collectives(summary) if ns]
    elif summary.cpu_only:
        rows = [(row.name, row.self_ns, "") for row in summary.operators]
        others = capture_words.OTHER_OPERATORS
    else:
        short = short_names(row.name for row in summary.kernels)
        kernels = [row for row in summary.kernels if not row.communication]
        rows = [(short[row.name], row.total_ns, "") for row in kernels]
    largest = sorted(rows, key=lambda row: -row[1])[:TOP]
    # Kernels side by side, or copies behind work, may sum to more than the block.
    rest = biggest.ns - sum(ns for _, ns, _ in largest)
    if largest and rest > _wall_ns(summary) // 1000:
        if biggest.cause:
            listed = sum(name != capture_words.NOWHERE for name, _, _ in largest)
            count = max(_count_places(summary, biggest) - listed, 0)
            others = counted(count, "other place") if count else others
        largest.append((others, rest, ""))
    return largest


def _count_places(summary: Summary, idle: Part) -> int:
    """Return in how many operators, lines and ranges the host was while devices were idle for one
    cause, at most.
    """
    parts = [part for use in summary.devices for part in use.gap_causes if part.cause == idle.cause]
    return max((part.places for part in parts), default=0)


def _host_during(summary: Summary, idle: Part) -> list[tuple[str, int, str]]:
    """Return where the host was while devices were idle for one cause: name, ns, and the source of
    a line.
    """
    times: Counter[str] = Counter()
    for use in summary.devices:
        for part in use.gap_causes:
            if part.cause == idle.cause:
                times.update(dict([*part.inside, (capture_words.NOWHERE, part.nowhere_ns)]))
    return [(name, ns, summary.code.get(name, "")) for name, ns in times.items() if ns]
