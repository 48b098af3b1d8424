"""Judge this lab: hidden histories of commits whose every change is known, and what a
gate must say about each.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.measure.kinds.benchmark.bench import is_restless, require_quiet
from bottleneck_lab.measure.kinds.benchmark.trials import Counted, Open

FIRST = "the first job of a history"
LONGEST_BASELINE = 1 << 16
PRACTICE = 3798
"""The seed of `lab run`'s history: one in which the shipped gate errs both ways."""


@cache
def beside(name: str) -> ModuleType:
    """A file of this folder that only the verifier loads."""
    spec = importlib.util.spec_from_file_location(
        f"gate_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def emulator() -> ModuleType:
    """The emulated histories and jobs."""
    return beside("emulator")


@cache
def real_job() -> Any:
    """The class of jobs whose runs are real work."""
    return beside("hardware").job_class(emulator())


@dataclass
class Trial:
    """One commit at the gate. `slower` holds the benchmarks that it makes slower, `answer` those
    that the gate names.
    """

    name: str
    history: Any
    job: Any
    commit: str
    slower: set[str]
    before: dict[str, float] = field(default_factory=dict)
    """Seconds of each benchmark in the commit it builds on."""
    answer: set[str] = field(default_factory=set)
    answered: bool = False
    problem: str = ""

    @property
    def arguments(self) -> list[str]:
        """The arguments of the harness."""
        return [self.commit, json.dumps(list(emulator().BENCHMARKS)), self.history.baseline]

    def serve(self, values: list[Any]) -> list[float]:
        """Answers one question from the gate. Raises ValueError for anything else."""
        if not values or not all(isinstance(value, str) for value in values):
            raise ValueError("expected words")
        if values == ["left"]:
            return [0.0, self.job.budget_s - self.job.used_s]
        if len(values) != 3 or values[0] != "run":
            raise ValueError(f"there is no '{values[0][:20]}'")
        status, seconds = self.job.run(values[1], values[2])
        return [float(status), float(seconds)]

    def finish(self, values: list[Any]) -> None:
        """Takes the baseline file and the names. Merges the commit if there are no names."""
        texts = [value if isinstance(value, str) else "" for value in values] or [""]
        self.answer, self.answered = set(texts[1:]), True
        if not texts[0]:
            self.problem = f"{self.name} left no baseline file, or an empty one."
        if len(texts[0]) > LONGEST_BASELINE:
            self.problem = (
                f"{self.name} left a baseline file of {len(texts[0])} characters;"
                f" {LONGEST_BASELINE} are allowed."
            )
        self.history.baseline = texts[0][:LONGEST_BASELINE]
        if not self.answer:
            self.history.passed = self.commit

    @property
    def late(self) -> bool:
        """True if the gate has exceeded the job's time."""
        return bool(self.job.used_s > self.job.budget_s)

    @property
    def missed(self) -> set[str]:
        """The regressions that the gate missed."""
        return self.slower - self.answer

    @property
    def alarm(self) -> bool:
        """True if the gate named a benchmark that is not slower."""
        return bool(self.answer - self.slower)


def trials(rng: np.random.Generator, settings: dict[str, Any]) -> Iterator[Trial]:
    """Jobs, until the false alarms among them decide.

    `looks` of the settings: after how many jobs the alarms are counted, with how many at most the
    gate passes, and from how many on it fails. Between the two more jobs decide.
    benchmarks/operating_curves.py computes from them how often a gate passes.
    """
    done: list[Trial] = []
    jobs = _jobs(rng, settings)
    for wanted, fewest, most in settings["looks"]:
        while len(later(done)) < wanted:
            trial = next(jobs)
            yield trial
            done.append(trial)
            if not trial.answered or trial.problem or is_restless([one.job for one in done]):
                return
        alarms = false_alarms(done)
        if any(trial.missed for trial in done) or alarms <= fewest or alarms >= most:
            return


def _jobs(rng: np.random.Generator, settings: dict[str, Any]) -> Iterator[Trial]:
    """Pairs of histories, each pair with `commits` commits, of which a quarter make something
    slower. In turns, so that a gate cannot take the job before for the one that it builds on.
    """
    for pair in count():
        histories = [emulator().History(rng), emulator().History(rng)]
        for history in histories:
            yield _trial(FIRST, history, history.first(), set(), rng, settings)
        for _ in range(settings["commits"]):
            history = histories[int(rng.integers(2))]
            bad = rng.random() < (0.5 if history.spoiled else 0.2)
            commit, slower = history.regression() if bad else (history.clean(), set())
            name = f"a job of history {2 * pair + histories.index(history) + 1}"
            yield _trial(name, history, commit, slower, rng, settings)


def _trial(
    name: str,
    history: Any,
    commit: str,
    slower: set[str],
    rng: np.random.Generator,
    settings: dict[str, Any],
) -> Trial:
    before = dict(history.seconds.get(history.passed, {}))
    if "bench" in settings:
        job = real_job()(
            history, rng, settings["budget_s"], settings["bench"], settings["second_s"]
        )
    else:
        job = emulator().Job(history, rng, settings["budget_s"])
    return Trial(name, history, job, commit, slower, before)


def practice(settings: dict[str, Any]) -> Iterator[Trial]:
    """One history of 25 commits, the same every time and for every gate: what each commit changes,
    and the machine of its job.
    """
    # Each job draws from a generator of its own: the runs of one gate shift no other's history.
    history = emulator().History(np.random.default_rng([PRACTICE, 0]))
    for number in range(25):
        commit, slower = history.first() if not number else "", set()
        if number in (7, 8, 15, 21):
            commit, slower = history.regression()
        elif number:
            commit = history.clean()
        rng = np.random.default_rng([PRACTICE, 1 + number])
        yield _trial(f"commit {number}", history, commit, slower, rng, settings)


def practice_line(trial: Trial) -> str:
    """Return the line that `lab run` prints for a practice trial."""
    if not trial.answered:
        return (
            f"{trial.name:10} the gate used the machine for {trial.job.used_s:.0f} s, and had"
            f" {trial.job.budget_s:.0f} s"
        )
    whole = set(emulator().BENCHMARKS)
    named = "all six" if trial.answer == whole else ", ".join(sorted(trial.answer)) or "-"
    true = "all six" if trial.slower == whole else ", ".join(sorted(trial.slower)) or "-"
    caught = trial.slower & trial.answer
    marks = []
    if trial.missed:
        marks = [f"caught {', '.join(sorted(caught))}"] if caught else []
        marks += [f"MISSED {', '.join(sorted(trial.missed))}"]
    elif caught:
        marks = ["caught"]
    if trial.alarm:
        marks += ["false alarm"]
    line = f"{trial.name:10}{named:34}{true:14}{', '.join(marks):34}{trial.job.used_s:4.0f} s"
    return f"{HEADING}\n{line}" if trial.name == "commit 0" else line


HEADING = f"{'':10}{'the gate names':34}{'slower':14}"


def practice_summary(done: list[Trial], settings: dict[str, Any]) -> str:
    """Return what a check would count in the practice history."""
    bad = [trial for trial in done if trial.slower]
    caught = sum(not trial.missed for trial in bad)
    longest_s = format_figure(max(trial.job.used_s for trial in done), "s", settings["budget_s"])
    return (
        f"{false_alarms(done)} of {len(done) - 1} jobs after the first raised a false alarm;"
        f" {caught} of {len(bad)} regressions were caught. The longest job took"
        f" {longest_s}."
    )


def later(done: list[Trial]) -> list[Trial]:
    """The jobs that had something to compare with: all but the first of a history."""
    return [trial for trial in done if trial.answered and trial.name != FIRST]


def false_alarms(done: list[Trial]) -> int:
    """The number of jobs that named a benchmark that is not slower."""
    return sum(trial.alarm for trial in done if trial.answered)


def judge(
    done: list[Trial], settings: dict[str, Any]
) -> dict[str, tuple[str | None, int, float | None]]:
    """For each criterion: what is wrong (None if nothing), how many jobs were judged, and its
    figure.
    """
    reached = [look for look in settings["looks"] if look[0] <= len(later(done))]
    done = _undisturbed(done)
    late = next((trial for trial in done if trial.late), None)
    used_s = max((trial.job.used_s for trial in done), default=0.0)
    problem = next((trial.problem for trial in done if trial.problem), None)
    too_long = late and f"{late.name} took {format_figure(used_s, 's', settings['budget_s'])}."
    judged = {
        "baseline": (problem, len(done), None),
        "caught": _caught(done),
        "false-alarms": _alarms(done, (reached or settings["looks"])[-1 if reached else 0]),
        "budget": (too_long, len(done), used_s),
    }
    if not (late or problem):
        return judged
    # The trials ended early: too few jobs for another criterion to hold, and its counts are theirs.
    cause = "one used up its time" if late else "one left no usable baseline file"
    short = f" Counted up to job {len(done)}, with which the check ended: {cause}."
    return {
        id_: (part[0] + short if id_ in ("caught", "false-alarms") else part[0], *part[1:])
        for id_, part in judged.items()
        if part[0]
    }


def _undisturbed(done: list[Trial]) -> list[Trial]:
    """Return the jobs that can be judged.

    Raises BusyMachineError where a real machine disturbed too many.
    """
    require_quiet([trial.job for trial in done if not (trial.late or trial.problem)], "jobs")
    return [trial for trial in done if trial.late or trial.problem or not trial.job.disturbed]


def _caught(done: list[Trial]) -> tuple[str | None, int, float | None]:
    bad = [trial for trial in done if trial.answered and trial.slower]
    missed = [trial for trial in bad if trial.missed]
    share = Counted(len(bad) - len(missed), len(bad), against=1.0) if bad else None
    if not missed:
        return None, len(bad), share
    name = sorted(missed[0].missed)[0]
    was, now = missed[0].before[name], missed[0].history.seconds[missed[0].commit][name]
    one = f"One took '{name}' from {was:.2f} s to {now:.2f} s ({now / was - 1:+.0%})."
    return f"{len(missed)} of {len(bad)} regressions passed. {one}", len(bad), share


def _alarms(done: list[Trial], look: list[int]) -> tuple[str | None, int, float | None]:
    """Judge the false alarms by the last look that was reached."""
    (_, fewest, most), jobs, alarms = look, len(later(done)), false_alarms(done)
    if not jobs:
        return None, jobs, None
    if alarms <= fewest:
        return None, jobs, Counted(alarms, jobs, "jobs", note=f"wanted at most {fewest}")
    if alarms < most:
        note = f"wanted at most {fewest}, {most} are too many"
        share = Counted(alarms, jobs, "jobs", note=note)
        return Open(f"{share.words}."), jobs, share
    share = Counted(alarms, jobs, "jobs", note=f"{most} are too many")
    whole = sum(trial.alarm and len(trial.answer) == len(emulator().BENCHMARKS) for trial in done)
    shared = ""
    if 3 * whole >= alarms:
        shared = f" In {whole} of them it named all six benchmarks: what do the six have in common?"
    return f"{share.words}.{shared}", jobs, share
