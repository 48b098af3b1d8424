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
from bottleneck_lab.analysis.device.time import DeviceTime, loop_window
from bottleneck_lab.analysis.ranks.matching import Arrival

Culprit = tuple[int, str]
"""(a late rank, what it did)."""
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


class CollectiveWaits(msgspec.Struct, frozen=True):
    """Communication that nothing hides, summed over ranks: `waiting_ns` for the last to arrive, and
    `transfer_ns`, which is the rest. `late` is who was waited for, longest first.

    `longest_ns` is the time of the rank that takes longest, start-up and end of the program left
    out: one that begins later than others takes less, but all are done only when it is. `least_ns`
    is the work of the busiest rank, without its waiting and without what it did for longer than
    the ranks that waited for it: no program that waits for nobody takes less.
    """

    collectives: int
    waiting_ns: int
    transfer_ns: int
    late: list[LateRank]
    longest_ns: int = 0
    least_ns: int = 0


def find_collective_waits(
    arrivals: Mapping[int, Sequence[Arrival]], times: Sequence[DeviceTime]
) -> CollectiveWaits | None:
    """Return who waited for whom; None if no collective is in the captures of two ranks.

    `times` are the devices' times, of which each rank needs one.
    """
    if not arrivals:
        return None
    ledger = _Ledger(arrivals, times)
    for arrival, rank in sorted((each, rank) for rank, own in arrivals.items() for each in own):
        if rank in ledger.times:
            ledger.enter(rank, arrival)
    total = ledger.waiting.total()
    return CollectiveWaits(
        collectives=len(ledger.last),
        waiting_ns=total,
        transfer_ns=max(sum(part.total for part in ledger.exposed.values()) - total, 0),
        late=[
            LateRank(rank, doing, ns, len(ledger.collectives[rank, doing]))
            for (rank, doing), ns in ledger.waiting.most_common()
            if ns
        ],
        longest_ns=max(loop_window([time]).length for time in ledger.times.values()),
        least_ns=ledger.least_ns(),
    )


class _Wait(NamedTuple):
    """One rank's waiting in a collective, ns, and by (rank, what it did) the share (0–1) in it."""

    start: int
    end: int
    charges: Mapping[Culprit, float]


class _Ledger:
    """The waiting of ranks in collectives, each charged to whom it waited for, as their arrivals
    are entered in order.
    """

    def __init__(
        self, arrivals: Mapping[int, Sequence[Arrival]], times: Sequence[DeviceTime]
    ) -> None:
        self.times = {time.rank: time for time in times}
        self.exposed = {
            rank: iv.subtract(time.communication, iv.join(time.compute, time.copy))
            for rank, time in self.times.items()
        }
        self._busy = {rank: time.busy for rank, time in self.times.items()}
        in_order = sorted((each.start, rank, each) for rank in arrivals for each in arrivals[rank])
        # By collective: the rank that joined it last, and its part in it.
        self.last = {each.number: (rank, each) for _, rank, each in in_order}
        self.waiting: Counter[Culprit] = Counter()
        self._waited: Counter[int] = Counter()  # by the rank that did it
        self.collectives: dict[Culprit, set[int]] = defaultdict(set)
        self._begin = min(time.window.start for time in times)
        self._joined = {rank: {each.number for each in own} for rank, own in arrivals.items()}
        # By rank: the collectives that it has left, its waits, and the end of the latest of them.
        self._left: dict[int, list[Arrival]] = defaultdict(list)
        self._waits: dict[int, list[_Wait]] = defaultdict(list)
        self._until: dict[int, int] = defaultdict(int)

    def enter(self, rank: int, arrival: Arrival) -> None:
        """Charge a rank's waiting in one collective."""
        window, (late, _) = self.times[rank].window, self.last[arrival.number]
        start = max(arrival.start, window.start)
        end = min(arrival.last, arrival.end, window.end)
        if end > start and late != rank and late in self.times:
            wait = _Wait(start, end, self._charges(rank, arrival, start))
            self._waits[rank].append(wait)
            exposed_ns = self._exposed_ns(rank, arrival, wait)
            self._waited[rank] += exposed_ns
            for culprit, share in wait.charges.items():
                self.waiting[culprit] += round(share * exposed_ns)
                self.collectives[culprit].add(arrival.number)
        self._left[rank].append(arrival)

    def least_ns(self) -> int:
        """Return the work of the busiest rank, without its waiting and without what it did for
        longer than others, ns.
        """
        others = max(len(self.times) - 1, 1)
        # What made it late before its first step may be work of each step that the next one shows.
        longer = {
            rank: (self.waiting[rank, COMPUTING] + self.waiting[rank, BEFORE_ITS_STEP]) // others
            for rank in self._busy
        }
        return max(
            busy.total - self._waited[rank] - longer[rank] for rank, busy in self._busy.items()
        )

    def _exposed_ns(self, rank: int, arrival: Arrival, wait: _Wait) -> int:
        """Return how long a rank waited with nothing else to do, ns."""
        late, latest = self.last[arrival.number]
        # Of two collectives in flight at once, the second is waited for after the first.
        begun = min(max(wait.start, self._until[rank]), wait.end)
        self._until[rank] = max(self._until[rank], wait.end)
        # What the late rank hides behind its work, the others could have hidden behind theirs, had
        # it not been late: that is waiting too.
        hidden = iv.clip(self.exposed[rank], max(arrival.start, begun), arrival.end).total
        hidden -= iv.clip(self.exposed[late], latest.start, latest.end).total
        return max(iv.clip(self.exposed[rank], begun, wait.end).total, hidden)

    def _charges(self, rank: int, arrival: Arrival, joined: int) -> dict[Culprit, float]:
        """Return the shares (0–1) of those to blame for a rank's waiting since it `joined`.

        What the late rank did for longer than this one, since the last collective that both were
        in, made it late: work that both have is no reason.
        """
        late, _ = self.last[arrival.number]
        past = reversed(self._left[rank])
        since = next((each.end for each in past if each.number in self._joined[late]), self._begin)
        other = self._doing(rank, since, joined)
        excess = {
            doing: ns - other.get(doing, 0)
            for doing, ns in self._doing(late, since, arrival.last).items()
            if ns > other.get(doing, 0)
        } or {COMPUTING: 1}
        total = sum(excess.values())
        charges: dict[Culprit, float] = defaultdict(float)
        for doing, ns in excess.items():
            culprits = {(late, doing): 1.0}
            if doing == COMMUNICATING:
                culprits = _passed_on(self._waits[late], since, arrival.last) or culprits
            for culprit, part in culprits.items():
                charges[culprit] += ns / total * part
        return charges

    def _doing(self, rank: int, start: int, end: int) -> dict[str, int]:
        """Split a stretch of a rank by what it did, ns."""
        time = self.times[rank]
        parts = {BEFORE_ITS_STEP: max(min(end, time.window.start) - start, 0)}
        parts[COMMUNICATING] = iv.clip(self.exposed[rank], start, end).total
        parts[COMPUTING] = iv.clip(self._busy[rank], start, end).total - parts[COMMUNICATING]
        for cause, intervals in time.causes.items():
            parts[cause] = iv.clip(intervals, start, end).total
        return parts


def _passed_on(waits: Sequence[_Wait], start: int, end: int) -> dict[Culprit, float]:
    """Return whom a rank waited for itself in a stretch, with the share (0–1) of its waiting; empty
    if it did not wait.
    """
    sums: dict[Culprit, float] = defaultdict(float)
    for wait in waits:
        length = min(wait.end, end) - max(wait.start, start)
        for culprit, share in wait.charges.items():
            sums[culprit] += share * max(length, 0)
    total = sum(sums.values())
    return {culprit: ns / total for culprit, ns in sums.items()} if total else {}
