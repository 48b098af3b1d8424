"""Where the wall time went, as parts that add up to it: what the terminal and the page draw as
bars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from bottleneck_lab.analysis.amdahl import HIGHEST_RATIO, ceiling
from bottleneck_lab.analysis.causes import CAUSE_OF
from bottleneck_lab.analysis.device.time import DeviceTime
from bottleneck_lab.analysis.device.use import SHORT_GAP_NS, DeviceUse
from bottleneck_lab.analysis.findings import LEAST_GAIN, Finding
from bottleneck_lab.analysis.host.lines import LineRow
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.host.view import COLLECTIVE_RANGE
from bottleneck_lab.analysis.ranks.collectives import (
    BEFORE_ITS_STEP,
    COMMUNICATING,
    COMPUTING,
    CollectiveWaits,
)
from bottleneck_lab.analysis.steps.figures import find_step_parts
from bottleneck_lab.analysis.summary import STEPS_WITH_EDGES, Summary
from bottleneck_lab.analysis.what_if.replay import PAUSE_NS
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.trace.names import STEP, STEP_NAME
from bottleneck_lab.trace.timeline import Floats64
from bottleneck_lab.wording import counted

_NEARLY_WHOLE = 0.95
"""Start-up and end that leave more than this share (0-1) of the time are not worth a word."""
_FAR_APART = 1.01
"""Ranks that together span more than this times what each of them takes begin at other moments."""
OUTSIDE_RANGES = "outside of these: launches and waits"
_UNLIKE = 0.01
"""A step and its range on the host, or all steps and the whole, that differ by more than this share
(0–1) are not alike.
"""
_LOST = 0.1
"""A part that is not work and below this share (0-1) is none to look at first."""
_ROUNDS_TO_NOTHING = 0.0005
"""A part below this share (0-1) gets no row: its figure would be 0.0%."""
_BUSY = 0.5
"""Below this busy share (0-1) of the devices, lines are listed by the host's time."""

Key = TypeVar("Key")
Row = TypeVar("Row")


@dataclass(frozen=True)
class Part:
    """One part of the wall time of all devices together. `share` is 0–1; `colour` is a class of
    page.css.
    """

    key: str
    label: str
    colour: str
    explained: str
    ns: int
    share: float

    @property
    def cause(self) -> str:
        """The cause of idle time; empty for work."""
        if self.key.startswith("idle-"):
            return self.key.removeprefix("idle-")
        return ""


# Key, label, colour and explanation of a part.
PartKind = tuple[str, str, str, str]


def wall_parts(devices: Sequence[DeviceUse]) -> list[Part]:
    """Return computing, exposed communication, exposed copies and idle time by cause, largest
    first.

    They sum to the devices' wall time, but for those that would round to nothing.
    """
    times: Counter[PartKind] = Counter()
    for use in devices:
        times[_COMPUTE_ON_CPU if use.is_cpu else _COMPUTE] += use.compute_ns
        times[_COMMUNICATION] += use.exposed_communication_ns
        times[_COPY] += use.exposed_copy_ns
        for part in use.gap_causes:
            times[_idle(part.cause, on_cpu=use.is_cpu)] += part.idle_ns
        if not use.gap_causes:
            times[_PLAIN_IDLE_ON_CPU if use.is_cpu else _PLAIN_IDLE] += use.idle_ns
    wall = sum(use.wall_ns for use in devices) or 1
    return [
        Part(*kind, ns, ns / wall)
        for kind, ns in times.most_common()
        if ns >= _ROUNDS_TO_NOTHING * wall
    ]


def step_parts(summary: Summary, times: Sequence[DeviceTime]) -> list[list[Part]]:
    """Return the parts of each step of the first rank, in one order, the one that is largest in all
    steps together first; without causes where the reader is to find them.
    """
    rows: Counter[PartKind] = Counter()
    values: dict[PartKind, Floats64] = {}
    for (group, what), ns in find_step_parts(times, summary.steps).items():
        if group == "device":
            kind = _DEVICE_PARTS[what]
            if what == "compute" and summary.cpu_only:
                kind = _COMPUTE_ON_CPU
        elif summary.blind:
            kind = _PLAIN_IDLE
            if summary.cpu_only:
                kind = _PLAIN_IDLE_ON_CPU
        else:
            kind = _idle(what, on_cpu=summary.cpu_only)
        values[kind] = values.get(kind, 0) + ns
        rows[kind] += int(ns.sum())
    steps = [step for step in summary.steps if step.rank == summary.steps[0].rank]
    return [
        [
            Part(*kind, int(values[kind][nth]), float(values[kind][nth]) / max(step.cost_ns, 1))
            for kind, _ in rows.most_common()
            if values[kind][nth]
        ]
        for nth, step in enumerate(steps)
    ]


_COMPUTE = ("compute", "computing", "cat-kernel", "the device was working: see the list below")
_COMPUTE_ON_CPU = (
    "compute",
    "running operators",
    "cat-kernel",
    "operators were running: see the list below",
)
_COMMUNICATION = (
    "communication",
    "communicating only",
    "cat-communication",
    "the device only communicated, with no computation in parallel",
)
_COPY = (
    "copy",
    "copying only",
    "cat-copy",
    "the device only copied, with no computation in parallel",
)
_DEVICE_PARTS = {
    "compute": _COMPUTE,
    "exposed_communication": _COMMUNICATION,
    "exposed_copy": _COPY,
}
# Idle time whose causes are hidden.
_PLAIN_IDLE = ("idle", "idle", "gap-idle", "the device was idle")
_PLAIN_IDLE_ON_CPU = ("idle", "no model operator", "gap-idle", "no operator of the model ran")


def _idle(cause: str, *, on_cpu: bool) -> PartKind:
    """Return the kind of part that a cause of idle time is."""
    row = CAUSE_OF[cause]
    label, sentence = f"idle: {row.label}", row.sentence
    if on_cpu:  # nothing is launched there, and a CPU that prepares input is not idle
        label, sentence = row.cpu_label or label, row.cpu_sentence or sentence
    return f"idle-{cause}", label, row.colour, sentence


def device_names(uses: Sequence[DeviceUse], summary: Summary) -> str:
    """Return what tells some devices from the others of a capture: their ranks, where there are
    several.
    """
    if len(summary.ranks) > 1:
        return words.name_several("rank", [use.rank for use in uses])
    if uses[0].is_cpu:
        return "CPU"
    return words.name_several("device", [use.device for use in uses])


def describe_devices(summary: Summary) -> list[str]:
    """Return the devices' labels, those of one model under one."""
    models = group_alike((_model(use), use) for use in summary.devices)
    return [label_devices(uses, summary) for _, uses in models]


def label_devices(uses: Sequence[DeviceUse], summary: Summary) -> str:
    """Return the label of devices of one model, with their ranks if there are several."""
    names = device_names(uses, summary)
    if len(uses) == 1 and len(summary.ranks) > 1:
        names += ", CPU" if uses[0].is_cpu else f", device {uses[0].device}"
    return names + _model(uses[0])


def group_alike(rows: Iterable[tuple[Key, Row]]) -> list[tuple[Key, list[Row]]]:
    """Return each key once, with its rows: what is the same on all devices is printed once."""
    groups: dict[Key, list[Row]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    return list(groups.items())


def _model(use: DeviceUse) -> str:
    """Return a device's model as a label ends with it; empty where it is not recorded."""
    model = f" ({use.name[:80]})" if use.name and not use.is_cpu else ""
    if use.emulated and "emulated" not in model:
        model += ", emulated"
    return model


def describe_capture(summary: Summary) -> str:
    """Return the captured stretch, in one line: that of one device, the mean of several. Times the
    number of devices it is the time that shares are of, even where ranks begin at other moments.
    """
    mean_ns = sum(use.wall_ns for use in summary.devices) / max(len(summary.devices), 1)
    span = words.format_duration(mean_ns or summary.wall_ns)
    events = f"{summary.events:,} events"
    if not summary.steps:
        return f"{span}, {events}, no steps marked"
    count = sum(step.rank == summary.steps[0].rank for step in summary.steps)
    ranks = apart = ""
    if summary.wall_ns > _FAR_APART * mean_ns > 0:
        whole = words.format_duration(summary.wall_ns)
        apart = f"; {whole} from the first rank's start to the last one's end"
    if count == 1:
        return f"{span}: 1 step, {events}{apart}"
    if len(summary.ranks) > 1:
        ranks = f" on each of {len(summary.ranks)} ranks"
    each_ns, inner_ns = summary.step_mean_ns, summary.inner_step_mean_ns
    deviation = f"steps differ by ± {words.format_share(summary.step_spread)}"
    if abs(each_ns - inner_ns) > _UNLIKE * inner_ns:
        spread = words.format_share(summary.step_spread)
        deviation = f"{words.format_duration(inner_ns)} ± {spread} without the first and last"
    elif count >= STEPS_WITH_EDGES:
        deviation += " without the first and last"
    each = f"{words.format_duration(each_ns)} on average ({deviation})"
    if summary.startup_in_step_ns:
        startup = words.format_duration(summary.startup_in_step_ns)
        each += f", without {startup} of start-up in the first"
    return f"{span}: {count} steps of {each}{ranks}, {events}{apart}"


def describe_earlier_launches(summary: Summary) -> str:
    """State how many kernels ran in the steps that none of them launched, and which figures have
    these; empty where there are none.
    """
    before = sum(use.launched_before for use in summary.launches)
    if not before:
        return ""
    return (
        f"Of the kernels that ran in these steps, {before:,} {'was' if before == 1 else 'were'}"
        " launched before them: lists of kernels have those, lists of operators and counts a step"
        " do not."
    )


def describe_steps(summary: Summary) -> str:
    """State which steps are counted and when one ends, where the host's ranges suggest otherwise;
    empty where they do not.
    """
    if not summary.steps:
        return ""
    sentences, first = [], summary.steps[0].name
    number = STEP_NAME.match(first)
    if first.startswith(STEP) and number and int(number[1]) > 0:
        several, verb = ("", "is") if number[1] == "1" else (f"{number[1]} ", "are")
        earlier = f"The {several}step{'s' * bool(several)} before {first}"
        sentences.append(f"{earlier} warmed up, and {verb} not recorded.")
    if summary.batches_per_step > _WHOLE_BATCH:
        batches = len(summary.steps) * summary.batches_per_step
        own_ns = sum(use.compute_ns for use in summary.devices) / batches
        sentences.append(
            f"The device worked on {batches:.1f} batches in {counted(len(summary.steps), 'step')}:"
            " it began with some that had been handed over before the first. A step's own work"
            f" takes {words.format_duration(round(own_ns))}; gains that are worked out from what it"
            " computed are too low."
        )
    if _host_differs(summary):
        sentences.append(_describe_host_steps(summary))
    return " ".join(sentences)


def _describe_host_steps(summary: Summary) -> str:
    """State how long the host's range of a step lasts, and why that is not how long the step does.

    A host that is ahead is done with some steps before the device is; where it then waits, that
    step is over sooner after the one before than its range is long.
    """
    lengths = [step.duration_ns for step in summary.steps]
    shortest, longest = (words.format_duration(ns) for ns in (min(lengths), max(lengths)))
    host = shortest if shortest == longest else f"{shortest} to {longest}"
    ahead, waits = (
        any(
            sign * (step.cost_ns - step.duration_ns) > _UNLIKE * step.cost_ns
            for step in summary.steps
        )
        for sign in (1, -1)
    )
    if ahead and waits and summary.syncs:
        return (
            f"On the host a step's range lasts {host}: it runs some steps ahead, and waits in one"
            " of them for the device. That costs nothing by itself."
        )
    reason = ": it runs ahead of the device" if ahead and not waits else ""
    return (
        "A step ends when host and device are both done with it. On the host a step's range lasts"
        f" {host}{reason}."
    )


_WHOLE_BATCH = 1.1
"""So many batches a step are more than that step's own."""


def _host_differs(summary: Summary) -> bool:
    """Return True if the host's range of a step lasts another time than the step."""
    return any(
        abs(step.duration_ns - step.cost_ns) > _UNLIKE * step.cost_ns for step in summary.steps
    )


def mean_host_step_ns(summary: Summary) -> float:
    """Return how long the host's range of a step lasts on average; 0 without steps."""
    return sum(step.duration_ns for step in summary.steps) / max(len(summary.steps), 1)


def range_times(summary: Summary) -> list[tuple[str, float, int]]:
    """Return (name, share of the host's range of a step, its mean time in one, ns) of the ranges
    marked in it, longest first, without those that would round to nothing. On a modelled host,
    whose ranges do not overlap, the rest of the step follows.
    """
    host_ns, shares = mean_host_step_ns(summary), dict(summary.range_shares)
    if shares and summary.modelled_host:
        shares[OUTSIDE_RANGES] = max(0.0, 1 - sum(shares.values()))
    return [
        (name, share, round(share * host_ns))
        for name, share in shares.items()
        if share >= _ROUNDS_TO_NOTHING
    ]


def describe_ranges(summary: Summary) -> str:
    """State what the shares of ranges in a step are of; empty where the host's time of a step is
    the step's.
    """
    if summary.cpu_only or not summary.steps:
        return ""
    if not _host_differs(summary):
        return "the host's time, not the device's"
    return (
        "the host's time, not the device's: shares of its range of a step,"
        f" {words.format_duration(mean_host_step_ns(summary))} on average"
    )


def describe_scope(summary: Summary) -> str:
    """State which part of the wall time shares and gains of findings are of; empty if of nearly
    all.
    """
    wall = sum(use.wall_ns for use in summary.devices)
    working = sum(use.working_ns for use in summary.devices)
    if working > _NEARLY_WHOLE * wall:
        return ""
    parts = [words.format_duration(ns / max(len(summary.devices), 1)) for ns in (working, wall)]
    return f"between the first and the last work, {parts[0]} of {parts[1]}"


def describe_collectives(summary: Summary) -> list[tuple[str, int, int]]:
    """Return (what ranks sent each other, how much and how often; its summed time, ns; the part of
    that without computation in parallel), longest first. On a CPU the ranges that its library
    marks, all of them without.
    """
    if summary.cpu_only:
        return [
            (row.name, row.total_ns, row.total_ns)
            for row in summary.ranges
            if COLLECTIVE_RANGE.match(row.name)
        ]
    kinds = []
    for row in summary.collectives:
        size = ""
        if row.bytes:
            size = f" of {words.format_bytes(row.bytes)}"
        kinds.append((f"{row.collective}{size} {row.dtype}".rstrip(), row))
    rows = []
    for name, alike in group_alike(kinds):  # sizes that read the same are one row
        often = _describe_calls(sum(row.calls for row in alike), len(summary.ranks))
        per_step = sum(row.calls_per_step for row in alike)
        if summary.steps:
            often = f", {per_step:.3g} per step"
        if alike[0].collective == "broadcast" and per_step >= 1:
            often += " (DDP's buffers)"
        exposed_ns = sum(row.exposed_ns for row in alike)
        rows.append((name + often, sum(row.total_ns for row in alike), exposed_ns))
    return sorted(rows, key=lambda row: -row[1])


def _describe_calls(calls: int, ranks: int) -> str:
    """Return how often ranks called a collective, all together: a collective of five ranks is five
    calls.
    """
    if ranks > 1 and calls % ranks == 0:
        return f", {counted(calls // ranks, 'time')} on each of {ranks} ranks"
    return f", {counted(calls, 'time')}"


def describe_late_ranks(summary: Summary) -> list[tuple[str, str, int, int]]:
    """Return (the rank that others waited for in collectives, what made it late, the waiting, ns,
    and in how many collectives), longest first; empty where ranks were not matched.
    """
    waits = summary.collective_waits
    rows = []
    for row in waits.late if waits else ():
        because = _LATE.get(row.doing) or f"idle: {CAUSE_OF[row.doing].label}"
        rows.append((f"rank {row.rank}", because, row.waiting_ns, row.times))
    return rows


_LATE = {
    COMPUTING: "computing for longer",
    COMMUNICATING: "an earlier collective",
    BEFORE_ITS_STEP: "a step that began later",
}


def leading_part(parts: Sequence[Part]) -> Part | None:
    """Return the part to look at first: the largest that is not work, if it is 10% or more, else
    the largest; None without any. What a model charges whatever runs is nothing to look at.
    """
    parts = [part for part in parts if part.cause != "fixed"]
    lost = [part for part in parts if part.key != "compute" and part.share >= _LOST]
    return next(iter([*lost, *parts]), None)


def describe_lead(summary: Summary, part: Part) -> list[str]:
    """State what removing a part of the time would gain at most, how that follows, and whether the
    first finding gains more; empty where that cannot be told.
    """
    gain = summary.gains.get(part.key)
    if gain is None:
        return []
    wall, working = (
        sum(getattr(use, name) for use in summary.devices) for name in ("wall_ns", "working_ns")
    )
    whole = "the run" if working == wall else "the part between the first and the last work"
    devices, steps = len(summary.devices), 1
    if (
        devices == 1
        and abs(len(summary.steps) * summary.step_mean_ns - working) < _UNLIKE * working
    ):
        whole, steps = "a step", len(summary.steps)
    waits = summary.collective_waits
    same = [each for each in summary.findings if f"{each.expected_gain_ratio:.2f}" == f"{gain:.2f}"]
    bound = "about" if any(not each.at_most for each in same) else "at most"
    lines = [describe_removal(part, gain, working, whole, waits, devices, bound, steps)]
    first = next(iter(summary.findings), None)
    if first is not None and first.expected_gain_ratio > gain * LEAST_GAIN:
        lines.append(
            f"The first finding below gains more ({capture_words.describe_gain(first)}): what it"
            " costs is spread over several of these parts, or holds up others."
        )
    return lines


def describe_removal(
    part: Part,
    gain: float,
    working_ns: int,
    whole: str,
    waits: CollectiveWaits | None,
    devices: int = 1,
    bound: str = "at most",
    steps: int = 1,
) -> str:
    """State what removing one part of the time would gain at most, and how that follows.
    `working_ns` is the time of all `devices` together that shares are of, `whole` names what
    gains, and `waits` are those of ranks for one another. `bound` is the word that a finding with
    the same gain has for it. With `steps`, times are those of one of so many.
    """
    if gain < LEAST_GAIN and part.key == "communication" and waits and waits.waiting_ns:
        return (
            f"Without the transfers {whole} would not be faster: the ranks would still"
            " wait for one another."
        )
    if gain < LEAST_GAIN:
        return (
            f"Without that time {whole} would not be faster: something else takes as long"
            " beside it."
        )
    rest_ns = max(working_ns - part.ns, working_ns / HIGHEST_RATIO)
    left_ns = working_ns / gain
    each = " on each device" if devices > 1 else ""
    count = devices * steps
    ratio = words.describe_ratio(working_ns / count, left_ns / count)
    alike = "with the same operators" if part.cause == "launch" else "with the same work"
    left, rest, apart = (
        words.format_duration(ns / count) for ns in (left_ns, rest_ns, abs(left_ns - rest_ns))
    )
    would_be = f"{whole} would be {bound} {ratio} as fast"
    more = "A fix that also saves work can gain more."
    if left == rest:
        return f"Without that time, {alike}, {would_be}{each}. {more}"
    if left_ns < rest_ns:
        at_once = "the host and the device would also work at once, and only the slower one count"
        return f"Without that time, {alike}, {at_once}: {would_be}{each}. {more}"
    if part.key == "communication" and waits and 2 * waits.waiting_ns > left_ns - rest_ns:
        reason = f"and {apart} more, as the ranks would still wait for one another"
    elif part.key in ("communication", "copy"):
        reason = (
            f"and {apart} more, as what the host did meanwhile, such as launches, would still take"
            " its time"
        )
    elif part.cause == "launch":
        reason = (
            f"and {apart} more, as a device still pauses for about"
            f" {words.format_duration(PAUSE_NS)} after each kernel that has waited in its queue"
        )
    else:
        reason = f"and {apart} more, as other work that ran beside it would still take its time"
    return f"Without that time, {alike}, {rest} would be left{each}, {reason}: {would_be}. {more}"


LEAST_WAIT = 0.005
"""A line that waits for less than this share (0-1) of the time hardly waits."""


class Wait(NamedTuple):
    """The waits at one place: who waited and for what, its source, how long it waited, and how long
    devices were idle afterwards, ns; with the rows that they are the sum of. `saved`: the share
    (0-1) by which a step is shorter without the line, None where that is not known.
    """

    name: str
    code: str
    waiting_ns: int
    idle_ns: int
    saved: float | None
    rows: list[SyncRow]


def waits_by_cost(summary: Summary) -> list[Wait]:
    """Return the host's waits by line, or by operator or call where none was recorded, each
    described by its longest: where savings are known the longest first, else those after which
    devices were idle longest.
    """
    gains = summary.gains_without_waits if any(row.line for row in summary.syncs) else {}
    places = group_alike((row.line or row.caused_by or row.name, row) for row in summary.syncs)
    waits = [
        Wait(
            capture_words.describe_wait(rows[0]),
            summary.code.get(rows[0].line, ""),
            sum(row.total_ns for row in rows),
            summary.idle_after_waits.get(place, 0),
            1 - 1 / gains[place] if place in gains else None,
            rows,
        )
        for place, rows in places
    ]
    return sorted(waits, key=lambda wait: (-wait.idle_ns * (not gains), -wait.waiting_ns))


def split_waits(summary: Summary, most: int) -> tuple[list[Wait], list[Wait]]:
    """Return the first `most` of the host's waits, with the one that waits longest, and the others.

    Lines that hardly wait are others where savings are told: what a step saves without such a line
    is not its wait.
    """
    waits = waits_by_cost(summary)
    longest = max(waits, key=lambda wait: wait.waiting_ns)
    least_ns = LEAST_WAIT * sum(use.wall_ns for use in summary.devices)
    named = [wait for wait in waits[:most] if wait.saved is None or wait.waiting_ns >= least_ns]
    named += [longest] * (longest not in named)
    return named, [wait for wait in waits if wait not in named]


def describe_short_gaps(devices: Sequence[DeviceUse]) -> str:
    """Return what gaps that are too short to be listed come to; empty where it is little."""
    idle_ns = sum(use.idle_ns for use in devices)
    short_ns = sum(use.short_gaps_ns for use in devices)
    if short_ns < max(_LOST * idle_ns, 1):
        return ""
    return (
        f"Of {sum(use.gaps for use in devices):,} gaps, the"
        f" {sum(use.short_gaps for use in devices):,} under {words.format_duration(SHORT_GAP_NS)}"
        f" sum to {words.format_duration(short_ns)}, {words.format_share(short_ns / idle_ns)} of"
        " the idle time."
    )


NO_GAIN = (
    "No gain is given: a recording doesn't tell how much of that time is the calls, and how much is"
    " work that stays in fewer, larger ones. Time a small part both ways."
)


def describe_finding_gain(summary: Summary, finding: Finding) -> str:
    """State the division that a finding's gain comes from, per step where steps are marked; empty
    for a finding that costs no time.
    """
    if finding.share_of_wall <= 0:
        return ""
    if not finding.expected_gain_ratio:
        return NO_GAIN
    devices = max(len(summary.devices), 1)
    whole_ns, of = sum(use.working_ns for use in summary.devices) / devices, ""
    steps = sum(step.rank == summary.steps[0].rank for step in summary.steps)
    if steps:
        whole_ns, of = summary.step_mean_ns, " a step"
    waits = summary.collective_waits
    # The others waited for a rank that began late when its own time had not begun.
    if waits and finding.id == "straggler":
        longest_ns = waits.longest_ns / max(steps, 1)
        whole_ns = longest_ns if longest_ns > _FAR_APART * whole_ns else whole_ns
    gain, share = finding.expected_gain_ratio, finding.share_of_wall
    left_ns = whole_ns / gain
    left = words.format_duration(left_ns)
    text = f"{left}{of} would remain: {words.describe_ratio(whole_ns, left_ns)}."
    if finding.shared_gain_ratio:
        kept_ns = whole_ns / finding.shared_gain_ratio
        text += (
            " That is without what the late rank does for longer; with the same work, spread evenly"
            f" over the ranks, {words.format_duration(kept_ns)} would remain:"
            f" {words.describe_ratio(whole_ns, kept_ns)}."
        )
    by_share = ceiling(round(share, 3))
    if gain > by_share or f"{gain:.2f}" in (f"{by_share:.2f}", f"{ceiling(share):.2f}"):
        return text
    return f"{text} Something else would take a part of the time that this frees."


def kernel_time_ns(summary: Summary) -> int:
    """Return the time that the kernels' shares are of, ns: the wall time, or the kernels' summed
    time where that is longer, since they ran side by side.
    """
    wall_ns = sum(use.wall_ns for use in summary.devices) or 1
    first = next(iter(summary.kernels), None)
    return wall_ns if first is None else max(wall_ns, round(first.total_ns / first.share))


def describe_side_by_side(summary: Summary) -> str:
    """State that the kernels' shares are of their summed time; empty where they are not."""
    whole_ns = kernel_time_ns(summary)
    # On one stream, neighbours overlap by what rounding leaves.
    on_one = all(use.streams < 2 for use in summary.devices)
    if on_one or whole_ns <= sum(use.wall_ns for use in summary.devices):
        return ""
    return (
        "Kernels ran side by side, on several streams: their shares are of their summed time,"
        f" {words.format_duration(whole_ns)}."
    )


def describe_lines(summary: Summary, *, on_device: bool) -> str:
    """Name the list of the reader's Python, and what it is sorted by: torch.profiler alone records
    functions, not lines.
    """
    exact = any(row.exact for row in summary.lines)
    if on_device:
        by = "device time launched, in % of the wall time"
        if any(row.backward_device_ns for row in summary.lines):
            by += ", with that of their backward"
        elif exact:
            by += " (backward: on the line that calls it)"
    elif summary.cpu_only:
        by = "the host's time in them"
        if any(row.backward_ns for row in summary.lines):
            by += " and in their backward (whose caller has that time, too)"
    else:
        by = "the host's whole time in them"
    return f"{'Your lines of Python' if exact else 'Your functions (line of definition)'}, by {by}"


def time_of_other_lines(summary: Summary, listed: Sequence[tuple[int, LineRow]]) -> int:
    """Return how long devices worked on what no listed line launched, ns; 0 where that is too
    little to name. Kernels side by side may sum to more than the devices were busy.
    """
    busy, wall = (
        sum(getattr(use, name) for use in summary.devices) for name in ("busy_ns", "wall_ns")
    )
    rest: int = busy - sum(ns for ns, _ in listed)
    return rest if rest > wall // 1000 else 0


def line_label(summary: Summary, row: LineRow) -> str:
    """Return a line with its rank, where there are several."""
    if len(summary.ranks) > 1 and row.rank >= 0:
        return f"rank {row.rank}, {row.line}"
    return row.line


def describe_backward(row: LineRow, ns: int, *, on_device: bool) -> str:
    """Return how much of a line's time in `costly_lines`, of the device or the host's, is its
    backward's; "" where that is little.
    """
    backward_ns = row.backward_device_ns if on_device else ns - row.host_ns
    share = backward_ns / max(ns, 1)
    return f" ({words.format_share(share)} of it in its backward)" if share >= 0.01 else ""


def costly_operators(summary: Summary) -> tuple[list[OperatorRow], bool]:
    """Return (operators by self time, costliest first; whether that is device time). Those below
    0.1% of the wall time are left out.
    """
    on_device = any(row.device_self_ns for row in summary.operators)
    timed = [(row.device_self_ns if on_device else row.self_ns, row) for row in summary.operators]
    costly = [(own, row) for own, row in timed if own > summary.wall_ns / 1000]
    return [row for _, row in sorted(costly, key=lambda pair: -pair[0])], on_device


def costly_lines(summary: Summary) -> tuple[list[tuple[int, LineRow]], bool]:
    """Return (the reader's lines with their times, ns, longest first; whether these are of the work
    that they launched on devices). Where devices are idle for most of the time, or there are none,
    it is the host's time that matters.
    """
    has_device = any(row.device_ns for row in summary.lines)
    busy, wall = (
        sum(getattr(use, name) for use in summary.devices) for name in ("busy_ns", "wall_ns")
    )
    on_device = has_device and busy >= _BUSY * wall
    rows = []
    for row in summary.lines:
        # Beside a device the backward is on the line that starts it.
        host_ns = row.host_ns if has_device else row.host_ns + row.backward_ns
        rows.append((row.device_ns if on_device else host_ns, row))
    return sorted(rows, key=lambda pair: -pair[0]), on_device
