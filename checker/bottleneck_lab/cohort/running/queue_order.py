"""The order in which submissions are measured: everybody in turn, so that nobody's ten submissions
stand before another's first.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.store import tables


class Waiting(NamedTuple):
    """A submission that waits: its number and handle, and what it takes to measure it."""

    id: int
    handle: str
    person: int
    lab: str
    device: Device
    queued: float


def in_turn(
    waiting: list[Waiting], running: Counter[int], served: dict[int, float]
) -> list[Waiting]:
    """Sort the waiting into the order in which they are measured.

    First those whose learner has the fewest before it (running, or waiting longer), then the
    learner who was served longest ago, then who came first.
    """
    before = Counter(running)  # copied, since it is counted on below
    # A learner's second submission is keyed behind everybody's first, whenever it came.
    keyed = []
    for one in sorted(waiting, key=lambda one: (one.queued, one.id)):
        keyed.append(((before[one.person], served.get(one.person, 0.0), one.queued, one.id), one))
        before[one.person] += 1
    return [one for _, one in sorted(keyed)]


def load_queue(connection: Connection) -> list[Waiting]:
    """Load the waiting in the order in which they are measured."""
    table, leases = tables.submissions, tables.leases
    query = select(*(table.c[name] for name in Waiting._fields)).where(table.c.state == "queued")
    waiting = [Waiting(*row) for row in connection.execute(query)]
    if not waiting:  # the usual case, asked several times a second
        return []
    running = connection.execute(
        select(table.c.person, func.count())
        .where(table.c.state == "running")
        .group_by(table.c.person)
    )
    people = {one.person for one in waiting}
    served = connection.execute(
        select(table.c.person, func.max(leases.c.taken))
        .join(leases, leases.c.submission == table.c.id)
        .where(table.c.person.in_(people))
        .group_by(table.c.person)
    )
    counts: Counter[int] = Counter({row[0]: row[1] for row in running})
    return in_turn(waiting, counts, {row[0]: row[1] for row in served})
