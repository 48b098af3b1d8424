"""Settings of the whole cohort."""

from __future__ import annotations

from typing import Literal

import msgspec
from sqlalchemy import Connection, select, update

from bottleneck_lab.cohort.store import tables

Scoring = Literal["best", "latest"]
"""The submission that counts: the best after late penalties, or the latest that was decided."""


class LatePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of a submission after the due date.

    `per_day` (0–1) of the points for each day begun, at most `most` (0–1), and nothing within
    `grace_s` seconds.
    """

    per_day: float = 0.1
    most: float = 0.5
    grace_s: float = 600.0


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of a criterion of each kind in partial credit, against the others of its lab.

    `answers_alone`: a right diagnosis earns its part before the code beats the shipped one.
    """

    correctness: float = 1.0
    target: float = 1.0
    mechanism: float = 1.0
    diagnosis: float = 1.0
    answers_alone: bool = False


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings, with their defaults."""

    paused: bool = False
    roster_only: bool = False
    leaderboard: bool = True
    max_waiting: int = 3
    min_interval_s: float = 5.0
    job_limit_s: float = 900.0
    lease_s: float = 60.0
    max_failures: int = 3
    late: LatePolicy = LatePolicy()
    partial_credit: bool = True
    weights: Weights = Weights()
    scoring: Scoring = "best"
    labs: list[str] | None = None
    """The workshop's labs in their order; None for the whole course."""
    timezone: str = "UTC"
    """The instructor's, by its IANA name: dates are typed and shown in it."""


def load_settings(connection: Connection) -> Settings:
    """Return the cohort's settings as they are now."""
    return msgspec.json.decode(
        connection.execute(select(tables.cohort.c.settings)).scalar_one(), type=Settings
    )


def change_settings(connection: Connection, **changes: object) -> Settings:
    """Change some settings and return all.

    Raises msgspec.ValidationError for a value of another type.
    """
    fields = {**msgspec.to_builtins(load_settings(connection)), **changes}
    settings = msgspec.convert(fields, Settings)
    connection.execute(
        update(tables.cohort).values(settings=msgspec.json.encode(settings).decode())
    )
    return settings
