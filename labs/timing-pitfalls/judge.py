"""Judge this lab: hidden functions of known cost, and what an honest benchmark reports
for each.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import comb
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.benchmark.bench import busy, is_restless, require_quiet

CLAIMED = 0.95
"""How often an interval claims to contain the true cost."""
SURE = 0.001
"""How often, at most, honest intervals are refused."""
WIDEST_NOISY = 0.5
"""No interval needs a larger half-width than this share of its estimate, however much calls vary.
"""


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


def device_for(function: Any, rng: np.random.Generator, settings: dict[str, Any]) -> Any:
    """A fresh device with that function."""
    if "bench" in settings:
        return real_device()(function, rng, settings["budget_s"], settings["bench"])
    return emulator().Device(function, rng, settings["budget_s"])


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

    @property
    def arguments(self) -> list[str]:
        """The arguments of the harness."""
        return [self.benchmark]

    def serve(self, values: list[Any]) -> list[float]:
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
        status, value = self.device.serve(values[0].astype(np.int64).tolist())
        return [float(status), float(value)]

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
    def cost_s(self) -> float:
        return float(self.function.cost_s)

    @property
    def error(self) -> float:
        """How far the estimate is from the true cost, as a share of that cost."""
        return abs(self.answer[0] / self.cost_s - 1)

    def missed(self, nearly: float) -> bool:
        """Return True if the interval misses the true cost by more than `nearly`, a share of it."""
        _, low, high = self.answer
        return not low - nearly * self.cost_s <= self.cost_s <= high + nearly * self.cost_s

    @property
    def half_width(self) -> float:
        """Of the interval, as a share of the estimate."""
        return (self.answer[2] - self.answer[1]) / 2 / self.answer[0]


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
        device = device_for(function, rng, settings)
        trial = Trial(f"function {number + 1} of {len(kinds)}", function, device, noisy)
        yield trial
        done.append(trial)
        if not usable(trial) or is_restless([one.device for one in done]):
            return


PRACTICE = {
    "short": (0.05, False),
    "long": (0.05, False),
    "other": (0.06, True),
    "ragged": (0.5, False),
}
"""The functions of `lab run`: jitter, and whether unused results are skipped."""


def practice(settings: dict[str, Any]) -> Iterator[Trial]:
    """Four functions, the same every time, measured by each colleague and by the learner."""
    scale = scale_of(settings)
    launch_s = sum(scale.launch_s) / 2
    for seed, ((name, (jitter, lazy)), cost_s) in enumerate(
        zip(PRACTICE.items(), scale.practice_s, strict=True)
    ):
        function = emulator().Function(
            cost_s, jitter, launch_s, 0.04, (2.6, 2.1, 2.2, 1.7, 1.5), 6 << 20, 0.6, 0.12, lazy
        )
        for benchmark in ("notebook", "nightly", "paper", "benchmark"):
            device = device_for(function, np.random.default_rng(seed), settings)
            yield Trial(name, function, device, jitter > 0.1, benchmark)


def profiled(settings: dict[str, Any]) -> Trial:
    """Return what `lab profile` captures: `benchmark` on the first practice function."""
    trial = next(trial for trial in practice(settings) if trial.benchmark == "benchmark")
    trial.device.rows = []
    return trial


def rows(trial: Trial) -> list[tuple[str, bool, float, float]]:
    """Return what host and device did: name, whether it was the host, begin and end in seconds."""
    return [
        (name.removeprefix("host "), name.startswith("host "), begin, end)
        for name, begin, end in trial.device.rows
    ]


def practice_line(trial: Trial) -> str:
    """Return the line that `lab run` prints for a practice trial."""
    if not trial.answer:
        return ""
    interval = " to ".join(f"{1e6 * figure:,.1f}" for figure in trial.answer[1:])
    ends = f"   interval {interval} µs" if interval else ""
    true = f"   true cost {1e6 * trial.cost_s:,.1f} µs"
    return f"{trial.name:8}{trial.benchmark:10}{1e6 * trial.answer[0]:12,.1f} µs{true}{ends}"


def usable(trial: Trial) -> bool:
    """Return True if the answer is an estimate inside its interval."""
    return (
        len(trial.answer) == 3
        and all(map(math.isfinite, trial.answer))
        and 0 < trial.answer[0]
        and trial.answer[1] <= trial.answer[0] <= trial.answer[2]
    )


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
        "coverage": _missed(judged, noisy, settings["nearly"]),
        "width": _too_wide(judged, settings),
    }
    used_s = max((trial.device.used_s for trial in done), default=0.0)
    problem = late and f"{late.name} used the machine for {used_s:.2f} s."
    return {
        **{id_: part for id_, part in parts.items() if not late or part[0]},
        "budget": (problem, len(done), used_s),
    }


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


def _odd(trial: Trial) -> str:
    """Return what is wrong with the answer itself."""
    if len(trial.answer) == 3 and not any(trial.answer):
        return (
            f"`benchmark` reports that {trial.name} takes no time at all; it costs"
            f" {_microseconds(trial.cost_s)}."
        )
    figures = ", ".join(f"{figure:.6g}" for figure in trial.answer)
    return (
        f"{trial.name}: `benchmark` returned ({figures}); expected an estimate and the two ends of"
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
        f"{len(wrong)} of {len(quiet)} estimates are further off. The worst is"
        f" {_microseconds(worst.answer[0])} for a function that costs"
        f" {_microseconds(worst.cost_s)}: {_times(worst)} too {side}."
    )
    return problem, len(quiet), worst.error


def _times(trial: Trial) -> str:
    ratio = trial.answer[0] / trial.cost_s
    return f"{max(ratio, 1 / ratio):.1f}x" if not 0.5 < ratio < 2 else f"{abs(ratio - 1):.0%}"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} µs"


def _missed(
    judged: list[Trial], noisy: list[Trial], nearly: float
) -> tuple[str | None, int, float | None]:
    share = sum(not trial.missed(nearly) for trial in judged) / len(judged) if judged else None
    for group, which in ((judged, ""), (noisy, " for functions whose calls vary by half")):
        misses, most = sum(trial.missed(nearly) for trial in group), most_misses(len(group))
        if misses > most:
            problem = (
                f"{misses} of {len(group)} intervals{which} miss the true cost. Honest"
                f" {CLAIMED:.0%} intervals would miss more than {most} in at most 1 check of 1,000."
            )
            return problem, len(judged), share
    return None, len(judged), share


def most_misses(n: int) -> int:
    """Return how many of `n` honest intervals may miss; more miss with probability SURE at most."""
    tail, k = 1.0, -1
    while tail > SURE:
        k += 1
        tail -= comb(n, k) * (1 - CLAIMED) ** k * CLAIMED ** (n - k)
    return k


def _too_wide(
    judged: list[Trial], settings: dict[str, Any]
) -> tuple[str | None, int, float | None]:
    quiet = [trial for trial in judged if not trial.noisy]
    widest = max(quiet, key=lambda trial: trial.half_width, default=None)
    if widest is not None and widest.half_width > settings["within"]:
        problem = f"{widest.name}, whose calls vary by less than 10%: ±{widest.half_width:.0%}."
        return problem, len(judged), widest.half_width
    loose = next((trial for trial in judged if trial.half_width > WIDEST_NOISY), None)
    problem = (
        f"{loose.name}: ±{loose.half_width:.0%}. No function needs more than ±{WIDEST_NOISY:.0%}."
        if loose
        else None
    )
    return problem, len(judged), widest and widest.half_width
