"""Runners as they last reported themselves, and how many checks they can do at once."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.cohort.store import tables

SILENT_S = 30.0
"""A runner silent for this long counts as gone."""


class Slot(msgspec.Struct, frozen=True):
    """Room for one check at a time, and what is measured there now (a submission's handle)."""

    name: str
    busy: str | None = None


class RunnerStatus(msgspec.Struct, frozen=True):
    """A runner as it last reported itself. `seen` in seconds since the epoch."""

    name: str
    executor: str
    slots: list[Slot]
    seen: float
    health: dict[str, str]

    def alive(self, now: float) -> bool:
        """Return True if it has been heard from lately."""
        return now - self.seen < SILENT_S


def load_runners(connection: Connection) -> list[RunnerStatus]:
    """Return every runner that ever reported, by name."""
    rows = connection.execute(select(tables.runners).order_by(tables.runners.c.name))
    return [
        RunnerStatus(
            row.name,
            row.executor,
            msgspec.json.decode(row.slots, type=list[Slot]),
            row.seen,
            msgspec.json.decode(row.health, type=dict[str, str]),
        )
        for row in rows
    ]


def free_slots(connection: Connection, now: float) -> int:
    """Return how many checks can go on at once, over all runners that are alive."""
    return sum(len(runner.slots) for runner in load_runners(connection) if runner.alive(now))


def report_status(connection: Connection, runner: RunnerStatus) -> None:
    """Store a runner's status in place of its earlier one."""
    table = tables.runners
    connection.execute(table.delete().where(table.c.name == runner.name))
    values = {
        "name": runner.name,
        "executor": runner.executor,
        "slots": msgspec.json.encode(runner.slots).decode(),
        "seen": runner.seen,
        "health": msgspec.json.encode(runner.health).decode(),
    }
    connection.execute(table.insert().values(values))
