"""Sum up a rehearsal: waits by hour, what breaks first, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from bottleneck_lab.cohort.rehearsal.learners import Block, make_scripts
from bottleneck_lab.cohort.rehearsal.play import Check, Machines, Outcomes, play
from bottleneck_lab.cohort.running.durations import Durations, typical_s
from bottleneck_lab.cohort.running.forecast import needs_quiet
from bottleneck_lab.cohort.words import counted

TOO_LONG_S = 300.0
"""A wait from which learners stop working on the lab and begin to ask."""
QUANTILE = 0.9
SLOWER = 1.25
"""How much longer checks may take on the day: near a full machine, waits grow by far more."""
BUDGET = 3
"""Submissions per learner and lab that the advice tries out."""


class Hour(msgspec.Struct, frozen=True):
    """One hour: submissions in it, how long they waited (s), and the longest queue.

    `unmeasured` are those whose check never began.
    """

    begins: float
    submissions: int
    median_s: float
    p90_s: float
    longest_s: float
    queue: int
    unmeasured: int


class Option(msgspec.Struct, frozen=True):
    """Something to change, and the waits (s) with it."""

    what: str
    p90_s: float
    longest_s: float


class Rehearsal(msgspec.Struct, frozen=True):
    """A played workshop. `drained_s` is how long after the end of the last lab checks went on.

    `slower` are the waits if checks take `SLOWER` times as long.
    """

    blocks: list[Block]
    hours: list[Hour]
    p90_s: float
    longest_s: float
    drained_s: float
    breaks: list[str]
    options: list[Option]
    slower: Option
    refusals: dict[str, int]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0–1) of all do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def waits_of(checks: Sequence[Check]) -> list[float]:
    """Return how long each check waited to begin (s); those that never did are left out."""
    return [check.wait_s for check in checks if check.wait_s is not None]


def by_hour(outcomes: Outcomes) -> list[Hour]:
    """Return the hours of a rehearsal, by when submissions were sent."""
    hours = []
    for begins in range(0, math.ceil(outcomes.ended) or 1, 3600):
        sent = [check for check in outcomes.checks if begins <= check.sent < begins + 3600]
        if not sent:
            continue
        waits = waits_of(sent)
        hours.append(
            Hour(
                begins,
                len(sent),
                median(waits) if waits else 0.0,
                quantile(waits, QUANTILE),
                max(waits, default=0.0),
                _longest_queue(outcomes.checks, begins, begins + 3600),
                len(sent) - len(waits),
            )
        )
    return hours


def _longest_queue(checks: Sequence[Check], begins: float, ends: float) -> int:
    """Return the most submissions that waited at one moment of a stretch."""
    # At equal moments the end of a wait comes first: what begins at once never queued.
    changes = sorted(
        (at, change)
        for check in checks
        for at, change in ((check.sent, 1), (check.began if check.began else math.inf, -1))
    )
    waiting = most = 0
    for at, change in changes:
        waiting += change
        if begins <= at < ends:
            most = max(most, waiting)
    return most


def what_breaks(
    blocks: Sequence[Block], outcomes: Outcomes, durations: Durations, machines: Machines
) -> list[str]:
    """Return in sentences what goes wrong, the earliest first; nothing if all is well."""
    sentences = []
    late = [check for check in outcomes.checks if (check.wait_s or 0.0) > TOO_LONG_S]
    if late:
        first = min(late, key=lambda check: check.sent)
        alone = first.device != "cuda" and needs_quiet(first.lab, first.device)
        why = "its checks need the machine to themselves" if alone else "its slots are full"
        sentences.append(
            f"Who submits {first.lab} at {clock(first.sent)} waits longer than"
            f" {TOO_LONG_S / 60:.0f} minutes: {why}."
        )
    for block in blocks:
        seconds = [
            check.ended - check.began
            for check in outcomes.checks
            if check.lab == block.lab and check.ended is not None and check.began is not None
        ]
        at_once = machines.slots
        if block.device == "cuda":
            at_once = machines.gpus
        elif needs_quiet(block.lab, block.device):
            at_once = 1
        room = (block.ends - block.begins) * at_once * machines.count
        if room and sum(seconds) > room:
            sentences.append(
                f"All checks of {block.lab} take {sum(seconds) / 60:.0f} minutes; in the"
                f" {(block.ends - block.begins) / 60:.0f} minutes of the lab,"
                f" {room / 60:.0f} can be had."
            )
    unknown = [block.lab for block in blocks if (block.lab, block.device) not in durations]
    if unknown:
        sentences.append(
            f"No check of {', '.join(unknown)} has run on this machine yet, so how long one takes"
            " is assumed. `--measure` measures it first."
        )
    missing = sum(check.began is None for check in outcomes.checks)
    if missing:
        sentences.append(
            f"{counted(missing, 'submission')} never measured: no machine has the device."
        )
    return sentences


def rehearse(
    blocks: Sequence[Block],
    learners: int,
    tries: float,
    machines: Machines,
    durations: Durations,
    *,
    budget: int | None = None,
    seed: int = 0,
    options: bool = True,
    progress: Callable[[str, float], None] = lambda _activity, _share: None,
) -> Rehearsal:
    """Play a workshop, and where waits are too long, play it again with what might help."""

    # A lab without a record is assumed to be typical, and that too grows with `slower`.
    assumed = {
        (block.lab, block.device): [typical_s(durations, block.lab, block.device)]
        for block in blocks
    }
    known = {**assumed, **durations}

    def once(
        activity: str,
        machines: Machines,
        budget: int | None,
        *,
        halves: bool = False,
        slower: float = 1.0,
    ) -> Outcomes:
        taken = {pair: [slower * one for one in seconds] for pair, seconds in known.items()}
        return play(
            make_scripts(blocks, learners, tries, seed, halves=halves),
            machines,
            taken,
            budget=budget,
            seed=seed,
            progress=lambda share: progress(activity, share),
        )

    outcomes = once("playing the workshop", machines, budget)
    waits = waits_of(outcomes.checks)
    longest = max(waits, default=0.0)
    tried = []
    if options and longest > TOO_LONG_S:
        more = msgspec.structs.replace(machines, count=machines.count + 1)
        changes = [("one more machine", more, budget, False)]
        if any(not needs_quiet(block.lab, block.device) for block in blocks):
            wider = msgspec.structs.replace(machines, slots=2 * machines.slots)
            changes.append((f"{wider.slots} slots (cores) on each machine", wider, budget, False))
        if budget is None or budget > BUDGET:
            what = f"at most {BUDGET} submissions per learner and lab"
            changes.append((what, machines, BUDGET, False))
        if len(blocks) > 1:
            what = "half of the room taking the labs in the opposite order"
            changes.append((what, machines, budget, True))
        for what, changed, limit, halves in changes:
            other = waits_of(once(what, changed, limit, halves=halves).checks)
            tried.append(Option(what, quantile(other, QUANTILE), max(other, default=0.0)))
    what = f"checks that take {SLOWER:g} times as long"
    slow = waits_of(once(what, machines, budget, slower=SLOWER).checks)
    return Rehearsal(
        list(blocks),
        by_hour(outcomes),
        quantile(waits, QUANTILE),
        longest,
        max(0.0, outcomes.ended - max(block.ends for block in blocks)),
        what_breaks(blocks, outcomes, durations, machines),
        sorted(tried, key=lambda option: option.longest_s),
        Option(what, quantile(slow, QUANTILE), max(slow, default=0.0)),
        outcomes.refusals,
    )


def clock(seconds: float) -> str:
    """Return a moment of the workshop as hours and minutes from its start."""
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02}"
