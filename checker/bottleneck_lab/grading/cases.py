"""A case of the library: what is asked of it, whether the answers are right, and what a learner's
past answers show.

The truth is modelled: the program ran again on the virtual GPU with each cause switched off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.causes import IDLE_CAUSES
from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.grading.causes import CAUSES, MEMORY_GROWTH, SIGNS_OF
from bottleneck_lab.grading.verdict import CriterionResult

"""Causes that can hold a case up: the choices of every case."""

_IDLE = ("idle_python_share", "idle_files_share", "idle_host_share", "idle_sleep_share")
FIGURES: dict[str, tuple[str, ...]] = {
    "input-bound": ("idle_input_share",),
    "launch-bound": ("idle_launch_share",),
    "synchronisation-bound": ("idle_synchronisation_share",),
    "allocation-bound": ("idle_allocation_share",),
    "copy-bound": ("exposed_copy_share", "idle_copy_share"),
    "host-bound": (*_IDLE, "idle_compilation_share", "idle_between_steps_share"),
    "communication-bound": ("exposed_communication_share",),
    "straggler": ("exposed_communication_share",),
    "shared-device": ("interrupted_share", "idle_queued_share", "idle_unrecorded_share"),
    MEMORY_GROWTH: ("memory_growth_share",),
}
"""The figures of a capture that show a cause, added up. Of a program without one it is
`busy_share`; of other causes, which keep the device busy, what the fix saves.
"""

_PART_NAMES = {
    **{f"idle_{each.id}_share": f"idle: {each.label}" for each in IDLE_CAUSES},
    "exposed_copy_share": "copying only",
    "exposed_communication_share": "communicating only",
    "interrupted_share": "kernels that take longer",
}
LEAST_PART = 0.0005
"""A part of the time below this share (0-1) would be printed as 0.0%."""

EVIDENCE_WITHIN = 0.04
"""By how much the evidence may be off, in parts of the time. The report prints of idle time what
the host did, not why: what its tables say of it is off by at most 3.7 points in every case.
"""
GAIN_WITHIN = 1.2
ROUNDED = 1.02
"""Up to this factor, a gain is the one that follows from the learner's own share."""
LINES_NEAR = 2
NO_LINE = 1
"""The number that stands for `none`: the first line of a program is never what has to change."""
HABIT = 3
"""So many cases with the same mistake are a habit."""
_WITHIN = f" Within {100 * EVIDENCE_WITHIN:.0f} points counts."
_IDLE_MEASURE = "The time in which the device is idle because of it."
_COMMUNICATION_MEASURE = "The time in which a device only communicates, on average over them."
_BUSY_MEASURE = (
    "The time that the fix would save: all of the kernels that it makes needless, and part of those"
    " that it makes faster."
)
_MEASURES = {
    "copy-bound": (
        "The time in which the device only copies, or is idle because of a copy; also of copies"
        " that the fix leaves."
    ),
    "communication-bound": _COMMUNICATION_MEASURE,
    "straggler": _COMMUNICATION_MEASURE,
    "shared-device": (
        "The time in which the device works for others, and that by which its own kernels take"
        " longer."
    ),
    "memory-bound": _BUSY_MEASURE,
    "compute-bound": _BUSY_MEASURE,
    "healthy": "The time in which the device is busy.",
    MEMORY_GROWTH: "What a step adds, times the recorded steps less one (the last has left nothing"
    " behind at the peak), over the peak.",
}
_RESTS = "Not judged, because the cause is wrong."

QUESTIONS = [
    QuestionSpec(
        "cause",
        "choice",
        "What slows this program down most, or fills its memory?",
        choices=list(CAUSES),
    ),
    QuestionSpec(
        "evidence",
        "share",
        "What share of the recorded time goes to it?",
        measure=(
            "Idle, copying or communicating only, or slowed by others: the time that goes to it."
            " Memory-bound or compute-bound: the time that the fix would save. Healthy: the time in"
            f" which the device is busy. {MEMORY_GROWTH.capitalize()}: the part of the peak that"
            f" the steps added.{_WITHIN}"
        ),
        follows="cause",
        rules={cause: _MEASURES.get(cause, _IDLE_MEASURE) + _WITHIN for cause in CAUSES},
    ),
    QuestionSpec(
        "line",
        "number",
        "Which line of program.py has to change?",
        choices=["none"],
        measure=f"Within {LINES_NEAR} lines counts.",
    ),
    QuestionSpec(
        "gain",
        "ratio",
        "How many times as fast will the fix make it? If the cause is"
        f" {MEMORY_GROWTH}: by what factor will the peak drop?",
        measure=(
            "1 if nothing is worth fixing. Else Amdahl's law, 1 / (1 - share), is a first estimate,"
            " with the share of the wall time that the line's work takes."
            f" Within a factor of {GAIN_WITHIN:g} counts."
        ),
    ),
]


class Switch(msgspec.Struct, frozen=True):
    """One cause or decoy of a case, and how many times as fast the program was without it; where
    memory is the case's cause, how many times less of it the program needed.

    `edits` turn the program into the one without it; `lines` are the ones that it is about. `why`
    says of a decoy why it brings nothing.
    """

    name: str
    cause: str
    fix: str
    gain: float
    lines: list[int] = []
    edits: list[tuple[str, str]] = []
    why: str = ""


class Case(msgspec.Struct, frozen=True):
    """A case of the library, as its manifest lists it. `switches` are its causes, the costliest
    first; `decoys` look like causes and are none.
    """

    name: str
    title: str
    level: int
    story: str
    explanation: str
    cause: str
    ms: float
    sha256: dict[str, str]
    switches: list[Switch] = []
    decoys: list[Switch] = []
    entire: float = 0.0
    """How many times as fast it is where the top cause costs nothing at all; 0 if the fix leaves
    nothing of it.
    """

    @property
    def gain(self) -> float:
        """How many times as fast the program was without its top cause."""
        return self.switches[0].gain if self.switches else 1.0

    def evidence(self, figures: Mapping[str, float]) -> float:
        """Return the share of the time (0–1) that goes to the cause in a capture with these
        figures: where it keeps the device busy, what the fix saves.
        """
        if self.cause in FIGURES or not self.switches:
            return evidence_of(self.cause, figures)
        return 1 - 1 / self.gain

    def gains(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return the gains that count in a capture with these figures, each with its origin: that
        of the fix, that of the cause gone altogether where the fix leaves a part of it, and what
        Amdahl's law gives for the share that shows the cause.
        """
        effect = f"with the fix it ran {self.gain:.2f}x as fast"
        if self.cause == MEMORY_GROWTH:
            effect = f"with the cause its peak of memory was {self.gain:.2f}x as high as without it"
        elif not self.lines:
            effect = f"without the cause it ran {self.gain:.2f}x as fast"
        gains = {effect: self.gain}
        if self.entire:
            gains[f"with the cause gone altogether it ran {self.entire:.2f}x as fast"] = self.entire
        if by_share := gain_by_share(self.cause, figures):
            gains[_law(by_share, evidence_of(self.cause, figures))] = by_share
        return gains

    def gain_near(self, predicted: float, figures: Mapping[str, float]) -> float:
        """Return the one of `gains` that is nearest to a prediction, which is graded by it."""
        return min(self.gains(figures).values(), key=lambda gain: _off(predicted, gain))

    @property
    def lines(self) -> list[int]:
        """The program's lines that the top cause is about, those that the fix changes first; none
        if no line has to change.
        """
        return self.switches[0].lines if self.switches else []

    @property
    def traces(self) -> list[str]:
        """The names of the capture's files, one a rank."""
        return sorted(name for name in self.sha256 if name.endswith(".json.gz"))


class PastCase(msgspec.Struct, frozen=True):
    """A case that was answered: what the learner called it, and what it was."""

    called: str
    cause: str
    predicted: float
    measured: float
    late: bool = False


def _off(predicted: float, measured: float) -> float:
    """Return by what factor a prediction is off, 1 or more."""
    return max(predicted / measured, measured / predicted)


def evidence_of(cause: str, figures: Mapping[str, float]) -> float:
    """Return the share of the time (0–1) that shows a cause in a capture with these figures."""
    return sum(figures.get(name, 0.0) for name in FIGURES.get(cause, ("busy_share",)))


def _law(gain: float, share: float) -> str:
    """Return what Amdahl's law gives for a share (0–1), in words."""
    return f"{_LAW} gives {gain:.2f}x for the share of {share:.1%}"


_LAW = "Amdahl's law"


def gain_by_share(cause: str, figures: Mapping[str, float]) -> float:
    """Return what Amdahl's law gives for the share that shows a cause in a capture with these
    figures; 0 for a cause that no share of the time or memory goes with.
    """
    # A straggler's share is the average of all ranks. Where its extra work goes, the run is faster
    # by what the rank that waits longest waits.
    if cause not in FIGURES or cause == "straggler":
        return 0.0
    return ceiling(min(evidence_of(cause, figures), 1.0))


def describe_parts(cause: str, figures: Mapping[str, float]) -> str:
    """Return how the share that shows a cause is made up, in brackets; empty of a single part."""
    parts = [
        f"{_PART_NAMES.get(name, name)} {figures[name]:.1%}"
        for name in FIGURES.get(cause, ())
        if figures.get(name, 0.0) >= LEAST_PART
    ]
    return f" ({' + '.join(parts)})" if len(parts) > 1 else ""


def grade_case(
    case: Case, answers: Mapping[str, Any], figures: Mapping[str, float]
) -> list[CriterionResult]:
    """Return one result for each of `QUESTIONS`; `holds` is None of evidence and gain where the
    cause they rest on is wrong.
    """
    called = str(answers["cause"])
    share, line, gain = (float(answers[key]) for key in ("evidence", "line", "gain"))
    if called != case.cause:
        sentences: dict[str, tuple[bool | None, str]] = {
            "cause": (
                False,
                f"You named {called}; it is {case.cause}.{_contrary(called, case.cause, figures)}",
            ),
            "evidence": (None, _RESTS),
            "line": _grade_line(case, int(line)),
            "gain": (None, _RESTS),
        }
    else:
        shown = case.evidence(figures)
        origin = "the capture shows"
        if called not in FIGURES and case.switches:
            origin = "the fix saves"
        # Not to be off by the last bit of a float.
        read = abs(share - shown) <= EVIDENCE_WITHIN + 1e-9
        sentences = {
            "cause": (True, f"It is {case.cause}."),
            "evidence": (
                read,
                f"You read {share:.1%}; {origin} {shown:.1%}"
                f"{describe_parts(called, figures)}." + ("" if read else _WITHIN),
            ),
            "line": _grade_line(case, int(line)),
            "gain": _grade_gain(case, gain, figures, share if read else 0.0),
        }
    return [
        CriterionResult(id=name, kind="diagnosis", holds=holds, sentence=sentence)
        for name, (holds, sentence) in sentences.items()
    ]


def _grade_line(case: Case, line: int) -> tuple[bool, str]:
    """Return whether a line counts, and the sentence about it."""
    called = "You answered none" if line == NO_LINE else f"You named line {line}"
    if not case.lines:
        if line == NO_LINE:
            return True, "No line of the program has to change."
        return False, f"{called}; no line of the program has to change."
    # The manifest lists the lines that the fix changes first.
    changed = sum(old.rstrip("\n").count("\n") + 1 for old, _ in case.switches[0].edits)
    fix, others = case.lines[:changed], case.lines[changed:]
    parts = [f"the fix changes {_name_lines(fix)}"] if fix else []
    if others:
        parts.append(f"the cause is about {_name_lines(others)}{' as well' if fix else ''}")
    near = min(abs(line - each) for each in case.lines)
    return near <= LINES_NEAR, f"{called}; {', and '.join(parts)}."


def _name_lines(numbers: Sequence[int]) -> str:
    *others, last = map(str, sorted(numbers))
    return f"lines {', '.join(others)} and {last}" if others else f"line {last}"


def _contrary(called: str, cause: str, figures: Mapping[str, float]) -> str:
    """Return what in a capture speaks for the cause and against the one that was named, as a
    sentence; empty where nothing does.
    """
    less, more = evidence_of(called, figures), evidence_of(cause, figures)
    if less < more:
        other = f"{less:.1%}" if less >= LEAST_PART else "nothing"
        return f" Of the capture, {more:.1%} goes to that, and {other} to {called}."
    return f" The capture shows {SIGNS_OF[cause]}." if cause in SIGNS_OF else ""


def _grade_gain(
    case: Case, predicted: float, figures: Mapping[str, float], share: float
) -> tuple[bool, str]:
    """Return whether a predicted gain counts, and the sentence about it: by which figure it does,
    or all that would have. `share` (0–1) is the learner's for the cause, if it counts: what
    Amdahl's law gives for that counts as well.
    """
    gains = case.gains(figures)
    origin, gain = min(gains.items(), key=lambda each: _off(predicted, each[1]))
    ranges = {each: (max(each / GAIN_WITHIN, 1.0), each * GAIN_WITHIN) for each in gains.values()}
    own = ceiling(min(share, 1.0)) if share and gain_by_share(case.cause, figures) else 0.0
    if own:
        ranges.setdefault(own, (max(own / ROUNDED, 1.0), own * ROUNDED))
        if _off(predicted, own) <= ROUNDED and _off(predicted, gain) > GAIN_WITHIN:
            origin, gain = _law(own, share), own
    low, high = ranges[gain]
    holds = low <= predicted <= high
    counting = "" if holds else f" {_name_ranges(list(ranges.values()))}"
    if case.cause != MEMORY_GROWTH and origin.startswith(_LAW) and case.gain > GAIN_WITHIN * gain:
        origin += f". The fix ran {case.gain:.2f}x as fast: it also saves other time"
    return holds, f"You predicted {predicted:.2f}x; {origin}.{counting}"


def _name_ranges(ranges: list[tuple[float, float]]) -> str:
    """Return which gains count, as a sentence; ranges that overlap are one."""
    merged: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    *others, last = (f"{low:.2f}x to {high:.2f}x" for low, high in merged)
    return f"{', '.join(others)} and {last} count." if others else f"{last} counts."


def streak(past: Sequence[PastCase]) -> int:
    """Return how many of the latest cases in a row were named rightly."""
    count = 0
    for each in reversed(past):
        if each.called != each.cause:
            break
        count += 1
    return count


def habits(past: Sequence[PastCase]) -> list[str]:
    """Return sentences about mistakes that come back: causes named too often or overlooked, and
    gains predicted too high or too low.
    """
    sentences = []
    called, were = Counter(each.called for each in past), Counter(each.cause for each in past)
    wrong = [each for each in past if each.called != each.cause]
    falsely, missed = Counter(each.called for each in wrong), Counter(each.cause for each in wrong)
    for cause, times in falsely.most_common():
        if called[cause] >= HABIT and 2 * times >= called[cause]:
            sentences.append(
                f"You call cases {cause} too often: {times} of {called[cause]} were something else."
            )
    for cause, times in missed.most_common():
        if were[cause] >= HABIT and 2 * times >= were[cause]:
            sentences.append(f"You overlook {cause}: {times} of {were[cause]} were missed.")
    named = [each for each in past if each.called == each.cause]
    if len(named) >= HABIT:
        bias = math.exp(median(math.log(each.predicted / each.measured) for each in named))
        off = max(bias, 1 / bias)
        if off > GAIN_WITHIN:
            sentences.append(
                f"Where you name the cause, you predict gains too {'high' if bias > 1 else 'low'}"
                f" by a factor of {off:.2f}."
            )
    return sentences
