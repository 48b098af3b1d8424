"""The lists behind a summary in the terminal: one function a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bottleneck_lab.analysis.device.gaps import Gap
from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.report.breakdown import (
    costly_lines,
    costly_operators,
    describe_backward,
    describe_finding_gain,
    describe_late_ranks,
    describe_lines,
    describe_scope,
    device_names,
    group_alike,
    leading_part,
    line_label,
    time_of_other_lines,
    wall_parts,
)
from bottleneck_lab.report.console.memory import print_blocks, print_causes
from bottleneck_lab.report.console.roofline import NARROWEST, draw_roofline
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.kernel_names import short_name
from bottleneck_lab.report.memory_table import tabulate_use
from bottleneck_lab.report.memory_words import (
    ALLOCATED_ONLY,
    changes_between_steps,
    describe_counts,
    describe_late_lines,
    describe_left_behind,
    describe_peak_without_steps,
    list_peak,
)
from bottleneck_lab.report.roofline_axes import LETTERS
from bottleneck_lab.wording import counted

# Rows of a list: the place to begin is never below the fifth.
TOP = 5


def print_gaps(
    sheet: Sheet, summary: Summary, gaps: Iterable[tuple[int, DeviceUse, Gap]], top: int
) -> None:
    """Print the first `top` gaps: the number that `lab report --gap` takes, when it began, its
    length, how many alike there are, as long and before the same work, of which it is the first,
    and, of several devices, on which. Those that devices have in common are one.
    """
    rows, many = [], len(summary.devices) > 1
    for number, use, gap in gaps:
        length = sheet.safe(words.format_duration(gap.end_ns - gap.start_ns))
        at = words.format_duration(gap.start_ns - summary.origin_ns)
        after = short_name(gap.after) if gap.after else ""
        rows.append(((length, at, after, 0 if many else number), (number, use)))
    alike = []
    for (length, at, after, _), of_devices in group_alike(rows):
        where = ""
        if many:
            where = device_names([use for _, use in of_devices], summary)
        alike.append(((length, where, after), (of_devices[0][0], at)))
    if alike:
        sheet.path(f"{'gap':>4} {'first at':>9} {'lasts':>9} {'alike':>6}  before", indent=1)
    for (length, where, after), of_length in group_alike(alike)[:top]:
        number, at = of_length[0]
        lead = sheet.safe(f"{number:>4} {at:>9} {length:>9} {len(of_length):>6}  ")
        before = ": ".join(filter(None, [where, after]))
        row = lead + sheet.fit_name(before, sheet.width - len(lead) - 1)
        sheet.path(row.rstrip(), indent=1)


def print_launches(sheet: Sheet, summary: Summary) -> None:
    """Print how many launches a step has, copies among them, and how short the kernels are."""
    steps = len(summary.steps) or 1
    a_step = " a step" * bool(summary.steps)
    copies = round(sum(row.calls for row in summary.copies) / steps)
    rows = []
    for use in summary.launches:
        count = round(use.kernels_per_step) if summary.steps else use.kernels
        half = f"half of the kernels under {words.format_duration(use.median_kernel_ns)}"
        short = f"{words.format_share(use.short_share)} under 10 µs."
        rows.append(((count, f"{half}, {short}"), use.rank))
    groups = group_alike(rows)
    for (count, short), ranks in groups[:TOP]:
        whose = ""
        if len(summary.ranks) > 1:
            whose = f"{words.name_several('rank', ranks)}{', each' * (len(ranks) > 1)}: "
        kernels = f"{counted(count, 'kernel')}{a_step}"
        if len(groups) == 1 and copies:
            kernels = (
                f"{counted(count + copies, 'launch', 'launches')}{a_step}:"
                f" {counted(copies, 'copy', 'copies')} and {counted(count, 'kernel')}"
            )
        sheet.line(f"{whose}{kernels}, {short}", indent=2)
    if len(groups) > 1 and copies:
        sheet.line(f"Copies: {copies:,}{a_step}.", indent=2)


def print_late_ranks(sheet: Sheet, summary: Summary) -> None:
    """Print who was waited for in collectives, and what made it late."""
    rows = describe_late_ranks(summary)
    if not rows or summary.collective_waits is None:
        return
    sheet.line("Who waited for whom, summed over the ranks that waited:", indent=2)
    for rank, because, ns, times in rows[:TOP]:
        length = sheet.safe(words.format_duration(ns))
        sheet.path(f"{length:>9} for {rank}, {because} ({counted(times, 'collective')})", indent=3)
    if rest := rows[TOP:]:
        length = sheet.safe(words.format_duration(sum(ns for _, _, ns, _ in rest)))
        sheet.line(f"{length:>9} for {len(rest)} more, not listed here", indent=3)
    transfer = words.format_duration(summary.collective_waits.transfer_ns)
    sheet.line(f"{transfer} of it is transfer.", indent=3)


def print_memory(
    sheet: Sheet,
    summary: Summary,
    *,
    holders: bool = True,
    steady: bool = True,
    whole: bool = False,
) -> None:
    """Print how much each device held over the capture, where allocations were recorded; with the
    `holders`, also the lines that allocated it: the first of them, or the `whole` list. Without
    `steady`, memory that does not change from step to step is a number.
    """
    if summary.memory:
        drawn = steady or any(changes_between_steps(use) for use in summary.memory)
        height = " (bars: the most in each stretch, as a share of the peak)" * drawn
        sheet.heading(f"Memory held over time{height}")
        if drawn:
            sheet.line(ALLOCATED_ONLY, indent=2, style="dim")
    name_width = 22 if len(summary.ranks) > 1 else 10
    rows = []
    for use in summary.memory:
        levels = sheet.strip(
            [level / max(use.peak_bytes, 1) for level in use.levels_bytes],
            max(20, sheet.width - name_width - 6),
            of_column=max,
        )
        parts, listed = tuple(list_peak(use)), tuple(use.holders)
        hidden = "; how much more each step, this capture cannot tell" * use.hides_growth
        level = f"{', '.join(map(' '.join, parts))}{hidden}."
        if not steady and not changes_between_steps(use):
            levels, level, parts, listed = level, "", (), ()
        elif len(parts) > 2:
            level = ""
        falls = describe_left_behind(use, blind=summary.blind)
        sentences = (level, describe_peak_without_steps(use), falls)
        rows.append(((levels, sentences, parts, listed), use))
    for (levels, sentences, parts, listed), alike in group_alike(rows)[:TOP]:
        use = alike[0]
        where = "host"
        if use.device >= 0:
            where = words.name_several("device", [each.device for each in alike])
        if len(summary.ranks) > 1:
            where = f"{words.name_several('rank', [each.rank for each in alike])}, {where}"
        sheet.line(levels, lead=f"{sheet.fit(where, name_width):{name_width}} ", indent=2)
        if not sentences[0]:
            width = max((len(figure) for figure, _ in parts), default=0)
            for figure, what in parts:
                sheet.line(what, indent=4, lead=f"{figure:>{width}}  ")
        for sentence in filter(None, sentences):
            sheet.line(sentence, indent=2)
        if holders and listed:
            _print_holders(sheet, use, where, summary.code, whole=whole)


def _print_holders(
    sheet: Sheet, use: MemoryUse, where: str, code: Mapping[str, str], *, whole: bool
) -> None:
    """Print the lines that cause what memory holds; as a `whole`, also what becomes of their
    blocks.
    """
    lines = tabulate_use(use, None if whole else TOP)
    print_causes(sheet, f"Lines that caused the memory at the peak: {where}", lines, code)
    for sentence in (describe_counts(use), describe_late_lines(use.holders, code)):
        if sentence:
            sheet.line(sentence, indent=1)
    if whole:
        print_blocks(sheet, use.holders)


def print_workers(sheet: Sheet, summary: Summary) -> None:
    """Print how the loader's worker processes spent their time; the lines are those of the busiest
    worker.
    """
    for number, use in enumerate(summary.workers[:TOP]):
        made = (
            f"{counted(use.batches, 'batch', 'batches')} of {words.format_duration(use.batch_ns)}"
        )
        took = f"{made}, busy {words.format_share(use.busy_share)} of the time"
        if not number:
            sheet.heading("Inside the loader's worker processes")
        whose = f"rank {use.rank}, " if len(summary.ranks) > 1 else ""
        sheet.line(f"{whose}{use.worker}: {took}", indent=1)
    if summary.workers and summary.workers[0].lines:
        sheet.line(capture_words.WORKER_LINES, indent=1, style="dim")
    for row in summary.workers[0].lines[: TOP + 3] if summary.workers else ():
        sheet.ranked(row.line, row.share, words.format_duration(row.time_ns))


def print_serving(sheet: Sheet, summary: Summary) -> None:
    """Print a server's batches, and what the host did for each."""
    use = summary.serving
    if use is None:
        return
    sheet.heading("Batches served")
    sheet.line(f"{capture_words.format_serving(use)}.", indent=1)
    for part in use.parts:
        beside = f"{words.format_share(part.beside_device_share)} of it while the device works"
        sheet.line(
            f"{part.name:<12} {words.format_duration(part.batch_ns):>9} per batch, {beside}",
            indent=2,
        )


def print_generation(sheet: Sheet, summary: Summary) -> None:
    """Print what a generated token takes on host and device, and what sets its pace."""
    use = summary.generation
    if use is None:
        return
    whose = f" on rank {use.rank}" if len(summary.ranks) > 1 else ""
    sheet.heading(f"Why a {use.unit} takes its time{whose}")
    for line in capture_words.describe_tokens(use):
        sheet.line(line, indent=1)
    advice = capture_words.advise_tokens(use, emulated=summary.emulated)
    if advice and not summary.blind and not summary.remedies_later:
        sheet.line(advice, indent=1, lead=sheet.safe("→ "))


def print_operators(sheet: Sheet, summary: Summary) -> None:
    """Print operators by self time, costliest first."""
    rows, on_device = costly_operators(summary)
    if rows:
        sheet.heading(f"Top operators, by share of {'device' if on_device else 'CPU'} self time")
    for row in rows[:TOP]:
        own = row.self_ns
        if on_device:
            own = row.device_self_ns
        sheet.ranked(row.name, row.share, words.format_duration(own))


def print_roofline(sheet: Sheet, summary: Summary) -> None:
    """Print how near matrix operators come to the ceiling above them, where the device's ceilings
    are known.
    """
    machine = summary.roofline.machine
    if not summary.roofline.rows and summary.roofline.note:
        sheet.heading(_INTENSITIES)
        sheet.line(summary.roofline.note, indent=1)
        return
    if summary.blind:
        print_intensities(sheet, summary)
        return
    rows = [row for row in summary.roofline.rows if row.ceiling_share >= 0]
    if machine is None or not rows:
        return
    sheet.heading(f"Operators under the roofline of {machine.name}")
    for letter, row in zip(LETTERS, rows[:TOP], strict=False):
        # Without a bar: those of the lists above are shares of the time.
        share = words.format_share_column(row.ceiling_share)
        figures = f"{letter} {share:>6} of its ceiling, {row.bound}: "
        name = sheet.fit_name(f"{row.operator} {row.precision}", sheet.width - len(figures) - 2)
        sheet.path(sheet.safe(figures) + name, indent=1)
    for line in (
        draw_roofline(machine, rows[:TOP], sheet.width - 2) if sheet.width >= NARROWEST else ()
    ):
        sheet.path(line, indent=1)
    sheet.line(summary.roofline.note, indent=1, style="dim")


_INTENSITIES = "Arithmetic per byte that must move, computed from the shapes"


def print_intensities(sheet: Sheet, summary: Summary) -> None:
    """Print work and traffic of the operators whose shapes determine them, and the machine's
    balance to compare with.
    """
    roofline = summary.roofline
    if not roofline.rows:
        return
    sheet.heading(_INTENSITIES)
    for row in roofline.rows[:TOP]:
        figures = f"{row.intensity:8,.2f} FLOP/byte {words.format_flops(row.flops_per_s):>14}  "
        sheet.path(
            sheet.safe(figures)
            + sheet.fit_name(f"{row.operator} {row.precision}", sheet.width - len(figures) - 1),
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


def print_lines(sheet: Sheet, summary: Summary) -> None:
    """Print the reader's own Python, where stacks were recorded."""
    rows, on_device = costly_lines(summary)
    wall = sum(use.wall_ns for use in summary.devices) or 1
    if rows:
        sheet.heading(describe_lines(summary, on_device=on_device))
    for ns, row in rows[:TOP]:
        code = summary.code.get(row.line, "")
        name = line_label(summary, row) + describe_backward(row, ns, on_device=on_device)
        sheet.ranked(name, ns / wall, words.format_duration(ns), code)
    rest = time_of_other_lines(summary, rows[:TOP]) if on_device and rows else 0
    if rest:
        sheet.ranked(capture_words.OTHER_LINES, rest / wall, words.format_duration(rest))


def print_findings(sheet: Sheet, summary: Summary, *, whole: bool = False) -> None:
    """Print findings, costliest first, each with its evidence and advice; the `whole` names those
    of time in a lab about memory, too.
    """
    sheet.heading("Findings" if summary.of_memory else "Findings, costliest first")
    shown = capture_words.main_findings(summary)
    scope = describe_scope(summary)
    if scope and any(each.share_of_wall > 0 for each in shown):
        sheet.line(f"Shares and gains are of the time {scope}.", indent=1)
    if bounds := capture_words.describe_bounds(shown):
        sheet.line(bounds, indent=1, style="dim")
    if not summary.findings:
        nothing = capture_words.describe_no_findings(summary)
        sheet.line(nothing, indent=1)
    lead = leading_part(wall_parts(summary.devices))
    derived = summary.gains.get(lead.key) if lead and not summary.of_memory else None
    for number, finding in enumerate(shown, start=1):
        facts = f"{finding.cause}, {capture_words.describe_gain(finding)}"
        sheet.line(f"{finding.title} ({facts})", indent=1, lead=f"{number} ", style="bold")
        sheet.line(capture_words.describe_evidence(finding), indent=3)
        # The largest part's gain is derived above.
        stated = f"{finding.expected_gain_ratio:.2f}" == f"{derived or 0.0:.2f}"
        if not (stated and finding.share_of_wall > 0 and not finding.shared_gain_ratio):
            remains = describe_finding_gain(summary, finding)
            if remains:
                sheet.line(remains, indent=3)
        if finding.doubt:
            sheet.line(f"In doubt: {finding.doubt}.", indent=3, style="yellow")
        if finding.advice:
            sheet.line(finding.advice, indent=3, lead=sheet.safe("→ "))
    if summary.findings and not shown:
        sheet.line(capture_words.NONE_OF_MEMORY, indent=1)
    # In a lab about memory, what costs time is named and no more.
    if whole and (beside := capture_words.describe_beside(summary)):
        sheet.line(beside, indent=1, style="dim")
    if shown and summary.remedies_later:
        sheet.line(capture_words.REMEDIES_LATER, indent=1)
