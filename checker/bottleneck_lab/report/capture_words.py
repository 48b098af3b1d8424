"""How the parts of a capture are worded, the same in every rendering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bottleneck_lab.analysis.causes import CAUSE_OF
from bottleneck_lab.analysis.counters.roofline import Machine
from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.host.lines import without_folders
from bottleneck_lab.analysis.host.startup import StartUp
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.steps.generation import GenerationUse
from bottleneck_lab.analysis.steps.serving import ServingUse
from bottleneck_lab.analysis.steps.sides import Sides
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report.budget import compare_sides
from bottleneck_lab.report.kernel_names import cut_name, short_name
from bottleneck_lab.report.words import format_duration, format_flops, format_share
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import Thread, Timeline
from bottleneck_lab.wording import counted

# Shown with every capture of a lab or a case that has not been diagnosed.
BLIND = "Causes, findings and gains appear once you commit your diagnosis."
BLIND_OF_MEMORY = (
    "Findings appear once you commit your diagnosis; what helps against them, after your first"
    " check."
)

# Shown with the findings of a lab that has not been checked.
REMEDIES_LATER = (
    "Your turn: what usually helps against these is shown after your first check. `lab hint` gives"
    " an idea before that."
)

# Stands for the remedy that the learner is to find in a lab.
TAUGHT = (
    "A lab that you have started asks you to find what helps against this: it is shown after your"
    " first check there."
)

NO_FINDINGS = (
    "Nothing stands out: no detector found a known bottleneck. None looks for work that is done at"
    " full speed and needless, such as padding."
)

PRICES = {
    "fixed charge of a step (modelled)": "The fixed charge is a step's Python besides its"
    " operators: every step has it.",
    "batch from a worker (modelled)": "A batch from a worker costs this in place of loading it.",
}
"""The prices of the host's model, by the names of its ranges."""
IDLE_IN_PRICES = (
    "Fixed charges are Python that every step has besides its operators. The device idles"
    " through them only while it has nothing queued: fewer waits, or fewer launches, end that."
)

NONE_OF_MEMORY = "No finding is about memory."
OF_TIME = "This lab isn't about time: `--all` and `--html` show where that went."
BUDGET = "`--ask budget` shows what each line takes and launches."

MEASURES = (
    "This program measures others, and the lab's questions are about what `lab run` shows. Its own"
    " waits and launches are part of how it measures, and no advice"
    " on speed is given."
)

NONE_LEFT = (
    "No finding is left: what a detector found rests on data that is missing, as the top of this"
    " report says."
)

NONE_RELIABLE = (
    "No finding is listed: detectors need what this capture lacks, as the top of this report says."
)

NOWHERE = "between operators, in none"

OTHER_LINES = "other lines, or none"

OTHER_PLACES = "other places"

OTHERS = {
    "compute": "other kernels",
    "copy": "other copies",
    "communication": "other collectives",
}
"""What has no row of its own inside a block, by the block."""

OTHER_OPERATORS = "other operators"

_WAITED = "Where the host waited for the device"

COST_OF_WAITS = (
    "A wait costs the idle time after it: the device has nothing to do until the host has launched"
    " more."
)
SAVED_WITHOUT = (
    "saves: by how much a step is shorter without this line, its launches included, while others"
    " still wait. `--ask budget` has it of every line."
)
SAVED_LATER = (
    "What a step saves without a line is another figure: `lab report --ask budget` has it."
)
WORKS_MEANWHILE = (
    "Waiting itself costs little: the device works meanwhile. The idle time afterwards is what it"
    " costs, until the host has launched more."
)

ONLY_IDLE = (
    "Only the time in which the device was idle for this reason counts here; the whole time of each"
    " line stands further below."
)

AWAITED_ROOM = 60
"""A kernel's name of more characters is shortened where it stands in a sentence."""

SETS_THE_PACE = 0.8
"""A part that fills this share (0–1) of a token's time sets its pace."""

GROWN = 1.5
"""Tokens that take so many times as long at the end as at the beginning grow with the length."""

MANY_LAUNCHES = 0.2
"""A line with this share (0-1) of a step's launches or more is worth a word."""

WORKER_LINES = (
    "Shares are of the worker's own batches; a line's time includes what it calls (`--ask lines`)."
)
"""The definition of the figures beside a loader worker's lines, which a query sums otherwise."""


def describe_hidden(summary: Summary) -> str:
    """Return when what a report leaves out appears; empty where it leaves out nothing. In a lab
    about memory no cause of time and no gain is in question.
    """
    if summary.measures:
        return MEASURES
    if not summary.blind:
        return ""
    return BLIND_OF_MEMORY if summary.of_memory else BLIND


def describe_rest(command: str, summary: Summary) -> str:
    """State what a command shows beyond the top of a summary, and when the rest of it appears."""
    if later := describe_hidden(summary):
        return f"`{command}` shows the rest. {later}"
    return f"`{command}` shows what is inside these parts, and the findings."


def describe_fixed_prices(names: Iterable[str]) -> str:
    """State what the fixed prices of the modelled host are, of those ranges that have these names
    and of the idle time that comes of them; empty where none is named.
    """
    names = list(dict.fromkeys(names))
    if any(name.endswith(CAUSE_OF["fixed"].label) for name in names):
        return IDLE_IN_PRICES
    return " ".join(PRICES[name] for name in names if name in PRICES)


def name_lines_track(track: Thread, threads: Sequence[Thread]) -> str:
    """Return the name of the track that shows a thread's lines of Python."""
    tid = track.tid.removeprefix(LINES_OF)
    own = next((each for each in threads if (each.rank, each.tid) == (track.rank, tid)), None)
    return f"{own.name if own and own.name else f'thread {tid}'}, line by line"


def format_serving(use: ServingUse) -> str:
    """Return a server's batches as one line."""
    least, most = use.sizes[0][0], use.sizes[-1][0]
    sizes = f"{use.mean_images:.1f} ({least} to {most})"
    if least == most:
        sizes = f"{least}"
    return (
        f"{use.batches} batches of {sizes} images, {use.images_per_s:.0f} images/s; the device"
        f" takes {format_duration(use.batch_ns)} per batch, pauses {format_duration(use.gap_ns)}"
        f" between batches (medians), and is idle {format_share(use.idle_share)} of the time from"
        " the first batch to the last"
    )


def describe_tokens(use: GenerationUse) -> list[str]:
    """State what a token takes on the host and on the device, as two lines at most."""
    lines = [f"{use.tokens:,} {use.unit}s of {format_duration(use.token_ns)} each (median)"]
    if use.on_cpu:
        lines[0] += (
            f": operators run for {format_duration(use.device_ns)} of it"
            f" ({use.launches:,.0f} operators), the rest is Python between them."
        )
    else:
        lines[0] += (
            f": the device works for {format_duration(use.device_ns)} of it"
            f" ({use.launches:,.0f} kernels), the host for {format_duration(use.host_ns)}, besides"
            f" waiting for {format_duration(use.wait_ns)}."
        )
    if use.growth > GROWN:
        lines.append(
            f"The last quarter of the {use.unit}s takes {use.growth:.1f}x as long as the first."
        )
    return lines


def advise_tokens(use: GenerationUse, *, emulated: bool) -> str:
    """State what sets the pace of a token, and what would make it faster; on an `emulated` device,
    of what exists there.
    """
    advice = graphs = ""
    if not emulated:
        graphs = (
            "CUDA Graphs or torch.compile(mode='reduce-overhead') with a cache of fixed size, or "
        )
    if use.device_ns >= SETS_THE_PACE * use.token_ns and not use.on_cpu:
        advice = (
            f"The device sets the pace: it reads all weights for each {use.unit}. Make several at"
            " once (batches, several sequences), use smaller types, or draft with a smaller model;"
            " and where the whole text goes through the model again, keep keys and values (cache)."
        )
    elif use.host_ns > use.device_ns and not use.on_cpu:
        advice = (
            f"The host sets the pace: it takes longer to launch a {use.unit}'s work than the device"
            f" to do it. Launch less for each: {graphs}several sequences at once."
        )
    elif not use.on_cpu:
        advice = (
            "Host and device take turns: each waits while the other works. Keep the result on the"
            f" device and look at it a few {use.unit}s later."
        )
    if use.growth > GROWN:
        advice += " The work grows with the length: a cache of keys and values would keep it even."
    return advice.strip()


def describe_ceilings(machine: Machine) -> list[str]:
    """Return a device's measured ceilings, a line each: arithmetic, memory, caches, and where they
    balance.
    """
    threads = ""
    if machine.threads:
        threads = f", {counted(machine.threads, 'thread')}"
    rates = [
        f"  {precision:7} {format_flops(rate)} at most, in matrix products"
        for precision, rate in machine.flops.items()
    ]
    levels = [
        ("memory", machine.bytes_per_s),
        *((cache.name, cache.bytes_per_s) for cache in machine.caches),
    ]
    copies = [
        f"  {name:7} {rate / 1e9:,.1f} GB/s, reads plus writes, in copies" for name, rate in levels
    ]
    balance = [
        f"  {precision} arithmetic and memory balance at {machine.balance(precision):,.1f}"
        " FLOP/byte: below that an operator is memory-bound, above it compute-bound."
        for precision in machine.flops
    ]
    return [f"{machine.name}{threads}, measured on {machine.measured}", *rates, *copies, *balance]


def describe_gain(finding: Finding) -> str:
    """State what removing a finding's time would gain; `about` if the usual fix saves other time
    too, and where a rank's work can go or be spread over all, either gain.
    """
    if finding.share_of_wall <= 0:
        return "memory, not time"
    if not finding.expected_gain_ratio:
        return f"{format_share(finding.share_of_wall)} of the time"
    bound = describe_bound(finding)
    if finding.shared_gain_ratio:
        return f"{bound}, or {finding.shared_gain_ratio:.2f}x with the same work"
    return bound


def describe_bound(finding: Finding) -> str:
    """State what a program can gain without a finding's time."""
    return f"{'at most' if finding.at_most else 'about'} {finding.expected_gain_ratio:.2f}x"


def describe_evidence(finding: Finding) -> str:
    """Return a finding's evidence, and what its gain is of where that is more than the line that
    the evidence names.
    """
    of_all = " The gain is that of all such places together." * finding.of_all
    return f"{finding.evidence}{of_all}"


def main_findings(summary: Summary) -> list[Finding]:
    """Return what a report is about: in a lab about memory, the findings that cost no time."""
    return [each for each in summary.findings if not (summary.of_memory and each.share_of_wall > 0)]


def describe_beside(summary: Summary) -> str:
    """Name the findings that a report is not about; empty if there are none."""
    main = main_findings(summary)
    named = "; ".join(each.title for each in summary.findings if each not in main)
    if not named:
        return ""
    return f"Of time, which this lab doesn't ask for: {named}."


def describe_bounds(findings: Sequence[Finding]) -> str:
    """State what both words for gains mean, where findings have both; "" otherwise."""
    if len({each.at_most for each in findings if each.expected_gain_ratio}) < 2:
        return ""
    return (
        "'At most' is a ceiling: no fix of this alone gains more. 'About' is an estimate: the usual"
        " fix also saves other time, and may gain more."
    )


def describe_wait(row: SyncRow) -> str:
    """State who waited, and for what: the line where the capture has lines, else what called; and
    the other line whose work it waited for, else the work itself.
    """
    work = cut_name(short_name(row.awaited), AWAITED_ROOM)
    if row.awaited_line not in ("", row.line):
        work = f"work of {row.awaited_line.partition(':')[0]}"
    return f"{row.line or row.caused_by or row.name}{f', for {work}' if work else ''}"


def describe_waiting_line(summary: Summary) -> str:
    """Name the line with most of the waits that empty the queue; empty where no lines are known."""
    calls: dict[str, float] = {}
    for row in summary.syncs:
        calls[row.line] = calls.get(row.line, 0.0) + row.calls_per_step
    line = max(calls, key=lambda each: calls[each], default="")
    if not line or not summary.steps:
        return ""
    return f"Of {sum(calls.values()):.3g} waits a step, {calls[line]:.3g} are on {line}."


def title_waits(summary: Summary) -> str:
    """Return the title of the table of waits, whose times are those in a step where there are
    steps.
    """
    return f"{_WAITED}{', in a step' * bool(summary.steps)}"


def explain_waits(summary: Summary, *, saves: bool, costs: bool = True) -> str:
    """State what it means that a step `saves` so much, or where that is told, or else what a wait
    `costs`; and that the device works during most waits, if it does.
    """
    rows = summary.syncs
    works = 2 * sum(row.busy_ns for row in rows) > sum(row.total_ns for row in rows)
    first = [COST_OF_WAITS] * costs
    if saves:
        first = [SAVED_LATER if summary.blind else SAVED_WITHOUT]
    return " ".join(first + [WORKS_MEANWHILE] * works)


def describe_awaited(row: SyncRow) -> str:
    """Return the work that most of the waiting was for, and the line that launched it where that is
    known.
    """
    launched = ""
    if row.awaited_line:
        launched = f", launched in {row.awaited_line}"
    if row.awaited:
        return f"{row.awaited}{launched}"
    return ""


def describe_withheld(findings: Sequence[Finding]) -> str:
    """Name the findings that are withheld and what to record again; empty if there are none."""
    if not findings:
        return ""
    titles = "; ".join(finding.title for finding in findings)
    return (
        f"Withheld, because the data behind it is missing: {titles}. Record all devices"
        " again, and fewer steps, so that nothing is dropped, with no other program on the device."
    )


def describe_no_findings(summary: Summary) -> str:
    """Say why no finding is listed."""
    if summary.measures:
        return MEASURES
    if summary.withheld:
        return NONE_LEFT
    if not summary.quality.reliable:
        return NONE_RELIABLE
    if summary.cpu_only or not summary.steps:
        return NO_FINDINGS
    sides = describe_slower_side(summary.sides) if summary.sides else ""
    return " ".join(filter(None, [NO_FINDINGS, sides, BUDGET]))


def describe_slower_side(sides: Sides) -> str:
    """Say which side of a step is the slower one; of the host also the line with most launches,
    where that has many.
    """
    sentence = compare_sides(sides.host_ns / 1e6, sides.device_ns / 1e6)
    if sides.host_ns <= sides.device_ns or sides.line_launches < MANY_LAUNCHES * sides.launches:
        return sentence
    line = without_folders(sides.line).partition(": ")[0]
    return (
        f"{sentence} Most launches: {line}, {sides.line_launches:,.0f} of"
        f" {sides.launches:,.0f} a step."
    )


def describe_startup(startup: StartUp | None) -> str:
    """Name what came before the first work on the device; empty if that was short."""
    if startup is None:
        return ""
    return (
        f"Start-up: {format_duration(startup.ns)} passed before the device got its first work,"
        f" {format_duration(startup.call_ns)} of them in one {startup.call} call. The first call of"
        " CUDA or HIP makes the context; a loop does not pay for it again."
    )


def describe_costs(timeline: Timeline, costs_ns: Mapping[str, float]) -> str:
    """State what recording cost the host, by setting, from the cost of each per operator (ns);
    empty where that is not known. It is a least: these were timed in a loop, with warm caches.
    """
    count = len(timeline.operators) / max(len(timeline.ranks), 1)
    whole = timeline.extent[1] - timeline.extent[0]
    spent = {name: count * ns for name, ns in costs_ns.items()}
    if not whole or not sum(spent.values()):
        return ""
    parts = ", ".join(f"{name} {format_duration(ns)}" for name, ns in spent.items())
    return (
        f"Recording took at least {format_duration(sum(spent.values()))} of the host's time,"
        f" {format_share(sum(spent.values()) / whole)}: {parts}"
    )
