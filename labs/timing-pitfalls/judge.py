"""Judge this lab: hidden functions of known cost, and what an honest benchmark reports
for each.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bottleneck_lab.grading.criteria import format_beside, format_figure
from bottleneck_lab.measure.kinds.benchmark.bench import busy, is_restless, require_quiet
from bottleneck_lab.measure.kinds.benchmark.trials import Counted
from bottleneck_lab.wording import counted

OF_MEDIAN = 1.18
"""The standard error of the median of n calls, times the root of n, over the scale of the calls:
half the inverse of the density of `Device._symmetric` at its middle.
"""
WIDTH = 3.92
"""The width of a 95% interval around a normal estimate, in standard errors of the estimate."""
CALLS, TIME = 40, 0.5
"""An honest interval is of that many calls of a steady function; of a varying one, of those that
fit into this share of the machine time.
"""
NARROW = 0.25
"""An interval below this share of what all calls made can tell is a claim, not a measurement: a
slip of arithmetic empties some, and steady functions forgive it. Of right ones, those between two
ticks of the device's clock are as narrow, a quarter of a check's at most: more than half are wrong.
"""
NEARLY_ALL = 0.95
"""A benchmark that uses this share of its time may run out of it in another check."""
SHOWN = 3
"""So many of the intervals that miss are described."""


@cache
def beside(name: str) -> ModuleType:
    """A file of this folder that only the verifier loads."""
    spec = importlib.util.spec_from_file_location(
        f"timing_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def emulator() -> ModuleType:
    """The emulated functions and devices."""
    return beside("emulator")


@cache
def real_device() -> Any:
    """A device that does real work."""
    return beside("hardware").device_class(emulator())


def scale_of(settings: dict[str, Any]) -> Any:
    """How long things take on the device of these settings."""
    return (
        beside("hardware").real_scale(emulator(), settings["bench"].device)
        if "bench" in settings
        else emulator().GPU
    )


def device_for(
    function: Any, rng: np.random.Generator, budget_s: float, settings: dict[str, Any]
) -> Any:
    """A fresh device with that function."""
    if "bench" in settings:
        return real_device()(function, rng, budget_s, settings["bench"])
    return emulator().Device(function, rng, budget_s)


@dataclass
class Trial:
    """One benchmark of one function, on a fresh machine. `answer` is what the benchmark returned,
    empty until then.
    """

    name: str
    function: Any
    device: Any
    noisy: bool = False
    benchmark: str = "benchmark"
    answer: tuple[float, ...] = ()
    row: list[Trial] = field(default_factory=list)
    """On a practice function: what was measured on it so far, this trial last."""

    @property
    def arguments(self) -> list[str]:
        """The arguments of the harness."""
        return [self.benchmark]

    def serve(self, values: list[Any]) -> list[Any]:
        """Answers one message of the harness: an array of commands, N×3. Raises ValueError for
        anything else.
        """
        if (
            len(values) != 1
            or not isinstance(values[0], np.ndarray)
            or values[0].ndim != 2
            or values[0].shape[1] != 3
        ):
            raise ValueError("expected one array of commands")
        status, answers = self.device.serve(values[0].astype(np.int64).tolist())
        return [status, np.array(answers, dtype=float)]

    def finish(self, values: list[Any]) -> None:
        """Takes what the benchmark returned."""
        self.answer = tuple(
            float(value) if isinstance(value, int | float) else math.nan for value in values
        )

    @property
    def late(self) -> bool:
        """True if the benchmark has used the machine for longer than it may."""
        return bool(self.device.used_s > self.device.budget_s)

    @property
    def share_used(self) -> float:
        """The machine time that it used, over what it was given."""
        return float(self.device.used_s / self.device.budget_s)

    @property
    def cost_s(self) -> float:
        return float(self.function.cost_s)

    @property
    def error(self) -> float:
        """How far the estimate is from the true cost, as a share of that cost."""
        return abs(self.answer[0] / self.cost_s - 1)

    @property
    def width_s(self) -> float:
        """The width of the interval."""
        return self.answer[2] - self.answer[1]

    def missed_by(self, nearly: float) -> float:
        """How far the true cost is outside the interval, less `nearly`: shares of the cost."""
        _, low, high = (figure / self.cost_s for figure in self.answer)
        return max(0.0, low - 1 - nearly, 1 - nearly - high)

    @property
    def is_narrow(self) -> bool:
        """True if all calls that were made can hardly tell the cost so precisely."""
        return bool(self.width_s < NARROW * self._width_of(max(self.device.runs, 1)))

    @property
    def relative_width(self) -> float:
        """The width of the interval over an honest one's."""
        return self.width_s / self.honest_s

    @property
    def honest_s(self) -> float:
        """The width of a 95% interval around the median of `honest_calls`."""
        return self._width_of(self.honest_calls)

    def _width_of(self, calls: float) -> float:
        spread_s = math.hypot(self.function.jitter * self.cost_s, self.device.scale.grain_s)
        return WIDTH * OF_MEDIAN * spread_s / math.sqrt(calls)

    @property
    def honest_calls(self) -> float:
        """As many calls as a benchmark can be expected to measure."""
        warm_s = self.function.compile_s + self.cost_s * sum(self.function.tuning)
        calls = TIME * (self.device.budget_s - warm_s) / self.cost_s
        return float(calls if self.noisy else min(calls, CALLS))


def trials(rng: np.random.Generator, settings: dict[str, Any]) -> Iterator[Trial]:
    """The hidden functions in random order. Ends early at the first unusable answer, and on a
    machine that disturbs too many.

    `nearly` of the settings: an interval that misses the cost by up to this share still counts, for
    the launch and wait that remain in a long batch.
    """
    done: list[Trial] = []
    kinds = [False] * settings["quiet"] + [True] * settings["noisy"]
    for number, noisy in enumerate(rng.permutation(kinds).tolist()):
        function = emulator().draw(rng, noisy=noisy, scale=scale_of(settings))
        device = device_for(function, rng, float(rng.uniform(*settings["budget_s"])), settings)
        trial = Trial(f"function {number + 1} of {len(kinds)}", function, device, noisy)
        yield trial
        done.append(trial)
        if not usable(trial) or is_restless([one.device for one in done]):
            return


BENCHMARKS = ("notebook", "nightly", "paper", "benchmark")
PRACTICE = {
    "short": (0.05, False),
    "long": (0.05, False),
    "other": (0.06, True),
    "ragged": (0.5, False),
    "uneven": (0.4, False),
}
"""The functions of `lab run`: jitter, and whether unused results are skipped. Of the varying ones,
`ragged` has time for few calls and `uneven` for many.
"""
TUNING = (3.0, 2.8, 2.9, 2.7, 2.8, 2.6, 2.7, 2.5, 2.6, 2.4)
"""By how much their first calls are slower. Of the longest there is time for few calls: ten slow
ones show there.
"""


def practice(settings: dict[str, Any]) -> Iterator[Trial]:
    """Functions, the same every time, measured by each colleague and by the learner. Their
    inputs are as small as those of any hidden function: twenty of them are still in the cache.
    """
    scale = scale_of(settings)
    launch_s = sum(scale.launch_s) / 2
    for seed, ((name, (jitter, lazy)), cost_s) in enumerate(
        zip(PRACTICE.items(), scale.practice_s, strict=True)
    ):
        function = emulator().Function(
            cost_s, jitter, launch_s, 0.04, TUNING, 2 << 20, 0.6, 0.12, lazy
        )
        row: list[Trial] = []
        for benchmark in BENCHMARKS:
            rng, budget_s = np.random.default_rng(seed), settings["budget_s"][-1]
            device = device_for(function, rng, budget_s, settings)
            trial = Trial(name, function, device, jitter > 0.1, benchmark, row=row)
            row.append(trial)
            yield trial


def profiled(settings: dict[str, Any]) -> Trial:
    """Return what `lab profile` captures: `benchmark` on the first practice function."""
    trial = next(trial for trial in practice(settings) if trial.benchmark == "benchmark")
    trial.device.rows = []
    return trial


def rows(trial: Trial) -> list[tuple[str, bool, float, float]]:
    """Return what host and device did: name, whether it was the host, begin and end in seconds.
    Calls of the function say which one it is, and who times it.
    """
    names = {"function": f"function '{trial.name}', timed by {trial.benchmark}()"}
    return [
        (names.get(name, name.removeprefix("host ")), name.startswith("host "), begin, end)
        for name, begin, end in trial.device.rows
    ]


def practice_line(trial: Trial) -> str:
    """Return the row of a practice function, once the learner's own benchmark has measured it."""
    if trial.benchmark != BENCHMARKS[-1]:
        return ""
    if trial.late:
        return _describe_late(trial, trial.benchmark)
    figures = [f"{1e6 * one.answer[0]:,.1f}" if one.answer else "-" for one in trial.row]
    cells = "".join(f"{figure:>12}" for figure in [f"{1e6 * trial.cost_s:,.1f}", *figures])
    interval = _interval(trial) if len(trial.answer) == 3 else ""
    # Ends on the same tick of the clock differ by what floats round.
    width = format_figure(round(trial.relative_width, 9), "x") if usable(trial) else ""
    line = f"{trial.name:8}{cells}   {interval:22}{width:>8}"
    return f"{HEADING}\n{line}" if trial.name == next(iter(PRACTICE)) else line


HEADING = (
    f"{'µs':8}{'true cost':>12}"
    + "".join(f"{benchmark:>12}" for benchmark in BENCHMARKS)
    + f"   {'its interval':22}{'width':>8}"
)


def practice_summary(done: list[Trial], settings: dict[str, Any]) -> str:
    """Return how many of the practice functions the learner's `benchmark` gets right."""
    own = [trial for trial in done if trial.benchmark == BENCHMARKS[-1]]
    good = [trial for trial in own if usable(trial)]
    quiet = [trial for trial in own if not trial.noisy]
    close = sum(usable(trial) and trial.error <= settings["within"] for trial in quiet)
    kinds = [[trial for trial in good if trial.noisy is noisy] for noisy in (False, True)]
    contained = len(good) - sum(len(_not_contained(kind, settings["nearly"])) for kind in kinds)
    widest = max((trial.relative_width for trial in good), default=math.nan)
    odd = [f" {_odd(trial)}" for trial in own if trial.answer and not usable(trial)]
    return (
        f"benchmark: {close} of {len(quiet)} estimates of steady functions are within"
        f" {format_figure(settings['within'], 'share')}; {contained} of {len(own)} intervals"
        " contain the true cost"
        + (f"; the widest is {format_figure(widest, 'x')} an honest one's" if good else "")
        + f".{''.join(odd)}"
    )


def usable(trial: Trial) -> bool:
    """Return True if the answer is an estimate inside its interval."""
    return not _flaw(trial.answer)


def _flaw(answer: Sequence[float]) -> str:
    """Return why figures are no estimate inside its interval; empty if they are one."""
    if len(answer) != 3:
        return f"returned {counted(len(answer), 'figure')} where three are wanted"
    estimate, low, high = answer
    if not all(map(math.isfinite, answer)):
        return f"returned {estimate:.6g}, {low:.6g} and {high:.6g}, which are not all numbers"
    if estimate <= 0:
        return f"returned the estimate {estimate:.6g}, where a time is above 0"
    if low > estimate:
        return f"returned a lower end that is {low - estimate:.3g} s above its estimate"
    if high < estimate:
        return f"returned an upper end that is {estimate - high:.3g} s below its estimate"
    return ""


def judge(
    done: list[Trial], settings: dict[str, Any]
) -> dict[str, tuple[str | None, int, float | None]]:
    """For each criterion: what is wrong (None if nothing), how many functions were judged, and its
    figure.
    """
    done = _undisturbed(done)
    odd = next((trial for trial in done if trial.answer and not usable(trial)), None)
    if odd is not None:
        return {"cost": (_odd(odd), len(done), None)}
    late = next((trial for trial in done if trial.late), None)
    judged = [trial for trial in done if trial.answer and trial is not late]
    quiet, noisy = ([trial for trial in judged if trial.noisy is kind] for kind in (False, True))
    parts = {
        "cost": _wrong_costs(quiet, settings),
        "coverage": _missed(quiet, noisy, settings),
        "width": _too_wide(quiet, noisy, settings),
    }
    problem = None
    if late:
        problem = f"{_describe_late(late)}."
        # The trials ended early: too few functions for another criterion to hold, and unless half
        # of them are done, for one that counts many to be missed.
        many = len(judged) >= (settings["quiet"] + settings["noisy"]) / 2
        short = f" Counted up to {late.name}, with which the check ended."
        parts = {
            id_: (part[0] + short, *part[1:])
            for id_, part in parts.items()
            if part[0] and (many or id_ == "cost")
        }
    used = max((trial.share_used for trial in done), default=0.0)
    return {**parts, "budget": (problem, len(done), used if late else _used(used))}


def _used(share: float) -> float:
    """Return the largest share of its time that a benchmark used; with words if hardly any was
    left, since a pass looks safe.
    """
    if share < NEARLY_ALL:
        return share
    nearly = float.__new__(Counted, share)
    figure = format_figure(share, "share", 1.0)
    nearly.words = f"{figure} (little is left: another check may run out of time)"
    return nearly


def _undisturbed(done: list[Trial]) -> list[Trial]:
    """The functions that can be judged. Raises BusyMachineError where a real machine disturbed too
    many.
    """
    late = next((trial for trial in done if trial.late and trial.device.disturbed), None)
    if late is not None:
        raise busy(
            f"{late.name} ran out of time while this machine disturbed it: {late.device.disturbed}."
        )
    require_quiet([trial.device for trial in done if not _is_plain(trial)], "functions")
    return [trial for trial in done if _is_plain(trial) or not trial.device.disturbed]


def _is_plain(trial: Trial) -> bool:
    """Return True if the benchmark is wrong whatever the machine does."""
    return trial.late or (bool(trial.answer) and not usable(trial))


def _describe_late(trial: Trial, benchmark: str = "") -> str:
    """Say how long a benchmark used the machine, and for how long it might."""
    used_s, had_s = format_beside(trial.device.used_s, trial.device.budget_s)
    name = f"{trial.name:8}{benchmark}" if benchmark else trial.name
    return f"{name} used the machine for {used_s} s, and had {had_s} s"


def _odd(trial: Trial) -> str:
    """Return what is wrong with the answer itself."""
    if len(trial.answer) == 3 and not any(trial.answer):
        return (
            f"`benchmark` reports that {trial.name} takes no time at all; it costs"
            f" {_microseconds(trial.cost_s)}."
        )
    return (
        f"{trial.name}: `benchmark` {_flaw(trial.answer)}; expected an estimate and the two ends of"
        " an interval around it."
    )


def _wrong_costs(
    quiet: list[Trial], settings: dict[str, Any]
) -> tuple[str | None, int, float | None]:
    wrong = [trial for trial in quiet if trial.error > settings["within"]]
    worst = max(
        quiet, key=lambda trial: abs(math.log(trial.answer[0] / trial.cost_s)), default=None
    )
    if worst is None or not wrong:
        return None, len(quiet), worst and worst.error
    side = "low" if worst.answer[0] < worst.cost_s else "high"
    problem = (
        f"{len(wrong)} of {len(quiet)} {'is' if len(wrong) == 1 else 'are'} further off. The worst:"
        f" {_microseconds(worst.answer[0])} for a function that costs"
        f" {_microseconds(worst.cost_s)}: {_times(worst, settings['within'])} too {side}."
    )
    return problem, len(quiet), worst.error


def _times(trial: Trial, within: float) -> str:
    ratio = trial.answer[0] / trial.cost_s
    if not 0.5 < ratio < 2:
        return f"{max(ratio, 1 / ratio):.1f}x"
    return format_figure(abs(ratio - 1), "share", within)


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} µs"


def _missed(
    quiet: list[Trial], noisy: list[Trial], settings: dict[str, Any]
) -> tuple[str | None, int, float | None]:
    """Judge the kind of functions whose intervals contain the cost less often."""
    shares = []
    for name, kind in (("varying", noisy), ("steady", quiet)):
        if kind:
            wrong = _not_contained(kind, settings["nearly"])
            shares.append((1 - len(wrong) / len(kind), name, kind, wrong))
    if not shares:
        return None, 0, None
    held, name, kind, wrong = min(shares, key=lambda share: share[0])
    count = len(quiet) + len(noisy)
    share = Counted(len(kind) - len(wrong), len(kind), against=settings["contain"])
    # `share` itself may miss the limit by what floats round.
    if held >= settings["contain"]:
        return None, count, share
    shown = "; ".join(_describe_miss(trial, settings["nearly"]) for trial in wrong[:SHOWN])
    problem = f"{len(wrong)} of {len(kind)} for {name} functions do not. The furthest: {shown}."
    return problem, count, share


def _not_contained(kind: list[Trial], nearly: float) -> list[Trial]:
    """Return the functions whose intervals do not contain the cost, the furthest first. Where most
    are narrower than their calls can show, those contain nothing.
    """
    claimed = 2 * sum(trial.is_narrow for trial in kind) > len(kind)
    wrong = [trial for trial in kind if trial.missed_by(nearly) or (claimed and trial.is_narrow)]
    return sorted(wrong, key=lambda trial: -trial.missed_by(nearly))


def _describe_miss(trial: Trial, nearly: float) -> str:
    """Return an interval beside the cost, with the calls that were made."""
    interval = f"{_interval(trial)} µs for a function that costs {_microseconds(trial.cost_s)}"
    calls = f"{trial.device.calls:,} calls"
    if trial.missed_by(nearly):
        return f"{interval}, after {calls}"
    return f"{interval}, narrower than {calls} can show"


def _interval(trial: Trial) -> str:
    """Return the ends of the interval, in microseconds."""
    return " to ".join(f"{1e6 * figure:,.1f}" for figure in trial.answer[1:])


def _too_wide(
    quiet: list[Trial], noisy: list[Trial], settings: dict[str, Any]
) -> tuple[str | None, int, float | None]:
    """Judge the group of functions whose intervals are widest: one must not pay for another."""
    few, some, many = _by_calls(noisy)
    groups = {
        "steady functions": quiet,
        "varying functions with time for few calls": few,
        "varying functions with time for some calls": some,
        "varying functions with time for many calls": many,
    }
    means = {name: _usual_width(group) for name, group in groups.items() if group}
    count, name = len(quiet) + len(noisy), max(means, key=means.__getitem__, default="")
    if not name or means[name] <= settings["wide"]:
        return None, count, means.get(name)
    widest = max(groups[name], key=lambda trial: trial.relative_width)
    problem = (
        f"Those for {name} are {format_figure(means[name], 'x', settings['wide'])} as wide. The"
        f" widest: {_interval(widest)} µs, where an honest interval is"
        f" {_microseconds(widest.honest_s)} wide."
    )
    return problem, count, means[name]


def _usual_width(group: list[Trial]) -> float:
    """The mean width over an honest interval's, without the widest tenth: right intervals from few
    calls are very wide now and then.
    """
    widths = sorted(trial.relative_width for trial in group)
    kept = widths[: max(1, len(widths) - math.ceil(len(widths) / 10))]
    return sum(kept) / len(kept)


def _by_calls(noisy: list[Trial]) -> tuple[list[Trial], list[Trial], list[Trial]]:
    """The thirds of the functions with time for the fewest calls, for more, and for the most."""
    ordered, third = sorted(noisy, key=lambda trial: trial.honest_calls), len(noisy) // 3
    most = len(noisy) - third
    return ordered[:third], ordered[third:most], ordered[most:]
