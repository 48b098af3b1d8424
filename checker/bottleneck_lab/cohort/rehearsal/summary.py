"""Sum up a rehearsal: waits by hour, what breaks first, and what would help."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

from bottleneck_lab.cohort.rehearsal.learners import Block, make_scripts
from bottleneck_lab.cohort.rehearsal.play import Check, Machines, Outcomes, play
from bottleneck_lab.cohort.running.durations import Durations, typical_s
from bottleneck_lab.cohort.running.forecast import sort_of
from bottleneck_lab.wording import counted

TOO_LONG_S = 300.0
"""A wait from which learners stop working on the lab and begin to ask."""
QUANTILE = 0.9
SLOWER = 1.25
"""How much longer checks may take on the day: near a full machine, waits grow by far more."""
BUDGET = 3
"""Submissions per learner and lab that the advice tries out."""
DRAWN = 30
"""Learners that are drawn at least: a smaller room is played several times, as one draw of a few
learners says little.
"""
DAY_S = 86400.0
LARGER = 60
"""Learners up to whom larger rooms are tried, each twice as large as the one before."""


class Plan(msgspec.Struct, frozen=True):
    """A workshop to play: `learners` who need `tries` submissions on average until a lab passes.

    `durations` are those of checks, by lab and device. `budget` limits submissions per learner and
    lab. With `halves`, half of the room takes the labs in the opposite order.
    """

    blocks: list[Block]
    learners: int
    tries: float
    machines: Machines
    durations: Durations
    budget: int | None = None
    seed: int = 0
    halves: bool = False


class Hour(msgspec.Struct, frozen=True):
    """One hour: submissions in it, how long they waited (s), and the longest queue.

    `unmeasured` are those whose check never began. Both counts are means over the rooms played.
    """

    begins: float
    submissions: float
    median_s: float
    p90_s: float
    longest_s: float
    queue: int
    unmeasured: float


class Option(msgspec.Struct, frozen=True):
    """Something to change, and the waits (s) with it."""

    what: str
    p90_s: float
    longest_s: float


class Rehearsal(msgspec.Struct, frozen=True):
    """A workshop that was played in so many `rooms`, which differ in the learners drawn.

    `verdict_s` is the time within which 9 of 10 submissions have their verdict. `drained_s` is how
    long after the end of the last lab checks went on. `slower` are the waits if checks take
    `SLOWER` times as long, `larger` those with more learners. `unfinished` are, in each room and by
    lab, the learners who had not passed it when its time was over.
    """

    blocks: list[Block]
    rooms: int
    hours: list[Hour]
    verdict_s: float
    p90_s: float
    longest_s: float
    drained_s: float
    breaks: list[str]
    options: list[Option]
    slower: Option
    larger: list[Option]
    refusals: dict[str, int]
    unfinished: list[dict[str, list[str]]]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0–1) of all do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def waits_of(checks: Sequence[Check]) -> list[float]:
    """Return how long each check waited to begin (s); those that never did are left out."""
    return [check.wait_s for check in checks if check.wait_s is not None]


def by_hour(rooms: Sequence[Outcomes]) -> list[Hour]:
    """Return the hours of a rehearsal, by when submissions were sent."""
    hours = []
    checks = [check for room in rooms for check in room.checks]
    for begins in range(0, math.ceil(max(room.ended for room in rooms)) or 1, 3600):
        ends = begins + 3600
        sent = [check for check in checks if begins <= check.sent < ends]
        if not sent:
            continue
        waits = waits_of(sent)
        hours.append(
            Hour(
                begins,
                submissions=len(sent) / len(rooms),
                median_s=median(waits) if waits else 0.0,
                p90_s=quantile(waits, QUANTILE),
                longest_s=max(waits, default=0.0),
                queue=max(_longest_queue(room.checks, begins, ends) for room in rooms),
                unmeasured=(len(sent) - len(waits)) / len(rooms),
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


def what_breaks(plan: Plan, rooms: Sequence[Outcomes]) -> list[str]:
    """Return in sentences what goes wrong, the earliest first; nothing if all is well."""
    sentences = []
    checks = [check for room in rooms for check in room.checks]
    late = [check for check in checks if (check.wait_s or 0.0) > TOO_LONG_S]
    if late:
        first = min(late, key=lambda check: check.sent)
        why = "its slots are full"
        if sort_of(first.lab, first.device) == "quiet":
            why = "its checks need the machine to themselves"
        who = "Who"
        if len(rooms) > 1:
            count = sum(any(check in late for check in room.checks) for room in rooms)
            who = f"In {count} of {len(rooms)} rooms, who"
        sentences.append(
            f"{who} submits {first.lab} at {clock(first.sent)} or later waits longer than"
            f" {TOO_LONG_S / 60:.0f} minutes: {why}."
        )
    at_once = {"gpu": plan.machines.gpus, "quiet": 1, "modelled": plan.machines.slots}
    for block in plan.blocks:
        seconds = sum(
            check.ended - check.began
            for check in checks
            if check.lab == block.lab and check.ended is not None and check.began is not None
        ) / len(rooms)
        minutes = (block.ends - block.begins) / 60
        room = minutes * at_once[sort_of(block.lab, block.device)] * plan.machines.count
        if room and seconds / 60 > room:
            sentences.append(
                f"All checks of {block.lab} take {seconds / 60:.0f} minutes; in the"
                f" {minutes:.0f} minutes of the lab, only {room:.0f} minutes of checks can run."
            )
    unknown = [
        block.lab for block in plan.blocks if (block.lab, block.device) not in plan.durations
    ]
    if unknown:
        sentences.append(
            f"No check of {' or '.join(unknown)} has run on this machine yet, so how long one takes"
            " is assumed. `--measure` measures it first."
        )
    missing = sum(check.began is None for check in checks)
    if missing:
        count = math.ceil(missing / len(rooms))
        sentences.append(
            f"{counted(count, 'submission')} never measured: no machine has the device."
        )
    return sentences


def _what_may_help(plan: Plan) -> dict[str, Plan]:
    """Return the plan with one thing changed, by what that is."""
    machines = plan.machines
    changed = {
        "one more machine": replace(plan, machines=replace(machines, count=machines.count + 1))
    }
    if any(sort_of(block.lab, block.device) == "modelled" for block in plan.blocks):
        wider = replace(machines, slots=2 * machines.slots)
        changed[f"{wider.slots} slots (cores) on each machine"] = replace(plan, machines=wider)
    if plan.budget is None or plan.budget > BUDGET:
        what = f"at most {BUDGET} submissions per learner and lab"
        changed[what] = replace(plan, budget=BUDGET)
    # Nobody begins with the lab of the sixth week.
    if len(plan.blocks) > 1 and plan.blocks[-1].ends <= DAY_S:
        what = "half of the room taking the labs in the opposite order"
        changed[what] = replace(plan, halves=True)
    return changed


def _play_rooms(
    plan: Plan, activity: str, progress: Callable[[str, float], None]
) -> list[Outcomes]:
    """Play a plan in as many rooms as `DRAWN` learners need, each drawn from a seed of its own."""
    count = math.ceil(DRAWN / plan.learners)

    def played(number: int) -> Outcomes:
        seed = plan.seed + number
        return play(
            make_scripts(plan.blocks, plan.learners, plan.tries, seed, halves=plan.halves),
            plan.machines,
            plan.durations,
            budget=plan.budget,
            seed=seed,
            progress=lambda share: progress(activity, (number + share) / count),
        )

    return [played(number) for number in range(count)]


def rehearse(
    plan: Plan,
    *,
    options: bool = True,
    progress: Callable[[str, float], None] = lambda _activity, _share: None,
) -> Rehearsal:
    """Play a workshop, and where waits are too long, play it again with what might help.

    Where they are not, with more learners.
    """

    def option(what: str, changed: Plan) -> Option:
        rooms = _play_rooms(changed, what, progress)
        waits = [wait for room in rooms for wait in waits_of(room.checks)]
        return Option(what, quantile(waits, QUANTILE), max(waits, default=0.0))

    # A lab without a record is assumed to be typical, and that too grows with `SLOWER`.
    assumed = {
        (block.lab, block.device): [typical_s(plan.durations, block.lab, block.device)]
        for block in plan.blocks
    }
    known = replace(plan, durations={**assumed, **plan.durations})
    rooms = _play_rooms(known, "playing the workshop", progress)
    checks = [check for room in rooms for check in room.checks]
    waits = waits_of(checks)
    longest = max(waits, default=0.0)
    tried: list[Option] = []
    larger: list[Option] = []
    if options and longest > TOO_LONG_S:
        tried = [option(what, changed) for what, changed in _what_may_help(known).items()]
    elif options:
        learners = 2 * plan.learners
        while learners <= LARGER and not (larger and larger[-1].p90_s > TOO_LONG_S):
            larger.append(option(f"{learners} learners", replace(known, learners=learners)))
            learners *= 2
    slow = {pair: [SLOWER * each for each in seconds] for pair, seconds in known.durations.items()}
    ends = max(block.ends for block in plan.blocks)
    return Rehearsal(
        plan.blocks,
        len(rooms),
        by_hour(rooms),
        verdict_s=quantile([c.ended - c.sent for c in checks if c.ended is not None], QUANTILE),
        p90_s=quantile(waits, QUANTILE),
        longest_s=longest,
        drained_s=max(0.0, max(room.ended for room in rooms) - ends),
        breaks=what_breaks(plan, rooms),
        options=sorted(tried, key=lambda each: each.longest_s),
        slower=option(f"checks that take {SLOWER:g} times as long", replace(known, durations=slow)),
        larger=larger,
        refusals=dict(sum((Counter(room.refusals) for room in rooms), Counter())),
        unfinished=[room.unfinished for room in rooms],
    )


_MOST_NAMES = 8
"""Learners that a sentence lists."""


def out_of_time(plan: Plan, result: Rehearsal) -> list[str]:
    """Say of each lab how many had not passed it when its time was over, and who: in the first
    room, where several were played.
    """
    sentences = []
    for block in plan.blocks:
        counts = [len(room.get(block.lab, [])) for room in result.unfinished]
        if not any(counts):
            continue
        mean = sum(counts) / len(counts)
        names = result.unfinished[0].get(block.lab, [])
        shown = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        who = f"{shown}{more}" if names else "nobody"
        sentences.append(
            f"{block.lab}: time is over at {clock(block.ends)} for {mean:.2g} of"
            f" {counted(plan.learners, 'learner')} who have not passed"
            f" ({'in the first room ' if len(counts) > 1 else ''}{who})."
        )
    return sentences


def clock(seconds: float) -> str:
    """Return a moment of the workshop as hours and minutes from its start.

    After the first 24 hours, with the number of the day; days begin when the workshop does.
    """
    minutes = int(seconds) // 60
    moment = f"{minutes // 60 % 24}:{minutes % 60:02}"
    return moment if seconds < DAY_S else f"day {int(seconds // DAY_S) + 1}, {moment}"


def span(begins: float, ends: float) -> str:
    """Return a stretch of the workshop, with the day only once where it lies in one."""
    first, last = clock(begins), clock(ends)
    day, _, moment = last.rpartition(", ")
    return f"{first}–{moment if first.startswith(day) else last}"
