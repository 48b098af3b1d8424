"""When waiting submissions will start, from how long checks took and what runners are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from bottleneck_lab.catalog import Device, find_lab
from bottleneck_lab.cohort.running.durations import Durations, typical_s
from bottleneck_lab.cohort.running.queue_order import Waiting, load_queue
from bottleneck_lab.cohort.running.workers import RunnerStatus, load_runners
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.kinds.registry import kind_of

RECENT = 500
"""Checks of the cohort from which durations are taken."""

Sort = Literal["gpu", "quiet", "modelled", "cluster"]
"""The needs of a check: a GPU, the whole machine, a core beside others, or a node of a cluster."""


def needs_quiet(lab: str, device: Device) -> bool:
    """Return True if a check measures its machine, so that nothing may run beside it.

    True as well where this installation does not know the lab's kind.
    """
    try:
        return kind_of(find_lab(lab)).needs_quiet(device)
    except LabError:
        return True


def sort_of(lab: str, device: Device) -> Sort:
    """Return what a check needs of the one machine that measures it."""
    if device == "cuda":
        return "gpu"
    return "quiet" if needs_quiet(lab, device) else "modelled"


_OVERDUE = 0.2
"""Share of what a check has taken already that an overdue one is expected to take on top."""
_PREFIXES: dict[Sort, str] = {"gpu": "gpu", "quiet": "cpu", "modelled": "cpu", "cluster": "cluster"}
_RIVALS: dict[Sort, tuple[Sort, ...]] = {
    "gpu": ("quiet", "modelled"),
    "quiet": ("gpu", "quiet", "modelled"),
    "modelled": ("gpu", "quiet"),
    "cluster": (),
}
"""Sorts of checks that have to end before one of this sort can start on the same machine."""


class _Machine:
    """One runner in the forecast: when each slot is free, and when the last of each sort ends."""

    def __init__(self, slots: Sequence[str], now: float) -> None:
        self._free = dict.fromkeys(slots, now)
        self._ends: dict[Sort, float] = dict.fromkeys(_RIVALS, now)

    def earliest(self, sort: Sort) -> tuple[float, str] | None:
        """Return when a check of that sort can start, and in which slot; None if never."""
        rivals = max((self._ends[rival] for rival in _RIVALS[sort]), default=0.0)
        starts = [
            (max(free, rivals), slot)
            for slot, free in self._free.items()
            if slot.startswith(_PREFIXES[sort])
        ]
        return min(starts, default=None)

    def occupy(self, slot: str, sort: Sort, until: float) -> None:
        """Let a check be under way in a slot."""
        self._free[slot] = until
        self._ends[sort] = max(self._ends[sort], until)


class Forecast(NamedTuple):
    """Seconds until each waiting submission starts, by its handle and in their order; None where
    no runner can.

    `paused` while checks are not started at all: waits then count from the end of the pause.
    `running` are being measured now.
    """

    waits_s: dict[str, float | None]
    paused: bool
    running: int = 0

    def ahead_of(self, handle: str) -> int:
        """Return how many are measured before that submission; 0 if it does not wait.

        What no runner can measure holds up nobody but its like, and what waits longer for another
        machine holds up nobody either. What is being measured is ahead of whatever has to wait for
        a machine.
        """
        if handle not in self.waits_s:
            return 0
        wait_s, order = self.waits_s[handle], list(self.waits_s)
        before = order[: order.index(handle)]
        waits = [self.waits_s[each] for each in before]
        waiting = sum(wait_s is None or (each is not None and each <= wait_s) for each in waits)
        return waiting + (self.running if wait_s else 0)


def forecast(
    waiting: Sequence[Waiting],
    runners: Sequence[RunnerStatus],
    running: dict[str, tuple[str, Device, float]],
    durations: Durations,
    now: float,
) -> dict[str, float | None]:
    """Return seconds until each of `waiting`, in their order, starts; None where no runner can.

    `running` are lab, device and start of what is under way, by handle. Nobody passes another who
    needs the same machines, as in `leases.claim`.
    """
    typical = _Typical(durations)
    machines = []
    for runner in runners:
        machine = _Machine([slot.name for slot in runner.slots], now)
        for slot in runner.slots:
            if slot.busy in running:
                lab, device, began = running[slot.busy]
                # One that is overdue goes on for a part of what it has taken: it does not end now.
                ends = max(began + typical[lab, device], now + _OVERDUE * (now - began))
                cluster = slot.name.startswith(_PREFIXES["cluster"])
                machine.occupy(slot.name, "cluster" if cluster else sort_of(lab, device), ends)
        machines.append(machine)
    waits: dict[str, float | None] = {}
    latest: dict[Device, float] = {}
    for one in waiting:
        sorts: tuple[Sort, ...] = ("cluster", sort_of(one.lab, one.device))
        offers = [
            (*offer, number, sort)
            for number, machine in enumerate(machines)
            if not runners[number].lacks_for(one.lab)
            for sort in sorts
            if (offer := machine.earliest(sort))
        ]
        if not offers:
            waits[one.handle] = None
            continue
        start, name, number, sort = min(offers)
        start = max(start, latest.get(one.device, now))
        machines[number].occupy(name, sort, start + typical[one.lab, one.device])
        waits[one.handle] = round(start - now, 1)
        latest[one.device] = start
    return waits


class _Typical(dict[tuple[str, Device], float]):
    """Typical durations (s) by lab and device, each worked out once."""

    def __init__(self, durations: Durations) -> None:
        super().__init__()
        self._durations = durations

    def __missing__(self, key: tuple[str, Device]) -> float:
        self[key] = typical_s(self._durations, *key)
        return self[key]


def load_forecast(connection: Connection, now: float) -> Forecast:
    """Return the forecast for everything that waits, by the runners that are alive."""
    paused = load_settings(connection).paused
    waiting = load_queue(connection)
    if not waiting:
        return Forecast({}, paused)
    submissions, leases = tables.submissions, tables.leases
    columns = (submissions.c.handle, submissions.c.lab, submissions.c.device, leases.c.taken)
    joined = select(*columns, leases.c.ended).join(
        submissions, submissions.c.id == leases.c.submission
    )
    running = {
        row.handle: (row.lab, row.device, row.taken)
        for row in connection.execute(joined.where(leases.c.state == "active"))
    }
    measured: defaultdict[tuple[str, Device], list[float]] = defaultdict(list)
    checks = joined.where(leases.c.state == "done", submissions.c.tool.is_(None))
    recent = checks.order_by(leases.c.id.desc()).limit(RECENT)
    for row in connection.execute(recent):
        measured[row.lab, row.device].append(row.ended - row.taken)
    alive = [runner for runner in load_runners(connection) if runner.alive(now)]
    return Forecast(forecast(waiting, alive, running, measured, now), paused, len(running))
