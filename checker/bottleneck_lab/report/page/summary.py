"""The page's sections about a capture: where the time went, what stands out, and the tables behind
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.device.time import DeviceTime
from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.report.breakdown import (
    describe_capture,
    describe_earlier_launches,
    describe_finding_gain,
    describe_lead,
    describe_ranges,
    describe_scope,
    describe_steps,
    group_alike,
    label_devices,
    leading_part,
    mean_host_step_ns,
    range_times,
    step_parts,
    wall_parts,
)
from bottleneck_lab.report.page import charts
from bottleneck_lab.report.page.markup import Markup, Section, join, table, tag
from bottleneck_lab.report.page.steps_chart import steps_chart
from bottleneck_lab.report.page.tables import NARROW, TOP, WIDE, memory_tables
from bottleneck_lab.report.page.verdict import section

# How many colours page.css has for ranges; the seventh range has the first's again.
RANGE_COLOURS = 6
REST = "in no marked range"
_SEEN = 0.001


def time_section(summary: Summary, times: Sequence[DeviceTime]) -> Section:
    """Render wall time by activity: in figures, as one bar, for every device, and by the ranges
    that the program marked.
    """
    # How long each step took; one rank's steps, where there are several ranks.
    steps = [step for step in summary.steps if step.rank == summary.steps[0].rank]
    drawn = steps_chart(steps, step_parts(summary, times))
    startup = capture_words.describe_startup(summary.startup)
    earlier = describe_earlier_launches(summary)
    notes = [describe_steps(summary), earlier, startup, *summary.quality.notes]
    return section(
        "time",
        "Where the time went",
        [*_warnings(summary), *(tag("p", note, class_="soft") for note in filter(None, notes))],
        _figures(summary),
        _wall_time(summary),
        _device_bars(summary) if len(summary.devices) > 1 else None,
        tag("div", tag("h3", f"Each of {len(steps)} steps, by activity"), drawn) if drawn else None,
        _range_bar(summary),
        lead=describe_capture(summary),
    )


def _warnings(summary: Summary) -> list[Markup]:
    """Say what makes figures unreliable, which findings are withheld, and what is emulated."""
    warnings = [
        tag("p", "Unreliable, because ", tag("b", reason), ".", class_="warning")
        for reason in summary.quality.reasons
    ]
    if withheld := capture_words.describe_withheld(summary.withheld):
        warnings.append(tag("p", withheld, class_="warning"))
    if summary.emulated:
        sentence = words.describe_emulation(modelled_host=summary.modelled_host)
        warnings.append(tag("p", sentence, class_="warning"))
    if summary.disturbed:
        warnings.append(tag("p", summary.disturbed, class_="warning"))
    return warnings


def _wall_time(summary: Summary) -> Markup:
    """Return the parts of the wall time, as one bar and as a table."""
    parts = wall_parts(summary.devices)
    bar = charts.stacked_bar(
        [(part.label, part.colour, part.share) for part in parts], label="Wall time by activity"
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
    head = ["part", "share", "time", "what happened"]
    caption = f"Wall time{many}, by activity"
    lead = leading_part(parts)
    sentences = [] if lead is None or summary.of_memory else describe_lead(summary, lead)
    ceiling = tag("p", f"{lead.label}: {' '.join(sentences)}") if lead and sentences else None
    return join([bar, table(head, rows, caption=caption, numeric={1, 2}), ceiling])


def _figures(summary: Summary) -> Markup:
    wall = sum(use.wall_ns for use in summary.devices) or 1
    busy = sum(use.busy_ns for use in summary.devices) / wall
    parts = [] if summary.blind else wall_parts(summary.devices)
    lead = leading_part(parts)
    worst = lead if lead and lead.key != "compute" else None
    idle = sum(use.idle_ns for use in summary.devices) / wall
    states = ("operators running", "no operator running")
    if not summary.cpu_only:
        states = ("device busy, computing or copying", "device idle")
    if any(use.communication_ns for use in summary.devices) and not summary.cpu_only:
        states = ("device busy, computing, copying or communicating", "device idle")
    shown = {}
    for use in summary.memory[:1] if summary.of_memory else ():
        shown["memory at the peak"] = words.format_bytes(use.peak_bytes)
    shown[states[0]] = words.format_share(busy)
    if worst and not summary.of_memory:
        shown[f"largest part that is lost: {worst.label}"] = words.format_share(worst.share)
    elif summary.blind:
        shown[states[1]] = words.format_share(idle)
    if summary.steps:
        aside = ", without start-up" if summary.startup_in_step_ns else ""
        shown[f"mean step{aside}"] = words.format_duration(summary.step_mean_ns)
    first = next(iter(capture_words.main_findings(summary)), None)
    if first is not None and first.expected_gain_ratio > 0:
        label = "as fast, without the first finding's time, with the same work"
        if first.shared_gain_ratio:
            label = (
                "as fast, without what the late rank does for longer;"
                f" {first.shared_gain_ratio:.2f}x with the same work, spread evenly over the ranks"
            )
        bound, most = capture_words.describe_bound(first), summary.check_ceiling
        if most is not None and first.expected_gain_ratio > most:
            label = f"as fast in a check; {bound} here {label.removeprefix('as fast, ')}"
            bound = f"at most {most:.2f}x"
        shown[label] = bound
    items = [tag("li", tag("b", figure), tag("span", what)) for what, figure in shown.items()]
    return tag("ul", items, class_="figures")


def _device_bars(summary: Summary) -> Markup:
    bars, rows = [], []
    for use in summary.devices:
        parts = wall_parts([use])
        # What is too short to be seen makes no difference.
        shown = [(p.label, words.format_share(p.share)) for p in parts if p.share >= _SEEN]
        rows.append(((use.name, *shown), (use, parts)))
    for _, alike in group_alike(rows):
        label = label_devices([use for use, _ in alike], summary)
        drawn = [(part.label, part.colour, part.share) for part in alike[0][1]]
        spoken = f"Wall time of {label} by activity"
        name = tag("p", label, class_="soft")
        bars.append(tag("div", name, charts.stacked_bar(drawn, label=spoken)))
    return tag("div", tag("h3", "Each device"), bars)


def _range_bar(summary: Summary) -> Markup | None:
    """Return the ranges beside each other in a step. Ranges that lie inside another would count
    twice: those are left to the table.
    """
    ranges = range_times(summary)
    if not ranges:
        return None
    coloured = {name: f"range-{nth % RANGE_COLOURS}" for nth, (name, _, _) in enumerate(ranges)}
    drawn = None
    rest = 1 - sum(share for _, share, _ in ranges)
    if rest >= 0:
        pieces = [(name, coloured[name], share) for name, share, _ in ranges]
        drawn = charts.stacked_bar([*pieces, (REST, "ground", rest)], label="A step by range")
    rows = [
        [
            _keyed(coloured[name], name) if drawn else name,
            words.format_share_column(share),
            words.format_duration(ns),
        ]
        for name, share, ns in ranges
    ][:TOP]
    caption = "A step by the ranges marked in it"
    if drawn:
        caption = "Shares of the steps' time on their thread"
    if of := describe_ranges(summary):
        caption += f" ({of})"
    if drawn and rest:
        rest_ns = round(rest * mean_host_step_ns(summary))
        rows.append(
            [
                _keyed("ground", REST),
                words.format_share_column(rest),
                words.format_duration(rest_ns),
            ]
        )
    heading = tag("h3", "A step by the ranges marked in it") if drawn else None
    listed = table(["range", "share", "time in a step"], rows, caption=caption, numeric={1, 2})
    fixed = capture_words.describe_fixed_prices(summary.range_shares)
    return join([heading, drawn, listed, tag("p", fixed, class_="soft") if fixed else None])


def _keyed(colour: str, label: str) -> Markup:
    return tag("span", tag("span", class_=f"key {colour}"), label)


def findings_section(summary: Summary) -> Section:
    """Render findings, costliest first, each with what to try and what removing it would gain."""
    if not summary.findings:
        nothing = capture_words.describe_no_findings(summary)
        return section("findings", "Findings", tag("p", nothing))
    shown = capture_words.main_findings(summary)
    lead = []
    if any(each.share_of_wall > 0 for each in shown):
        lead.append(
            "Ranked by their gain: the most that removing a finding entirely can bring, by what"
            " waits for what in the recording."
        )
        if scope := describe_scope(summary):
            lead.append(f"Shares and gains are of the time {scope}.")
        lead.append(capture_words.describe_bounds(shown))
    if shown and summary.remedies_later:
        lead.append(capture_words.REMEDIES_LATER)
    beside = capture_words.describe_beside(summary)
    return section(
        "findings",
        "Findings",
        [_finding(summary, each) for each in shown] or tag("p", capture_words.NONE_OF_MEMORY),
        tag("p", beside, class_="soft") if beside else None,
        lead=" ".join(filter(None, lead)),
    )


def _finding(summary: Summary, finding: Finding) -> Markup:
    gain = "–"
    if finding.share_of_wall:
        gain = capture_words.describe_gain(finding)
    facts = {"Evidence": capture_words.describe_evidence(finding)}
    if remains := describe_finding_gain(summary, finding):
        facts["Gain"] = remains
    if finding.doubt:
        facts["In doubt"] = f"{finding.doubt}."
    if finding.advice:
        facts["What to try"] = finding.advice
    facts["Cause"] = finding.cause
    cost = tag("small", "memory, not time")
    if finding.share_of_wall > 0:
        cost = tag("small", f"{words.format_share(finding.share_of_wall)} of the time")
    listed = [join([tag("dt", name), tag("dd", text)]) for name, text in facts.items()]
    return tag(
        "div",
        tag("div", gain, cost, class_="gain"),
        tag("div", tag("h3", finding.title), tag("dl", listed)),
        class_="finding",
    )


def operators_section(summary: Summary) -> Section | None:
    """Return the tables behind the summary: operators, kernels, the reader's own lines, waits,
    copies, launches, memory, ranks.
    """
    # What a lab is about comes first.
    order = sorted(WIDE, key=lambda build: summary.of_memory and build is not memory_tables)
    wide = [build(summary) for build in order]
    narrow = [build(summary) for build in NARROW]
    if not any(wide) and not any(narrow):
        return None
    return section("operators", "Operators and kernels", *wide, tag("div", narrow, class_="pair"))
