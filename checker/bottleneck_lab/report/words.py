"""How numbers, times and outcomes are written, the same in every rendering."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from bottleneck_lab.analysis.causes import CAUSE_OF
from bottleneck_lab.analysis.comparing.comparability import VERSIONS, format_version
from bottleneck_lab.analysis.counters.roofline import Machine
from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.host.startup import StartUp
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.steps.generation import GenerationUse
from bottleneck_lab.analysis.steps.serving import ServingUse
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.catalog import criterion_label, recorded_lab
from bottleneck_lab.catalog.spec import CriterionSpec
from bottleneck_lab.grading.calibration import describe_factor
from bottleneck_lab.grading.conclusion import REASONS
from bottleneck_lab.grading.criteria import (
    OPEN_BECAUSE,
    UNMEASURED,
    describe_criterion,
    format_figure,
    format_limit,
    format_range,
)
from bottleneck_lab.grading.diagnosis import describe_check_ceiling
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Standing, Verdict
from bottleneck_lab.report.check_ceiling import check_ceiling
from bottleneck_lab.report.kernel_names import cut_name, short_name
from bottleneck_lab.trace.names import CALIBRATED, FIXED_PRICE, MODELLED_HOST
from bottleneck_lab.trace.timeline import Timeline
from bottleneck_lab.wording import counted

DEVICE_NAMES = {"cuda": "CUDA GPU", "cpu": "CPU", "virtual": "emulated accelerator"}

OUTCOME_MEANS = {
    Outcome.PASS: "all criteria are met",
    Outcome.FAIL: "a criterion is not met",
    Outcome.INCONCLUSIVE: "the measurement could not decide",
    Outcome.ERROR: "the machine or the checker failed, not your work",
}

ATTESTATION_MEANS = {
    "self-attested": "Self-attested: measured on the learner's own machine, unsigned.",
    "verified": "Verified: measured and signed by a cohort's runner.",
}

EMULATED = "The accelerator is emulated: its own times are modelled."

# Shown with every capture of a lab or a case that has not been diagnosed.
BLIND = "Causes, findings and gains appear once you commit your diagnosis."

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
OTHER_PLACES = "other operators, lines or ranges"
OTHERS = {
    "compute": "other kernels",
    "copy": "other copies",
    "communication": "other collectives",
}
"""What has no row of its own inside a block, by the block."""
OTHER_OPERATORS = "other operators"
WAITED = "Where the host waited for the device, by share of the wall time"
WAITED_BESIDE = "The device works during most of this; only its idle time, above, is lost."
ONLY_IDLE = (
    "Only the time in which the device was idle for this reason counts here; the whole time of each"
    " line stands further below."
)
AWAITED_ROOM = 60
"""A kernel's name of more characters is shortened where it stands in a sentence."""
MOSTLY = 0.9
"""Work that runs for this share (0-1) of a wait is what the wait is for."""

SETS_THE_PACE = 0.8
"""A part that fills this share (0–1) of a token's time sets its pace."""
GROWN = 1.5
"""Tokens that take so many times as long at the end as at the beginning grow with the length."""

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


WORKER_LINES = (
    "Shares are of the worker's own batches; a line's time includes what it calls (`--ask lines`)."
)
"""The definition of the figures beside a loader worker's lines, which a query sums otherwise."""


def describe_rest(command: str, *, blind: bool, measures: bool) -> str:
    """State what a command shows beyond the top of a summary, and when the rest of it appears."""
    if measures:
        return f"`{command}` shows the rest. {MEASURES}"
    if not blind:
        return f"`{command}` shows what is inside these parts, and the findings."
    return f"`{command}` shows the rest. {BLIND}"


def describe_emulation(*, modelled_host: bool) -> str:
    """State which times of a capture from an emulated accelerator are modelled."""
    if modelled_host:
        return "The accelerator is emulated: its times and the host's are modelled."
    return f"{EMULATED} The host's are real."


def describe_fixed_prices(names: Iterable[str]) -> str:
    """State what the fixed prices of the modelled host are, of those ranges that have these names
    and of the idle time that comes of them; empty where none is named.
    """
    fixed = [
        f"'{name}'"
        for name in dict.fromkeys(names)
        if FIXED_PRICE.search(name) or name.endswith(CAUSE_OF["fixed"].label)
    ]
    if not fixed:
        return ""
    return (
        f"{' and '.join(fixed)} {'is' if len(fixed) == 1 else 'are'} what the model of the host"
        " charges each step for the Python between its operators. No edit changes the charge, only"
        " how much of it the device's work hides, so the gains that a report states leave it in."
    )


def format_share(share: float) -> str:
    """Return a share (0–1) as a percentage with one decimal; whole percentages without."""
    if not math.isfinite(share):
        return str(share)
    # Rounded first: 99.96% must read 100%, not 100.0%.
    percent = round(share * 100, 1)
    if share and not percent:
        return "<0.1%"
    if percent == int(percent):
        return f"{percent:.0f}%"
    return f"{percent:.1f}%"


def format_share_column(share: float) -> str:
    """Return a share (0–1) as a percentage with one decimal, always, so that a column lines up."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}"


def format_duration(ns: float) -> str:
    """Format nanoseconds in the unit that leaves one to three digits before the point."""
    for size, unit in _DURATIONS:
        if abs(ns) >= size:
            value = ns / size
            # Three digits in all: 1.23, 12.3, 123.
            decimals = int(abs(value) < 10) + int(abs(value) < 100)
            return f"{value:,.{decimals}f} {unit}"
    return f"{ns:.0f} ns"


def describe_ratio(whole_ns: float, left_ns: float) -> str:
    """Return a ratio of times with the division that it comes from, in as few digits as give it:
    `239 ms / 36.0 ms = 6.64x`.
    """
    size, unit = next((pair for pair in _DURATIONS if whole_ns >= pair[0]), (1.0, "ns"))
    ratio = f"{whole_ns / left_ns:.2f}"
    whole = left = 0.0
    for digits in range(3, 10):
        whole, left = (float(f"{ns / size:.{digits}g}") for ns in (whole_ns, left_ns))
        if f"{whole / left:.2f}" == ratio:
            break
    return f"{_plainly(whole)} {unit} / {_plainly(left)} {unit} = {ratio}x"


def _plainly(value: float) -> str:
    """Return a number with at least three digits, and no more decimals than it has."""
    least = int(value < 10) + int(value < 100)
    decimals = max(least, len(repr(value).partition(".")[2].rstrip("0")))
    return f"{value:,.{decimals}f}"


def join_numbers(numbers: Iterable[int]) -> str:
    """Return numbers in order, those that follow each other as one range: `0, 2-7`."""
    runs: list[list[int]] = []
    for number in sorted({*numbers}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def name_several(noun: str, numbers: Sequence[int]) -> str:
    """Return numbered things under one name: `rank 3`, `ranks 0, 2-7`."""
    return f"{noun}{'s' * (len({*numbers}) > 1)} {join_numbers(numbers)}"


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


def format_flops(rate: float) -> str:
    """Format FLOP/s in G or T."""
    if rate >= 1e12:
        return f"{rate / 1e12:.1f} TFLOP/s"
    return f"{rate / 1e9:.1f} GFLOP/s"


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


def format_bytes(size: float) -> str:
    """Format bytes in binary units."""
    for step, unit in _BYTES:
        if abs(size) >= step:
            return f"{size / step:,.1f} {unit}"
    return f"{size:.0f} B"


def format_measured(criterion: CriterionResult) -> str:
    """Return the value, with as many digits as it takes to tell it from the target; the count
    behind it where there is one; what bounds it while it is open; empty if the criterion has none.
    """
    if criterion.counted is not msgspec.UNSET:
        return criterion.counted
    if criterion.value is None:
        return ""
    if criterion.holds is None and criterion.low is not None and criterion.high is not None:
        return format_range(criterion.low, criterion.high, criterion.unit, criterion.target)
    return format_figure(criterion.value, criterion.unit, criterion.target)


def describe_miss(verdict: Verdict, criterion: CriterionResult) -> str:
    """Return the sentence of a criterion that is missed or open. Where it names a fault after the
    criterion's whole text, the short label and the target stand for that text.
    """
    lab = recorded_lab(verdict.lab)
    device = lab.spec.devices.get(verdict.device) if lab else None
    for spec in device.criteria if device else []:
        text = f"Not met: {describe_criterion(spec)}. "
        if spec.id == criterion.id and criterion.sentence.startswith(text):
            target = format_target(spec)
            wanted = f"wanted {target}; " if target else ""
            return f"{spec.label or spec.id}: {wanted}{criterion.sentence.removeprefix(text)}"
    return criterion.sentence


def format_target(criterion: CriterionResult | CriterionSpec) -> str:
    """Return the target with its direction, such as `at least 80%`; empty if the criterion has
    none.
    """
    if criterion.target is None:
        return ""
    if criterion.unit == "share" and criterion.direction == "at_least" and criterion.target == 1:
        return "100%"  # no share is larger
    words = "at most"
    if criterion.direction == "at_least":
        words = "at least"
    return f"{words} {format_limit(criterion.target, criterion.unit)}"


def unmeasured_because(criterion: CriterionResult) -> str:
    """Return why a criterion was not reached, or an answer not judged, as a clause such as `because
    the check ended`; empty for one that was.
    """
    if criterion.holds or (criterion.holds is False and criterion.kind != "diagnosis"):
        return ""
    if choice := re.search(_RESTS_ON, criterion.sentence):
        return f"because your `{choice[1]}` is wrong"
    reason = re.search(_UNMEASURED, criterion.sentence)
    return reason[1] if reason else ""


_UNMEASURED = re.compile(rf"(?:{UNMEASURED}|: not checked, |(?:: n|^N)ot judged, )(.+?)\.?$")
_RESTS_ON = re.compile(r"It rests on (?:your )?`(\w+)`: correct that first\.$")
"""The words of a lab whose check judges the answers itself, and of earlier versions."""

Mark = Literal["right", "wrong", "undecided", "not judged"]
"""How a criterion or an answer stands: each has one sign, the same in every rendering."""
SIGNS: dict[Mark, str] = {"right": "✓", "wrong": "✗", "undecided": "?", "not judged": "–"}


def mark_of(result: CriterionResult) -> Mark:
    """Return how a result stands. `undecided` was measured and could not be told; `not judged` was
    not reached, or follows from a choice that is wrong.
    """
    if unmeasured_because(result):
        return "not judged"
    if result.holds is None:
        return "undecided"
    return "right" if result.holds else "wrong"


def describe_doubt(criterion: CriterionResult) -> str:
    """State why a measured criterion is open, where its own sentence does not: its target lies
    between its bounds. Empty otherwise.
    """
    low, high, target = criterion.low, criterion.high, criterion.target
    if criterion.holds is not None or low is None or high is None or target is None:
        return ""
    if OPEN_BECAUSE in criterion.sentence:
        return ""
    return "The target lies in that range." if low < target <= high else ""


def format_interval(criterion: CriterionResult) -> str:
    """Return the interval and the number of samples behind it; empty if nothing was sampled. An
    open end is stated as such.
    """
    low, high = (_finite(bound) for bound in (criterion.low, criterion.high))
    parts = []
    if low is not None and high is not None:
        parts.append(
            f"between {format_figure(low, criterion.unit, criterion.target)} and"
            f" {format_figure(high, criterion.unit, criterion.target)}"
        )
    elif low is not None:
        parts.append(f"at least {format_figure(low, criterion.unit, criterion.target)}")
    elif high is not None:
        parts.append(f"at most {format_figure(high, criterion.unit, criterion.target)}")
    if criterion.samples:
        parts.append(counted(criterion.samples, "sample"))
    return ", ".join(parts)


@dataclass(frozen=True)
class Gauge:
    """Figures of a criterion's bar, which runs from 0 to `end`."""

    value: float
    low: float
    high: float
    target: float
    end: float


def gauge(criterion: CriterionResult) -> Gauge | None:
    """Return the bar's figures; None without a number and a target. An open end of the interval is
    drawn at the value.

    The bar ends at 1 for shares up to 1, otherwise a fifth beyond the largest figure on it.
    """
    value, target = _finite(criterion.value), _finite(criterion.target)
    if value is None or target is None:
        return None
    low, high = (
        value if _finite(bound) is None else float(bound or 0)
        for bound in (criterion.low, criterion.high)
    )
    largest = max(value, high, target)
    end = 1.0 if criterion.unit == "share" and largest <= 1 else largest * 1.2
    return Gauge(value, low, high, target, end if end > 0 else 1.0)


def _finite(figure: float | None) -> float | None:
    if figure is not None and math.isfinite(figure):
        return figure
    return None


def format_moment(moment: str) -> str:
    """Return an ISO 8601 time for reading."""
    return re.sub(r"(\d)T(\d)", r"\1 \2", moment).replace("+00:00", " UTC")


def describe_prediction(verdict: Verdict) -> str:
    """Compare predicted and measured gain; empty without a prediction.

    Before the check passes it states the progress, afterwards how far apart the two are.
    """
    if verdict.prediction is None:
        return ""
    predicted, measured = verdict.prediction.predicted, verdict.prediction.measured
    quantity = verdict.prediction.quantity
    passed = verdict.outcome is Outcome.PASS
    if quantity == "memory":
        prediction = f"You predicted that the peak of memory falls by a factor of {predicted:.2f}"
    elif quantity == "reference":
        prediction = f"You predicted that the shipped code must become {predicted:.2f}x as fast"
    else:
        prediction = f"You predicted {predicted:.2f}x"
    if verdict.prediction.corrected:
        prediction += f" first (corrected: {verdict.prediction.corrected:.2f}x)"
    if measured is None:
        # Work that passed was measured; the factor that it needed is known from other checks only.
        gain = f"the gain was {describe_open_gain(verdict)}"
        if reason := _undecided_because(verdict):
            gain += f"{',' * (not gain.endswith('undecided'))} because {reason}"
        return f"{prediction}." if passed else f"{prediction}; {gain}."
    near = describe_factor(predicted / measured if measured > 0 else math.inf)
    if quantity == "reference":
        return f"{prediction}; a check of it measured {measured:.2f}x: {near}."
    if quantity == "memory":
        change = f"{prediction}; {_describe_peaks(verdict.measurement)} {measured:.2f}"
        return f"{change}: {near}." if passed else f"{change}."
    if passed:
        compared = f"{prediction} and measured {measured:.2f}x: {near}."
    else:
        compared = f"{prediction}; this attempt ran {measured:.2f}x as fast."
    return " ".join([compared, *_describe_limit(verdict)])


def _describe_limit(verdict: Verdict) -> list[str]:
    """Return why no larger gain could be measured, where a check has such a limit and the
    prediction was above it.
    """
    lab, prediction = recorded_lab(verdict.lab), verdict.prediction
    most = lab and check_ceiling(lab, verdict.device)
    if not most or prediction is None:
        return []
    largest = max(prediction.predicted, prediction.corrected)
    return [describe_check_ceiling(most)] if largest > _ROUNDED_UP * most else []


_ROUNDED_UP = 1.01
"""A predicted gain may be above the largest that a check can measure by this much before a sentence
explains the difference.
"""


def describe_open_gain(verdict: Verdict) -> str:
    """Return what is known of a gain that has no figure: the bounds of the criterion that is about
    the speed over the shipped code's, where it stayed open.
    """
    lab = recorded_lab(verdict.lab)
    device = lab.spec.devices.get(verdict.device) if lab else None
    gains = [each.id for each in device.criteria if each.shipped == 1] if device else []
    for each in verdict.criteria:
        low, high = each.low, each.high
        if each.id in gains and each.holds is None and low is not None and high is not None:
            return f"between {low:.2f}x and {high:.2f}x, undecided"
    return "not measured"


def _undecided_because(verdict: Verdict) -> str:
    """Return why a check could not decide: the end of its summary, as a clause."""
    summary = verdict.summary
    for each in verdict.criteria:
        summary = summary.replace(each.sentence, "")
    last = re.split(r"(?<=\.) ", summary.strip())[-1].rstrip(".")
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return ""
    return last[:1].lower() + last[1:]


def _describe_peaks(measurement: Mapping[str, Any]) -> str:
    """Return how the peak went from the shipped code's to this one's, up to the factor itself."""
    before = measurement.get("shipped", {}).get("peak_mib")
    after = measurement.get("figures", {}).get("peak-mib")
    if before is None or after is None:
        return "this attempt lowers it by a factor of"
    return f"it went from {before:.3g} MiB to {after:.3g} MiB, a factor of"


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


def describe_bounds(findings: Sequence[Finding]) -> str:
    """State what both words for gains mean, where findings have both; "" otherwise."""
    if len({each.at_most for each in findings if each.expected_gain_ratio}) < 2:
        return ""
    return (
        "At most: without all of it, so that no fix of this alone gains more. About: the usual fix"
        " also saves other time, and may gain more."
    )


def describe_wait(row: SyncRow) -> str:
    """State who waited, and for what: the line where the capture has lines, else what called; and
    how long that ran of the waiting, where other work took much of it.
    """
    awaited = cut_name(short_name(row.awaited), AWAITED_ROOM)
    what, part = describe_awaited(msgspec.structs.replace(row, awaited=awaited)), ""
    if row.awaited_ns < MOSTLY * row.total_ns:
        part = f"{format_duration(row.awaited_ns)} of it "
    return f"{row.line or row.caused_by or row.name}{f', {part}for {what}' if what else ''}"


def explain_waits(rows: Sequence[SyncRow]) -> str:
    """Say that the device works during most of the host's waits; "" where it does not."""
    works = 2 * sum(row.busy_ns for row in rows) > sum(row.total_ns for row in rows)
    return WAITED_BESIDE if works else ""


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
    return NO_FINDINGS if summary.quality.reliable else NONE_RELIABLE


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


NOT_JUDGED = "diagnosis not judged yet"


def describe_standing(verdict: Verdict) -> str:
    """State what the learner's diagnosis is worth, in a few words: how the first one did, how often
    the learner has answered, and if the answers are right now. Empty if nothing is known about it.
    """
    standing, wrong = verdict.diagnosis, wrong_answers(verdict)
    if standing is None:
        return ""
    if standing.copied:
        return "the code is the reference solution's, which does not count as yours"
    how = {
        "hints": "all hints taken",
        "revealed": "causes revealed",
        "solution": "solution seen",
    }.get(standing.told)
    if how:
        return f"the diagnosis does not count as yours ({how})"
    answered = _describe_answering(verdict, standing, wrong)
    if standing.named is None:
        judged = f"{counted(wrong, 'answer')} wrong" if wrong else NOT_JUDGED
        return f"{judged}{answered}"
    hints = ""
    if standing.hints:
        hints = f" with {counted(standing.hints, 'hint')}"
    if not asks_for_cause(verdict):
        some_wrong = not standing.named or standing.measured is False
        return f"{'not ' if some_wrong else ''}all answers right on the first try{hints}{answered}"
    named = "cause named" if standing.named else "cause not named"
    evidence = ""
    then = " at first" if standing.corrections else ""
    if standing.missed:
        evidence = f", {' and '.join(standing.missed)} wrong{then}"
    elif standing.measured is False:
        evidence = f", another answer was wrong{then}"
    return f"{named} on the first try{hints}{evidence}{answered}"


def _describe_answering(verdict: Verdict, standing: Standing, wrong: int) -> str:
    """State how often the learner has answered, where it was more than once, and how that ended in
    this check if it judged the answers; after a comma.
    """
    if not standing.corrections:
        return ""
    times = "twice" if standing.corrections == 1 else f"{standing.corrections + 1} times"
    marks = [mark_of(each) for each in verdict.criteria if each.kind == "diagnosis"]
    if wrong:
        now = f", {counted(wrong, 'answer')} still wrong" if standing.named is not None else ""
    elif standing.named and standing.measured is not False:
        now = ""  # they were right from the first
    elif "right" in marks:
        now = ", right the last time"
    else:
        now = ""
    return f", answered {times}{now}"


def asks_for_cause(verdict: Verdict) -> bool:
    """Return True if the lab asks for the cause, or is not here any more."""
    lab = recorded_lab(verdict.lab)
    return lab is None or lab.spec.asks_for_cause


def wrong_answers(verdict: Verdict) -> int:
    """Return the number of answers that a check found wrong."""
    return sum(each.kind == "diagnosis" and mark_of(each) == "wrong" for each in verdict.criteria)


def main_criterion(attempts: Sequence[Verdict]) -> str | None:
    """Return the id of the criterion that a lab is about: of `main_criteria` the one that most
    checks found missed. None if no figure was measured.
    """
    fitting, missed = main_criteria(attempts), Counter[str]()
    for verdict in attempts:
        missed.update(each.id for each in verdict.criteria if each.holds is False)
    return max(fitting, key=lambda id_: missed[id_], default=None)


def main_criteria(attempts: Sequence[Verdict]) -> list[str]:
    """Return the ids of the criteria of the kind that a lab's shipped code fails, of those whose
    figure was measured; where none was, of the targets.
    """
    lab = recorded_lab(attempts[-1].lab) if attempts else None
    about = lab.spec.starter_fails if lab else "correct but slow"
    measured = [
        each
        for verdict in attempts
        for each in verdict.criteria
        if each.value is not None and each.kind != "diagnosis"
    ]
    fitting = [each for each in measured if REASONS[each.kind] == about]
    fitting = fitting or [each for each in measured if each.kind == "target"]
    return list(dict.fromkeys(each.id for each in fitting))


def headline(verdict: Verdict) -> str:
    """Return the outcome's second half: why it failed, or what the outcome means. Where right and
    fast work misses a limit, its own cause may well be gone: that limit is named. So is the first
    that is missed where right results are what the lab is about: the others may be right.
    """
    missed = [
        criterion_label(verdict.lab, verdict.device, each.id)
        for each in verdict.criteria
        if REASONS[each.kind] == verdict.reason and each.holds is False
    ]
    if missed and verdict.reason == REASONS["mechanism"]:
        return f"a limit is missed: {', '.join(missed)}"
    lab = recorded_lab(verdict.lab)
    about_results = lab is not None and lab.spec.starter_fails == REASONS["correctness"]
    if missed and about_results and verdict.reason == REASONS["correctness"]:
        others = f" and {len(missed) - 1} more" if missed[1:] else ""
        wrong = wrong_answers(verdict)
        answers = f"; {counted(wrong, 'answer')} wrong" if wrong else ""
        return f"missed: {missed[0]}{others}{answers}"
    unreached = any(
        each.kind == "correctness" and unmeasured_because(each) for each in verdict.criteria
    )
    if unreached and verdict.reason == REASONS["target"]:
        return "too slow to be judged"
    return verdict.reason or OUTCOME_MEANS[verdict.outcome]


def describe_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Return what a capture's own facts tell a reader, by name; without those that only matter to
    programs, such as when its clock began.
    """
    described = {}
    for fact, name in _RECORDED.items():
        if fact in facts:
            described[name] = "no" if facts[fact] in ("0", "False", "false") else "yes"
    for fact, name in _VERSIONS.items():
        if fact in facts:
            described[name] = format_version(facts[fact])
    if facts.get(CALIBRATED, "").isdecimal():
        batch = format_duration(int(facts[CALIBRATED]))
        described["emulated device"] = f"set to {batch} for a full batch, by this machine's speed"
    return described


_RECORDED = {
    "record_shapes": "shapes recorded",
    "with_stack": "Python frames recorded",
    "profile_memory": "memory recorded",
    MODELLED_HOST: "host's times modelled",
}
_VERSIONS = {
    **VERSIONS,
    "EXPORT_PRODUCT_VERSION": "Nsight Systems",
}


def join_facts(facts: dict[str, str]) -> list[str]:
    """Return `name: value` for every fact, in the order given."""
    return [f"{name}: {value}" for name, value in facts.items()]
