"""Runners as they last reported themselves, and how many checks they can do at once."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.errors import MachineError

SILENT_S = 30.0
"""A runner silent for this long counts as gone."""
FORGOTTEN_S = 3600.0
"""And is no longer listed after this long."""


class Slot(msgspec.Struct, frozen=True):
    """Room for one check at a time, and what is measured there now (a submission's handle).

    Runners report names alone: what is measured is what the leases in the database say.
    """

    name: str
    busy: str | None = None


class RunnerStatus(msgspec.Struct, frozen=True):
    """A runner as it last reported itself. `seen` in seconds since the epoch.

    `machine` tells machines apart; empty for a cluster, whose nodes nobody else uses. `missing` are
    data sets that are not on that machine.
    """

    name: str
    executor: str
    slots: list[Slot]
    seen: float
    health: dict[str, str]
    machine: str = ""
    missing: list[str] = []

    def alive(self, now: float) -> bool:
        """Return True if it has been heard from lately."""
        return now - self.seen < SILENT_S

    def lacks_for(self, lab: str) -> list[str]:
        """Return the data sets that a lab needs and that are not on this machine."""
        known = load_labs().get(lab)  # None if this installation has no such lab
        return [name for name in self.missing if known and name in known.spec.datasets]


def load_runners(connection: Connection) -> list[RunnerStatus]:
    """Return every runner that has reported and was not stopped, by name."""
    leases, submissions = tables.leases, tables.submissions
    active = (
        select(leases.c.runner, leases.c.slot, submissions.c.handle)
        .join(submissions, submissions.c.id == leases.c.submission)
        .where(leases.c.state == "active")
    )
    busy = {(row.runner, row.slot): row.handle for row in connection.execute(active)}
    rows = connection.execute(select(tables.runners).order_by(tables.runners.c.name))
    return [
        RunnerStatus(
            row.name,
            row.executor,
            [
                Slot(slot.name, busy.get((row.name, slot.name)))
                for slot in msgspec.json.decode(row.slots, type=list[Slot])
            ],
            row.seen,
            msgspec.json.decode(row.health, type=dict[str, str]),
            row.machine,
            msgspec.json.decode(row.missing, type=list[str]),
        )
        for row in rows
    ]


def report_status(connection: Connection, runner: RunnerStatus) -> None:
    """Store a runner's status in place of its earlier one; runners gone for long are forgotten."""
    table = tables.runners
    forget = (table.c.name == runner.name) | (table.c.seen < runner.seen - FORGOTTEN_S)
    connection.execute(table.delete().where(forget))
    values = {
        "name": runner.name,
        "executor": runner.executor,
        "slots": msgspec.json.encode(runner.slots).decode(),
        "seen": runner.seen,
        "health": msgspec.json.encode(runner.health).decode(),
        "machine": runner.machine,
        "missing": msgspec.json.encode(runner.missing).decode(),
    }
    connection.execute(table.insert().values(values))


def require_useful(connection: Connection, runner: RunnerStatus) -> None:
    """Raise MachineError for a runner that could measure nothing that others do not already.

    All slots of one machine share its locks, so a second runner there would only wait. Raises it as
    well for a name that another machine's runner has: each would take over the other's work.
    """
    others = [
        other
        for other in load_runners(connection)
        if other.alive(runner.seen) and runner.machine and other.machine
    ]
    for other in others:
        if other.name == runner.name and other.machine != runner.machine:
            raise MachineError(
                f"A runner called '{runner.name}' is working on another machine.",
                "Choose another name with --name.",
            )
    same = [other for other in others if other.machine == runner.machine]
    taken = {slot.name for other in same for slot in other.slots if other.name != runner.name}
    if runner.slots and {slot.name for slot in runner.slots} <= taken:
        names = " and ".join(sorted(other.name for other in same if other.name != runner.name))
        raise MachineError(
            f"A second runner on this machine cannot help: {names} already measures in all of its"
            " slots.",
            "Start it on another machine with --server and --token, or stop the other one.",
        )


def leave(connection: Connection, name: str) -> None:
    """Forget a runner that was stopped."""
    connection.execute(tables.runners.delete().where(tables.runners.c.name == name))
