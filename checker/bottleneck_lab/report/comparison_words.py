"""Wording of two captures side by side, shared by the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bottleneck_lab.analysis.causes import CAUSE_OF
from bottleneck_lab.analysis.comparing.changes import (
    NEGLIGIBLE_SHARE,
    NOTABLE_SHARE,
    TOLERATED_MODELLED,
)
from bottleneck_lab.analysis.comparing.compare import OTHER_BATCHES
from bottleneck_lab.analysis.comparing.comparison import (
    Comparison,
    Control,
    FigureChange,
    LongStep,
    Unit,
)
from bottleneck_lab.analysis.comparing.line_matching import split_line
from bottleneck_lab.analysis.statistics import Change
from bottleneck_lab.analysis.steps.window import BATCH
from bottleneck_lab.grading.diagnosis import describe_check_ceiling
from bottleneck_lab.report import words
from bottleneck_lab.report.breakdown import group_alike
from bottleneck_lab.report.kernel_names import short_name, short_names
from bottleneck_lab.report.memory_words import SMALL

GROUPS = {
    "step": "The step",
    "device": "What the device did",
    "gap": "Why it was idle, where the device's work does not hide it",
    "range": "Ranges",
    "line": "Your lines of Python, by the host's time in them",
    "operator": "Operators",
    "kernel": "Kernels",
    "copy": "Copies",
    "sync": "Waits of the host for the device",
}

_ON_CPU = {"device": "What the CPU did", "gap": "When no operator ran"}
"""Titles where the CPU is the device: it is not idle then."""

_LABELS = {
    ("step", "image"): "each image",
    ("step", "batch"): "a batch on the device",
    ("device", "compute"): "computing",
    ("device", "exposed_communication"): "communicating only",
    ("device", "exposed_copy"): "copying only",
}

MEASURES = (
    "Neither faster nor slower: this program measures others, and how long it does so is its own"
    " choice; `lab run` says how good its figures are"
)

_FINDINGS = {
    "findings_gone": "No longer a finding: gone, or too little now",
    "findings_new": "New as a finding: it grew, or is a larger part of what is left",
}
"""Words for the findings in each of these fields of a comparison."""

_LEAST_FALL = 0.3
"""A fall of memory below this part (0-1) of both peaks is none to compare."""
_LEAST_NEW_FALL = 0.15
"""The same where one side has none at all, so that batches of other sizes do not explain it."""

_FINDINGS_OF_TWO = {
    "findings_gone": "Findings before alone",
    "findings_new": "Findings after alone",
}
"""The same for two programs, of which neither is a version of the other."""

# Groups whose figures are all shown; of the others only those that changed, or may have changed
# by much.
ALWAYS = ("step", "device", "gap")

TOP = 8
SMALL_CHANGE = "small"
_MUCH = 1.25
MEMORY_TOLERATED = 0.05
"""Peaks that differ by less than this share (0–1) are hardly different: when Python collects its
garbage moves them by that.
"""
SLIGHT = 0.05
"""A ratio nearer to 1 than this is a slight change, however surely it is one."""
NEAR_ONE = 0.02
"""A ratio of modelled times nearer to 1 than this has three decimals."""
RARELY = 0.1
"""What happens less often in a step is told by how many steps it happens once in."""
HIGHEST_SHOWN = 100.0
"""A ratio beyond this says only that one side is next to nothing: "from X to Y" says more."""
EMULATED_KERNEL = "emulated: "
"""Begins the name of a kernel on an emulated device; the rest is that of its one operator."""

ROUNDING = 0.0005
"""Share of a step that the parts shown may lack without a row for the others: less is not seen in
times of three digits.
"""

_OUTCOMES = {
    "better": "Faster",
    "worse": "Slower",
    "same": "Hardly different",
    "cannot tell": "Cannot tell",
    "differs": "Different",
}


_COMPARED: dict[Unit, str] = {
    "step": "a step",
    "image": "an image",
    "kernel": "your kernels",
    "recording": "the recording",
}
"""The time that a ratio is of, by the unit of a comparison."""


def describe_headline(comparison: Comparison) -> tuple[list[str], Change]:
    """Return what the comparison comes to, a line each, and whether the first of them is better or
    worse. In a lab about memory its peak comes first, of the device that had most.
    """
    if comparison.measures:
        return [MEASURES], comparison.outcome
    speed = describe_speedup(comparison)
    peaks = max((change.peak_bytes for change in comparison.memory), default=(0, 0))
    if not comparison.of_memory or not all(peaks):
        return [speed], comparison.outcome
    ratio = peaks[0] / peaks[1]
    outcome: Change
    outcome, what = "same", "Memory hardly different"
    if ratio > 1 + MEMORY_TOLERATED:
        outcome, what = "better", "Less memory"
    elif 1 / ratio > 1 + MEMORY_TOLERATED:
        outcome, what = "worse", "More memory"
    before, after, factor = words.format_change(*peaks)
    return [f"{what} at the peak: {before} → {after} ({factor})", speed], outcome


def describe_speedup(comparison: Comparison) -> str:
    """State what the ratio of the step times means, and that ratio with its interval. The ratio of
    the means, which the tables have, stands before it where it is another.
    """
    interval = format_interval(comparison.speedup_low, comparison.speedup_high)
    if not interval:
        interval = "modelled" if comparison.repeats else "no interval"
    # Modelled times tell a change of 1%: then the figure does, too.
    exact = comparison.repeats and abs(comparison.speedup - 1) < NEAR_ONE
    speedup, mean = f"{comparison.speedup:.{3 if exact else 2}f}x", comparison.mean_speedup
    ratio = f"{speedup} for {_COMPARED[comparison.unit]} ({interval})"
    if mean is not None and f"{mean:.2f}" != f"{comparison.speedup:.2f}":
        typical = "a typical pair of captures" if comparison.pairs > 1 else "a typical one"
        ratio = f"{mean:.2f}x by the mean {comparison.unit}, {speedup} ({interval}) by {typical}"
    outcome = _OUTCOMES[comparison.outcome]
    if comparison.outcome in ("better", "worse") and abs(comparison.speedup - 1) < SLIGHT:
        outcome = f"Slightly {outcome.lower()}"
    changed = comparison.outcome in ("better", "worse")
    if changed and comparison.pairs == 1 and not comparison.load_known:
        # The same program differed by up to 1.7 times between captures on a busy machine.
        outcome += " in these two captures"
    sentence = f"{outcome}: {ratio}"
    if comparison.images_per_s is not None:
        before, after = comparison.images_per_s
        sentence += f", {before:,.0f} → {after:,.0f} images/s"
        if _describe_scaling(comparison) and comparison.calibrated_ns:
            old_ns, new_ns = comparison.calibrated_ns
            sentence += f" (scaled; {after * old_ns / new_ns:,.0f} as recorded)"
    return sentence


def describe_differences(comparison: Comparison) -> list[str]:
    """State what differs beside the code, and what then cannot be told; empty if nothing does."""
    notes = [
        *_describe_scaling(comparison),
        *_describe_batches(comparison),
        *_describe_flop(comparison),
    ]
    if any(comparison.library_ns):
        before, after = map(words.format_duration, comparison.library_ns)
        notes.append(
            f"Kernels of libraries are left out: {before} before, {after} after. They were measured"
            " beside yours, and are no part of it."
        )
    if comparison.same_code:
        notes.append("The code is the same on both sides: whatever differs is not its doing.")
    if not comparison.differences:
        return notes
    if comparison.host_only:
        notes.append(
            "Only one side has an accelerator: steps and what the host did are compared. On a CPU"
            " operators compute; beside an accelerator most of them only launch."
        )
    kinds = {difference.kind for difference in comparison.differences}
    verdict = "No part can be called the same, and a difference need not be the code's."
    if kinds == {"load"}:
        verdict = (
            "So nothing is called the same; and slower only what a busier machine cannot explain."
        )
    if "program" in kinds:
        verdict = (
            "Two programs do different work: no part is called better, worse or the same. If one"
            " does the work of the other, compare samples or requests per second."
        )
    if "settings" in kinds:
        verdict = "Nothing can be concluded: record both again in the same way."
    lines = [f"Before and after are not alike: {d.sentence}." for d in comparison.differences]
    return [*notes, *lines, verdict]


def describe_unreliable(comparison: Comparison) -> list[str]:
    """State why a capture is unreliable, and what to do; empty where all are reliable."""
    if comparison.reliable:
        return []
    sides = {reason.partition(":")[0] for reason in comparison.reasons}
    again = "both versions"
    if len(sides) == 1:
        again = "the old version" if "before" in sides else "the new version"
    return [
        *(f"Unreliable, because {reason}." for reason in comparison.reasons),
        f"Nothing can be concluded from an unreliable capture: record {again} again.",
    ]


def _describe_flop(comparison: Comparison) -> list[str]:
    """State that calls of an operator do other work than before, by their shapes."""
    each = comparison.flop_per_call
    if each is None:
        return []
    before, after = (f"{flop / 1e6:.3g} MFLOP" for flop in (each.before, each.after))
    was, now = each.shapes
    # Which of several shapes took whose place is not known.
    inputs = [f"{shape} is {word}" for shape, word in ((was, "gone"), (now, "new")) if shape]
    of = f"{each.operator}{': ' if inputs else ''}{', '.join(inputs)}"
    return [
        f"The shapes differ: {of}. A call computes {before} on average before, and {after} after."
        " If that is another batch size, compare times for each sample."
    ]


def _describe_scaling(comparison: Comparison) -> list[str]:
    """State that the device was calibrated differently, and that times are scaled for it."""
    if comparison.calibrated_ns is None:
        return []
    before, after = map(words.format_duration, comparison.calibrated_ns)
    if before == after:
        return []
    return [
        f"The device is set by the speed of the machine, not by an edit: {before} a batch before,"
        f" {after} after. All times are scaled to the first capture's device."
    ]


def _describe_batches(comparison: Comparison) -> list[str]:
    """State that the device worked on other steps' batches on one side, where it did."""
    before, after = comparison.batches_per_step or (0.0, 0.0)
    if abs(before - after) <= OTHER_BATCHES * max(before, after):
        return []
    return [
        f"The device worked on {before:.2f} batches a step before and {after:.2f} after: it began"
        " with some that had been handed over before the recording, or left some over at its end."
        " That changes how long it computes in a step, and not how fast."
    ]


RATIOS = "2.00x takes half as long as before, 0.50x twice as long."


def describe_samples(comparison: Comparison) -> list[str]:
    """State what the comparison is based on, and what it cannot show."""
    if comparison.pairs > 1:
        basis = (
            f"{comparison.pairs} captures of each version, compared in pairs; times are means over"
            " all their steps."
        )
    else:
        old, new = comparison.steps
        if comparison.unit == "kernel":
            basis = "Times are the sums of your own kernels, which ncu measured one at a time."
        elif comparison.unit == "step":
            basis = f"Times are means over all steps, {old} before and {new} after."
        elif comparison.unit == "image":
            basis = (
                "Times are means for each answered image, except for a batch's own. A range adds"
                " up the wall time of all threads, with their waits for a core."
            )
        else:
            basis = "A side without marked steps has the times of its whole recording."
    lines = [basis, RATIOS]
    if not comparison.load_known:
        lines.insert(1, "They are wall times: a trace does not tell how busy its machine was.")
    mean, most = comparison.mean_speedup, comparison.check_ceiling
    if most is not None and (mean or comparison.speedup) > most:
        lines.append(describe_check_ceiling(most))
    elif comparison.calibrated_ns is not None:
        lines.append("A check calibrates the device anew, and may come to another ratio.")
    elif mean is not None and f"{mean:.2f}" != f"{comparison.speedup:.2f}":
        lines.append(f"A check times whole runs, and comes near the mean {comparison.unit}.")
        lines += map(_describe_long_step, comparison.long_steps)
    if any(comparison.startup_ns):
        before, after = map(words.format_duration, comparison.startup_ns)
        lines.append(f"Start-up in the first step is left out: {before} before, {after} after.")
    return lines + _describe_certainty(comparison)


def _describe_certainty(comparison: Comparison) -> list[str]:
    """State how sure the figures are, and what would make them surer."""
    lines = []
    if comparison.repeats:
        lines.append("All times are modelled, and the same in every run.")
    elif comparison.few:
        lines.append(_describe_few(comparison))
    elif comparison.pairs == 1:
        lines.append(
            f"Intervals are of a typical {comparison.unit} in one capture each; another run may"
            " differ by more."
        )
    if not (comparison.repeats or comparison.few) and _has_bare_ratios(comparison):
        lines.append(
            "A ratio without an interval is of the means: some steps lack that part, or a typical"
            " one says something else."
        )
    if any(_is_near(change, comparison.tolerated) for change in comparison.changes):
        lines.append(_describe_rule(comparison))
    if comparison.control is not None:
        lines.append(_describe_control(comparison.control))
    return lines


def _describe_few(comparison: Comparison) -> str:
    """State how many samples there are, and how many an interval takes."""
    (old, new), (steps, captures) = comparison.steps, comparison.needed
    several = f"{captures} captures of each, alternating"
    if comparison.pairs > 1:
        return f"An interval takes at least {several}: there are {comparison.pairs} of each."
    if comparison.unit == "kernel":
        return "A report of each version is one sample, which gives no interval."
    if comparison.unit == "recording":
        return (
            "A whole recording is one sample, and an interval takes at least"
            f" {steps} marked steps of each version, or {several}."
        )
    return (
        f"An interval takes at least {steps} steps of each version, or {several}: there are {old}"
        f" before and {new} after."
    )


def _has_bare_ratios(comparison: Comparison) -> bool:
    """Return True if the ratio of a part that is shown has no interval beside it."""
    return any(
        format_ratio(change).endswith("x") and not format_between(change)
        for group in GROUPS
        for change in shown_changes(comparison, group)
    )


def _describe_long_step(step: LongStep) -> str:
    """Name a step that moves the mean, and by how much it is longer than a typical one."""
    ns, typical_ns = map(words.format_duration, (step.ns, step.typical_ns))
    return f"Step {step.number} {step.when} took {ns}, a typical one {typical_ns}."


def _is_near(change: FigureChange, tolerated: float) -> bool:
    """Return True if nothing is told of a change though its interval lies beyond 1: it does not lie
    beyond what is tolerated.
    """
    if change.outcome != "cannot tell" or change.low is None or change.high is None:
        return False
    return 1 < change.low <= 1 + tolerated or 1 / (1 + tolerated) <= change.high < 1


def _describe_rule(comparison: Comparison) -> str:
    """State how far from 1 an interval must lie for a change, and what to record to narrow it."""
    bound, more = 1 + comparison.tolerated, "more captures"
    if comparison.pairs == 1:
        more = "more steps, or several captures of each, alternating,"
    return (
        f"Better is said of an interval wholly above {bound:.2f}x, worse of one wholly below"
        f" {1 / bound:.2f}x, since the same code differs by as much on a quiet machine; {more}"
        " narrow it."
    )


def _describe_control(control: Control) -> str:
    if control.outcome in ("better", "worse"):
        return (
            f"The same code against itself came out at {control.ratio:.2f}x: the machine or the"
            " order favours one side, so nothing can be concluded."
        )
    if control.moved:
        named = ", ".join(short_name(what) for _, what in control.moved[:TOP])
        return (
            f"The same code against itself differs in {named}, so nothing can be concluded about"
            " that."
        )
    return (
        f"The same code against itself came out at {control.ratio:.2f}x, with no part of it"
        " changed."
    )


def list_findings(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Return the findings that one side alone has, under a title each."""
    of_two = any(difference.kind == "program" for difference in comparison.differences)
    titles = _FINDINGS_OF_TWO if of_two else _FINDINGS
    lists = [
        (title, [_still(comparison, *finding) for finding in getattr(comparison, name).items()])
        for name, title in titles.items()
    ]
    return [(title, findings) for title, findings in lists if findings]


def _still(comparison: Comparison, id_: str, title: str) -> str:
    """Return a finding's title; of memory that grows, though by too little to be a finding, by how
    much.
    """
    grown, grows = (
        max((each.growth_bytes_per_step[side] for each in comparison.memory), default=0)
        for side in (0, 1)
    )
    if id_ != "memory-growth":
        return title
    if grows <= 0:
        return f"{title} (it no longer does)"
    how = "still by" if id_ in comparison.findings_gone else "now by"
    if abs(grows - grown) < MEMORY_TOLERATED * grown:
        how = "as before by"
    return f"{title} ({how} {words.format_bytes(grows)})"


def describe_ahead(changes: Sequence[FigureChange]) -> str:
    """State what `moved` and `hidden` mean where a change is called that; empty where none is."""
    words_used, sentences = {judge_change(change) for change in changes}, []
    if "moved" in words_used:
        sentences.append(
            "moved: the host waits for the same work on another line than before, shorter on one"
            " and longer on the other, or comes to a wait earlier. Only the whole step tells what"
            " that gains."
        )
    if "hidden" in {*words_used, *map(format_ratio, changes)}:
        sentences.append(_HIDDEN)
    return " ".join(sentences)


_HIDDEN = (
    "hidden: the device is busy nearly all that time. The host is ahead of it and waits there,"
    " or works beside it, which costs no time in itself. What a wait costs comes after it, as"
    " idle time."
)


def describe_charge(changes: Iterable[FigureChange]) -> str:
    """State what `charge` means where a change is called that; empty where none is."""
    if not any(judge_change(change) == "charge" for change in changes):
        return ""
    return (
        "charge: the model's fixed price of a step's Python, or of a batch from a loader's worker."
        " It stays the same; the device idles through more or less of it."
    )


def describe_often(comparison: Comparison, group: str) -> str:
    """State what is counted beside the times of a group, before and after: the host's waits in a
    step, or the kernels of one; empty for any other group.
    """
    if group == "sync":
        return _describe_waits(comparison)
    return _describe_kernels(comparison) if group == "device" else ""


def _describe_waits(comparison: Comparison) -> str:
    """State how often the host waits in a step, before and after; empty where it never does."""
    waits = comparison.waits_per_step
    if not waits or not any(waits):
        return ""
    if comparison.ranks > 1:
        return f"{waits[0]:.3g} → {waits[1]:.3g} a rank and step"
    if any(0 < each < RARELY for each in waits):
        before, after = (
            f"1 in {1 / each:.0f} steps" if 0 < each < RARELY else f"{each:.3g} a step"
            for each in waits
        )
        return f"{before} → {after}"
    return f"{waits[0]:.3g} → {waits[1]:.3g} a step"


def _describe_kernels(comparison: Comparison) -> str:
    """State how many kernels a device got in a step, before and after; empty where that is the
    same.
    """
    kernels = comparison.kernels_per_step
    if not kernels:
        return ""
    before, after = (f"{count:,.0f}" if count >= 10 else f"{count:.3g}" for count in kernels)
    return f"{before} → {after} kernels a step" if before != after else ""


def title_group(comparison: Comparison, group: str) -> str:
    """Return the title of a group of changes: of operators, also which time is meant."""
    title = _ON_CPU.get(group, GROUPS[group]) if comparison.cpu_only else GROUPS[group]
    if group == "step":
        return _WHOLES[comparison.unit][0]
    if group == "line" and not comparison.exact_lines:
        return "Your functions, by the host's time in them alone"
    if group != "operator":
        return title
    if any(change.group in ("kernel", "copy") for change in comparison.changes):
        return f"{title}, by the device's time in what they launch"
    host = "host" if comparison.host_only else "CPU"
    return f"{title}, by the {host}'s time in them alone"


_WHOLES = {
    "step": ("The step", "whole step"),
    "image": ("The step", "whole step"),
    "kernel": ("All of your kernels", "their sum"),
    "recording": ("The recording", "whole recording"),
}
"""Title and label of the whole, by the unit of a comparison."""


def format_interval(low: float | None, high: float | None) -> str:
    """Return `1.60–1.72x`; empty if a bound is not known."""
    if low is not None and high is not None:
        return f"{low:.2f}–{high:.2f}x"
    return ""


def label_change(
    change: FigureChange,
    kernels: Mapping[str, str],
    *,
    cpu_only: bool = False,
    unit: Unit = "step",
) -> str:
    """Name what changed, in a reader's words; `kernels` are the short names of kernels. `cpu_only`:
    the CPU is the device. `unit` is that of the comparison.
    """
    if change.group == "gap":
        cause = CAUSE_OF[change.what]
        return cause.cpu_label or cause.label if cpu_only else cause.label
    if cpu_only and (change.group, change.what) == ("device", "compute"):
        return "running operators"
    label = _LABELS.get((change.group, change.what))
    if (change.group, change.what) == ("step", "time"):
        label = _WHOLES[unit][1]
    name = label or kernels.get(change.what, change.what)
    if change.calls:
        name = f"{name}, {change.calls[0]:.3g} → {change.calls[1]:.3g} a step"
    if not change.was:
        return name
    if change.group == "line":
        # What happened to it stands first: in a terminal, a line is cut.
        (before,) = change.was
        (function, old_source), (_, source) = split_line(before), split_line(name)
        if old_source == source:
            return f"moved {name} (was in {function})"
        together = ", together" * old_source.startswith("lines ")
        return f"edited {name} (was {old_source}{together})"
    was = f"{len(change.was)} kernels"
    if len(change.was) == 1:
        was = short_name(change.was[0])
    return f"{name} (was {was})"


def kernel_labels(comparison: Comparison) -> dict[str, str]:
    """Return the short name of every kernel in a comparison."""
    return short_names(change.what for change in comparison.changes if change.group == "kernel")


def format_ratio(change: FigureChange) -> str:
    """Return the ratio of the two times shown; `gone` and `new` for what is on one side only. Where
    one side is next to nothing, whose noise would be the ratio, it is a bound of what is better,
    and else nothing; of a change too small to matter, that. A charge has none, nor has what is
    hidden or moved: none of these is better or worse. What is new says if it is hidden.
    """
    ratio, word = _shown_ratio(change), judge_change(change)
    if word == "charge" or (word in ("hidden", "moved") and ratio):
        return ""
    if word == "same" and change.low is None and not abs(ratio - 1) <= TOLERATED_MODELLED:
        return SMALL_CHANGE
    if ratio > HIGHEST_SHOWN:
        return f">{HIGHEST_SHOWN:.0f}x" if word == "better" else ""
    if ratio >= 1 / HIGHEST_SHOWN:
        exact = change.group == "step" and change.low is None and abs(ratio - 1) < NEAR_ONE
        return f"{ratio:.{3 if exact else 2}f}x"
    if ratio or word in ("gone", "new"):
        return "hidden" if word == "new" and change.waits else ""
    return "gone" if change.before else "new"


def _shown_ratio(change: FigureChange) -> float:
    return change.before / change.after if change.after else 0.0


def judge_change(change: FigureChange) -> str:
    """Return whether a change is better or worse, in a word; of a line, operator, kernel or range
    that one side alone has, only that it is new: what it took the place of tells what it brought.
    Where a typical step says the opposite of the mean ones, it cannot be told, and of what one side
    alone has, only that. What a model charges whatever runs is a charge, and what takes the host
    longer beside a busy device is hidden. A wait for what another line waited for has moved.
    """
    if change.fixed:
        return "charge"
    if change.outcome == "cannot tell" and not (change.before and change.after):
        return "gone" if change.before else "new"
    beside = change.waits and (change.before or change.group not in _REPLACED)
    if change.outcome == "differs" and (change.moved or beside):
        return "moved" if change.moved else "hidden"
    contradicted = {"better": change.before < change.after, "worse": change.before > change.after}
    if contradicted.get(change.outcome):
        return "cannot tell"
    if (change.outcome == "worse" or change.waits) and not change.before:
        return "new" if change.group in _REPLACED else change.outcome
    return change.outcome


_REPLACED = ("range", "line", "operator", "kernel")


def format_between(change: FigureChange) -> str:
    """Return the interval of a typical step's ratio; empty where it is not known, where a bound is
    too far off to tell anything, or where the ratio shown, that of the means, lies outside.
    """
    low, high = change.low, change.high
    if low is None or high is None or high > HIGHEST_SHOWN or low < 1 / HIGHEST_SHOWN:
        return ""
    inside = round(low, 2) <= round(_shown_ratio(change), 2) <= round(high, 2)
    return format_interval(low, high) if inside else ""


def describe_others(
    comparison: Comparison, group: str, most: int | None = TOP
) -> tuple[str, str] | None:
    """Return what a group's parts that have no row of their own come to, before and after: what the
    rows lack of the step or, of the causes of idle time, of that. None if the rows add up to it.
    """
    rows = shown_changes(comparison, group, most)
    idle = next((each for each in comparison.changes if each.what == "idle"), None)
    step = next(each for each in comparison.changes if _is_whole(each))
    whole = {"device": step, "gap": idle}.get(group)
    if not rows or whole is None:
        return None
    before = whole.before - sum(row.before for row in rows)
    after = whole.after - sum(row.after for row in rows)
    if before < ROUNDING * step.before and after < ROUNDING * step.after:
        return None
    return format_change_time(before), format_change_time(after)


def _is_whole(change: FigureChange) -> bool:
    return change.group == "step" and change.what in ("time", "image")


def format_change_time(ns: float) -> str:
    """Return a time before or after; a dash for what is not there at all."""
    if ns >= 1:
        return words.format_duration(ns)
    return "–"


def describe_memory(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return rows of memory before and after, each with what it is: of every device the peak, and
    the growth where there is any, or that it cannot be told and how far memory falls again; one row
    for devices with the same.
    """
    rows = []
    for change in comparison.memory:
        figures = {
            "at the peak": change.peak_bytes,
            "more each step in the long run": change.growth_bytes_per_step,
            "freed at once where memory falls most": change.fall_bytes,
        }
        growth = change.growth_bytes_per_step
        for figure, sizes in figures.items():
            what = figure
            # Memory that shrinks grows by nothing.
            before, after = (words.format_bytes(max(size, 0)) for size in sizes)
            if sizes is change.peak_bytes and all(sizes):
                before, after, _ = words.format_change(*sizes)
            if sizes is change.growth_bytes_per_step:
                before, after = (
                    "cannot tell" if hidden else text
                    for hidden, text in zip(change.hides_growth, (before, after), strict=True)
                )
            share = 0.0
            if sizes is change.fall_bytes:
                if sizes[0] < sizes[1] and before != after and growth[0] > max(growth[1], 0):
                    what += "; what is more was kept for good before"
                share = _LEAST_FALL if all(sizes) else _LEAST_NEW_FALL
                if any(change.hides_growth):
                    share = SMALL
            # What is small beside the peak that a leak makes is large once that is gone.
            much = max(sizes) > share * min(change.peak_bytes)
            if much and {before, after} - {"cannot tell", words.format_bytes(0)}:
                rows.append(((before, after, what, change.device < 0), change))
    several = len({change.rank for change in comparison.memory}) > 1
    shown = []
    for (before, after, what, on_host), alike in group_alike(rows)[:TOP]:
        where = "the host"
        if not on_host:
            where = words.name_several("device", [change.device for change in alike])
        if several:
            where = f"{words.name_several('rank', [change.rank for change in alike])}, {where}"
        shown.append((before, after, f"{what}, {where}"))
    return shown


def describe_limits(comparison: Comparison, groups: Iterable[str]) -> str:
    """State which parts the lists of these groups leave out; empty where there are no such
    lists.
    """
    if not any(shown_changes(comparison, group) for group in groups if group not in ALWAYS):
        return ""
    wholes = {
        "image": "the time of an image",
        "kernel": "all kernels",
        "recording": "the recording",
    }
    whole = wholes.get(comparison.unit, "the step")
    changes = [each for group in groups for each in shown_changes(comparison, group)]
    small = ""
    if any(format_ratio(change) == SMALL_CHANGE for change in changes):
        small = f" A change below {NEGLIGIBLE_SHARE:.1%} of {whole} is {SMALL_CHANGE}: the same."
    return (
        f"Parts are listed from {NOTABLE_SHARE:.1%} of {whole} on,"
        f" where they changed by more than {comparison.tolerated:.0%}, seem to have by"
        f" {_MUCH - 1:.0%}, or are called as much more or less often.{small}"
    )


def shown_changes(comparison: Comparison, group: str, most: int | None = TOP) -> list[FigureChange]:
    """Return the changes of one group that are worth a line: the `most` that moved most time (all
    for None), and of what is new at least one. An emulated kernel beside its operator would be the
    same line twice, and how many batches have which size is in the step's lines.
    """
    operators = {change.what for change in comparison.changes if change.group == "operator"}
    shown = []
    for change in comparison.changes:
        if change.calls and max(change.calls) >= _MUCH * min(change.calls):
            worth = True
        elif change.outcome == "cannot tell":
            worth = not 1 / _MUCH < change.ratio < _MUCH
        else:
            worth = change.outcome != "same" or bool(change.was)
        if f"aten::{change.what.removeprefix(EMULATED_KERNEL)}" in operators:
            worth = False
        if change.group == "kernel" and BATCH.search(change.what):
            worth = False
        if change.group == group and (worth or group in ALWAYS or change.fixed):
            shown.append(change)
    if most is None:
        return shown
    new = [change for change in shown[most:] if not change.before][:1]
    return [*shown[: most - len(new)], *new]
