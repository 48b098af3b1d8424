"""The result of a comparison of two versions of a program."""

from __future__ import annotations

from typing import Literal

import msgspec

from bottleneck_lab.analysis.comparing.comparability import Difference
from bottleneck_lab.analysis.statistics import Change
from bottleneck_lab.analysis.steps.figures import Group
from bottleneck_lab.trace.names import FIXED_PRICE

Unit = Literal["step", "image", "kernel", "recording"]
"""The unit whose times are compared; `kernel`: all kernels that ncu measured."""

TOLERATED_ALONE = 0.05
"""Two recordings of the same code differ by a few percent that their steps do not show: with one
capture per side, less than this is not a change.
"""

TOLERATED_REPEATED = 0.02


class FigureChange(msgspec.Struct, frozen=True):
    """One figure before and after, ns a step: means over all steps, so that a step's parts add up
    to it. `ratio` is how a typical sample before compares with one after (above 1: less now; 0 when
    it is gone), between `low` and `high`; a bound that the samples cannot bear is None. Of modelled
    times, and of what some steps lack, it is the ratio of the means. `was`: what a renamed kernel,
    the kernels that a fused one replaces, lines that were edited or moved, or copies of pageable
    memory that are of pinned memory now, were called. `waits`: the host takes longer here because
    the device is busy meanwhile, which is neither better nor worse. `moved`: it takes longer or
    shorter here only because a wait came from another place, or went to one.
    """

    what: str
    group: Group
    before: float
    after: float
    ratio: float
    outcome: Change
    low: float | None = None
    high: float | None = None
    was: tuple[str, ...] = ()
    waits: bool = False
    moved: bool = False
    calls: tuple[float, float] | None = None
    """How often a step calls this operator or kernel, before and after, where that differs."""

    @property
    def fixed(self) -> bool:
        """True for what the model of a host charges whatever runs: neither better nor worse."""
        return (self.group == "gap" and self.what == "fixed") or (
            self.group == "range" and bool(FIXED_PRICE.search(self.what))
        )


class MemoryChange(msgspec.Struct, frozen=True):
    """Memory of one device (-1: the host) before and after, in bytes: its peak, and by how much it
    grows from step to step. Of several captures a side, the medians. `fall_bytes` is the most by
    which it falls from step to step, where it is a sawtooth, else 0; `hides_growth` is true of a
    side where that leaves the growth open.
    """

    rank: int
    device: int
    peak_bytes: tuple[int, int]
    growth_bytes_per_step: tuple[int, int]
    fall_bytes: tuple[int, int] = (0, 0)
    hides_growth: tuple[bool, bool] = (False, False)


class LongStep(msgspec.Struct, frozen=True):
    """The longest step of one side, where a typical one is much shorter: its number, from 1, and
    both times, ns.
    """

    when: Literal["before", "after"]
    number: int
    ns: float
    typical_ns: float


class Comparison(msgspec.Struct, frozen=True):
    """`speedup` is the ratio of the step times, before / after; `changes` are ordered by how much
    time they moved.

    `findings_gone` and `findings_new`: the title of each finding that only one side has, by its id.
    `pairs`: how many pairs of captures were compared; with one, `steps` are the samples. `few`: too
    few for an interval at the level asked for. `repeats`: all times of host and devices are
    modelled, and the same in every run, so that even a few steps can be judged by their means.

    `reasons`: what makes a capture unreliable, after `before: ` or `after: `; then nothing can be
    told of anything. `differences`: what differs beside the code; while there is any, nothing is
    called the same, and under other settings nothing faster or slower. `unit`: what `speedup`
    compares the time of: a step, an image that a server answered, one's own kernels in reports of
    ncu, or without any of these the whole recording. `memory` is of
    devices whose allocations every capture holds.
    """

    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    outcome: Change
    pairs: int
    steps: tuple[int, int]
    few: bool
    emulated: bool
    reliable: bool
    reasons: list[str]
    changes: list[FigureChange]
    findings_gone: dict[str, str]
    findings_new: dict[str, str]
    control: Control | None = None
    differences: list[Difference] = []
    unit: Unit = "step"
    images_per_s: tuple[float, float] | None = None
    memory: list[MemoryChange] = []
    repeats: bool = False
    mean_speedup: float | None = None
    """The ratio of the mean times, as `changes` have them: near what a check measures, which times
    whole runs.
    """
    waits_per_step: tuple[float, float] | None = None
    """How often the host of a rank waits for the device in a step, before and after; None without
    steps.
    """
    kernels_per_step: tuple[float, float] | None = None
    """How many kernels all devices get in a step, before and after; None without steps."""
    ranks: int = 1
    """How many ranks the largest of the captures holds, which per-step figures are the mean of."""
    of_memory: bool = False
    """Both are of a lab about memory, which comes first there."""
    check_ceiling: float | None = None
    """The largest gain that a check of the lab can measure, where it has such a limit."""
    cpu_only: bool = False
    """No capture has an accelerator: the CPU is the device."""
    needed: tuple[int, int] = (0, 0)
    """How many samples of each side an interval of the whole takes: steps (or images) of one
    capture a side, and captures.
    """
    library_ns: tuple[float, float] = (0.0, 0.0)
    """The library's kernels in reports of ncu, before and after, which no other figure counts."""
    load_known: bool = True
    """It was recorded how busy the machine was, or times do not depend on it."""
    exact_lines: bool = True
    """Lines of Python are compared; else functions, as torch.profiler alone records them."""
    host_only: bool = False
    """The CPU is the device on one side alone: what the host did is compared, and no devices."""
    measures: bool = False
    """The program measures others: how long it takes is neither good nor bad."""
    calibrated_ns: tuple[float, float] | None = None
    """Time of a full batch, before and after, on a device that is set by the machine's speed anew
    for each capture (of several, the mean): all times are scaled to that of the first capture. None
    for other devices.
    """
    tolerated: float = TOLERATED_ALONE
    """The change (a share) that is nobody's concern: an interval has to lie beyond it."""
    long_steps: list[LongStep] = []
    """Of one capture a side, the steps that move the mean away from a typical step."""
    same_code: bool = False
    """All captures are of the same code of a lab, so that no difference is its doing."""
    batches_per_step: tuple[float, float] | None = None
    """How many full batches such a device worked on in a step, before and after: where these
    differ, it began with work from before the recording, and nothing is said of its own times.
    """

    startup_ns: tuple[float, float] = (0.0, 0.0)
    """The start-up that the first step holds, before and after, which no figure counts; of several
    captures, the mean.
    """
    flop_per_call: FlopPerCall | None = None
    """The operator with most work of those whose calls do other work now, where both sides have
    shapes.
    """


class FlopPerCall(msgspec.Struct, frozen=True):
    """Work of an average call of an operator, before and after, by its shapes. `shapes` are those
    of the inputs that most work goes into of those that only one side has; "" without such.
    """

    operator: str
    before: float
    after: float
    shapes: tuple[str, str] = ("", "")


class Control(msgspec.Struct, frozen=True):
    """The version before, recorded a second time in the same turns, against itself: whatever comes
    out as changed there is the machine's doing.

    `outcome` and `ratio` are the whole step's; `moved` names what came out as better or worse, of
    which the comparison then says nothing.
    """

    outcome: Change
    ratio: float
    moved: list[tuple[Group, str]]


def neutral(outcome: Change) -> Change:
    """Return the outcome without saying which of the two is better."""
    return "differs" if outcome in ("better", "worse") else outcome


def without_judgement(comparison: Comparison) -> Comparison:
    """Return the comparison of two versions of a program that measures others: how long that takes
    is its own choice, and other calls are no other program.
    """
    left = [each for each in comparison.differences if each.kind != "program"]
    return msgspec.structs.replace(
        comparison,
        outcome=neutral(comparison.outcome),
        changes=[
            msgspec.structs.replace(
                each,
                # Withheld because of the program, which is no difference here.
                outcome="same"
                if comparison.repeats and not left and each.before == each.after
                else neutral(each.outcome),
            )
            for each in comparison.changes
        ],
        differences=left,
        findings_gone={},
        findings_new={},
        measures=True,
    )
