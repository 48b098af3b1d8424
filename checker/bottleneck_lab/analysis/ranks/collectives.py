"""Collectives across ranks: who waited for whom, and what the late rank was doing.

A collective ends once its last member has arrived. The n-th of each process group is the same
collective on every rank; each rank's row from its own start to the last member's start is waiting,
the rest is transfer. Waiting is charged to the rank that arrived last, and to what that rank did in
the meantime; where that was waiting in an earlier collective, to whom it waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.device.use import DeviceTime
from bottleneck_lab.analysis.what_if import Arrival

COMPUTING, BEFORE_ITS_STEP = "computing", "before its step"
COMMUNICATING = "communicating"
"""What a late rank did, where it is no cause of idle time."""


class LateRank(msgspec.Struct, frozen=True):
    """Waiting of other ranks for one rank, and what it did: a cause of idle time, `computing`,
    `communicating` or `before its step`. `waiting_ns` is summed over the ranks that waited with
    nothing else to do; `times` is how many collectives waited for it.
    """

    rank: int
    doing: str
    waiting_ns: int
    times: int


class _Wait(NamedTuple):
    """One rank's waiting in a collective, ns, and by (rank, what it did) the share (0–1) in it."""

    start: int
    end: int
    charges: Mapping[tuple[int, str], float]


class CollectiveWaits(msgspec.Struct, frozen=True):
    """Communication that nothing hides, summed over ranks: `waiting_ns` for the last to arrive, and
    `transfer_ns`, which is the rest. `late` is who was waited for, longest first.
    """

    collectives: int
    waiting_ns: int
    transfer_ns: int
    late: list[LateRank]


def find_collective_waits(
    arrivals: Mapping[int, Sequence[Arrival]], times: Sequence[DeviceTime]
) -> CollectiveWaits | None:
    """Return who waited for whom; None if no collective is in the captures of two ranks.

    `times` are the devices' times, of which each rank needs one.
    """
    if not arrivals:
        return None
    by_rank = {time.rank: time for time in times}
    exposed = {
        rank: iv.subtract(time.communication, iv.join(time.compute, time.copy))
        for rank, time in by_rank.items()
    }
    # By collective: when the last rank joined it, which that was, and its own part in it.
    last: dict[int, tuple[int, int, Arrival]] = {}
    for rank, own in arrivals.items():
        for each in own:
            before = last.get(each.number)
            if before is None or (each.start, rank) > before[:2]:
                last[each.number] = (each.start, rank, each)

    waiting: Counter[tuple[int, str]] = Counter()
    numbers: dict[tuple[int, str], set[int]] = defaultdict(set)
    begin = min(time.window.start for time in times)
    joined = {rank: {each.number for each in own} for rank, own in arrivals.items()}
    left: dict[int, list[Arrival]] = defaultdict(list)
    until: dict[int, int] = defaultdict(int)
    waits: dict[int, list[_Wait]] = defaultdict(list)
    in_order = [(each, rank) for rank, own in arrivals.items() for each in own if rank in by_rank]
    for each, rank in sorted(in_order):
        window = by_rank[rank].window
        _, late, latest = last[each.number]
        start, end = max(each.start, window.start), min(each.last, each.end, window.end)
        if end > start and late != rank and late in by_rank:
            # Of two collectives in flight at once, the second is waited for after the first.
            begun = min(max(start, until[rank]), end)
            until[rank] = max(until[rank], end)
            # What the late rank hides behind its work, the others could have hidden behind
            # theirs, had it not been late: that is waiting too.
            hidden = iv.clip(exposed[rank], max(each.start, begun), each.end).total
            hidden -= iv.clip(exposed[late], latest.start, latest.end).total
            alone = max(iv.clip(exposed[rank], begun, end).total, hidden)
            # The last collective that both were in.
            past = reversed(left[rank])
            since = next((other.end for other in past if other.number in joined[late]), begin)
            blame = _blame(by_rank[late], by_rank[rank], exposed, since, start, each.last)
            charges: dict[tuple[int, str], float] = defaultdict(float)
            for doing, share in blame.items():
                culprits = {(late, doing): 1.0}
                if doing == COMMUNICATING:
                    culprits = _passed_on(waits[late], since, each.last) or culprits
                for culprit, part in culprits.items():
                    charges[culprit] += share * part
            waits[rank].append(_Wait(start, end, charges))
            for culprit, share in charges.items():
                waiting[culprit] += round(share * alone)
                numbers[culprit].add(each.number)
        left[rank].append(each)
    total = sum(waiting.values())
    return CollectiveWaits(
        collectives=len(last),
        waiting_ns=total,
        transfer_ns=max(sum(part.total for part in exposed.values()) - total, 0),
        late=[
            LateRank(rank, doing, ns, len(numbers[rank, doing]))
            for (rank, doing), ns in waiting.most_common()
            if ns
        ],
    )


def _blame(
    late: DeviceTime,
    waiting: DeviceTime,
    exposed: Mapping[int, iv.Intervals],
    since: int,
    joined: int,
    last: int,
) -> dict[str, float]:
    """Return, by what the late rank did, its share (0–1) in being late.

    Both ranks have left the collective before at `since`; one joined the next at `joined`, the
    other at `last`. What the late rank did for longer than the other until then made it late: work
    that both have is no reason.
    """
    own = _doing(late, exposed[late.rank], since, last)
    other = _doing(waiting, exposed[waiting.rank], since, joined)
    excess = {doing: max(ns - other.get(doing, 0), 0) for doing, ns in own.items()}
    total = sum(excess.values())
    if not total:
        return {COMPUTING: 1.0}
    return {doing: ns / total for doing, ns in excess.items() if ns}


def _doing(time: DeviceTime, exposed: iv.Intervals, start: int, end: int) -> dict[str, int]:
    """Split a stretch of a rank by what it did, ns; `exposed` is its communication that nothing
    hides.
    """
    parts = {BEFORE_ITS_STEP: max(min(end, time.window.start) - start, 0)}
    parts[COMMUNICATING] = iv.clip(exposed, start, end).total
    parts[COMPUTING] = iv.clip(time.busy, start, end).total - parts[COMMUNICATING]
    for cause, intervals in time.causes.items():
        parts[cause] = iv.clip(intervals, start, end).total
    return parts


def _passed_on(waits: Sequence[_Wait], start: int, end: int) -> dict[tuple[int, str], float]:
    """Return whom a rank waited for itself in a stretch, with the share (0–1) of its waiting; empty
    if it did not wait.
    """
    sums: dict[tuple[int, str], float] = defaultdict(float)
    for wait in waits:
        length = min(wait.end, end) - max(wait.start, start)
        for culprit, share in wait.charges.items():
            sums[culprit] += share * max(length, 0)
    total = sum(sums.values())
    return {culprit: ns / total for culprit, ns in sums.items()} if total else {}
