"""Messages between a runner on another machine and the cohort's server, as JSON."""

from __future__ import annotations

import msgspec

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.running.dispatch import Beat, Work
from bottleneck_lab.cohort.running.job import Result
from bottleneck_lab.cohort.running.leases import Lease
from bottleneck_lab.cohort.running.queue_order import Waiting
from bottleneck_lab.cohort.running.workers import RunnerStatus

MAX_RUNNER_BYTES = 64 << 20
"""Limit of one message either way: a capture in Base64, and a verdict."""


class Register(msgspec.Struct, frozen=True):
    """A runner starts, with the version of its checker."""

    status: RunnerStatus
    version: str


class Registered(msgspec.Struct, frozen=True):
    """Leases that a runner of that name still holds."""

    leases: list[Lease]


class SignOfLife(msgspec.Struct, frozen=True):
    """A runner's status, and the nonces of its leases."""

    status: RunnerStatus
    nonces: list[str]


class Next(msgspec.Struct, frozen=True):
    """A question for what is next on these devices."""

    runner: str
    devices: list[Device]


class Offer(msgspec.Struct, frozen=True):
    """The submission that is next, None if there is none."""

    waiting: Waiting | None


class Claim(msgspec.Struct, frozen=True):
    """A request for a lease on the submission of that number, in a slot that is free for it."""

    runner: str
    devices: list[Device]
    id: int
    slot: str


class Claimed(msgspec.Struct, frozen=True):
    """The lease and what is measured; None if somebody else was faster."""

    work: Work | None


class GiveUp(msgspec.Struct, frozen=True):
    """A lease ends without a verdict."""

    runner: str
    nonce: str
    why: str
    blame: bool


class Conclusion(msgspec.Struct, frozen=True):
    """The result of a lease, measured by a job of that user."""

    runner: str
    nonce: str
    result: Result
    user: str


class Leave(msgspec.Struct, frozen=True):
    """A runner has stopped."""

    runner: str


class Done(msgspec.Struct, frozen=True):
    """The message was dealt with."""


Reply = Beat | Claimed | Done | Offer | Registered
