"""The evidence that findings are drawn from, and what a detector says when it finds something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.causes import Cause
from bottleneck_lab.analysis.counters.roofline import RooflineRow
from bottleneck_lab.analysis.device.kernels import Interruptions, KernelRow, LaunchUse
from bottleneck_lab.analysis.device.transfers import CopyRow
from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.analysis.host.lines import LineRow
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.host.workers import LoaderUse
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.ranks.collectives import CollectiveWaits, LateRank
from bottleneck_lab.analysis.ranks.departures import Departures
from bottleneck_lab.analysis.ranks.stragglers import Straggler
from bottleneck_lab.analysis.steps.serving import ServingUse
from bottleneck_lab.analysis.what_if.gain import WhatIf
from bottleneck_lab.analysis.what_if.removal import Removal

Bound = Literal[
    "input-bound",
    "launch-bound",
    "synchronisation-bound",
    "allocation-bound",
    "copy-bound",
    "communication-bound",
    "straggler",
    "compute-bound",
    "memory-bound",
    "memory-growth",
    "host-bound",
    "shared-device",
]

IDLE_SHARE = 0.10
"""Idle time of one cause below this share of the time is not worth an engineer's day."""
NEARLY_ALL = 0.9
"""A line with this share of a finding's time is what the finding's gain is about."""


class Evidence(msgspec.Struct, frozen=True):
    """Everything the detectors look at."""

    devices: list[DeviceUse]
    operators: list[OperatorRow] = []
    kernels: list[KernelRow] = []
    copies: list[CopyRow] = []
    syncs: list[SyncRow] = []
    launches: list[LaunchUse] = []
    memory: list[MemoryUse] = []
    stragglers: list[Straggler] = []
    step_ns: list[int] = []
    driver_calls: dict[str, int] = {}
    """How often the host asked the driver for memory or gave it back, by the calls' names."""
    modelled_host: bool = False
    step_launches: list[int] = []
    """How many kernels each step launches, or on a CPU how many operators it calls."""
    settled_ns: list[int] = []
    """The steps' times without what a recording's first holds of the start-up, and of work that was
    queued before it.
    """
    steps: int = 0
    wall_ns: int = 0
    interruptions: Interruptions = Interruptions(0, 0)
    lines: list[LineRow] = []
    serving: ServingUse | None = None
    collective_waits: CollectiveWaits | None = None
    departures: Departures | None = None
    """When gradients left, where backwards are marked and sizes recorded."""
    what_if: WhatIf | None = None
    """None where there is nothing to replay: a CPU's operators take turns anyway."""
    loader: LoaderUse | None = None
    """A data loader with worker processes, where there is one."""
    world_size: int = 0
    """How many ranks the program has; 0 where the capture does not state it."""
    compute_capabilities: dict[tuple[int, int], float] = {}
    """By (rank, device), where the capture states it: 9.0 for Hopper."""
    double_rows: list[RooflineRow] = []
    """Operators on double tensors, where types were recorded."""

    @property
    def time_ns(self) -> int:
        """The time that shares are of, over all devices, ns; 1 if there is none.

        A program's start-up and end are no part of its loop.
        """
        return sum(use.working_ns for use in self.devices) or 1

    @property
    def ranks(self) -> int:
        """How many ranks were recorded."""
        return len({use.rank for use in self.devices})

    @property
    def emulated(self) -> bool:
        """True if a device is emulated: a GPU's compilers and decoders don't exist there."""
        return any(use.emulated for use in self.devices)

    @property
    def on_cpu(self) -> bool:
        """True if the capture has no accelerator, so that the CPU stands in for one."""
        return bool(self.devices) and all(use.is_cpu for use in self.devices)

    def gain(self, removal: Removal | None, share: float) -> float:
        """Return how many times as fast the program can be at most without what is removed.

        By its dependencies where these were recorded; else by Amdahl's law for the share (0–1) of
        the time, which is exact where everything takes turns.
        """
        # A replay knows what would then hold the program up instead; Amdahl's law does not.
        bound = None
        if self.what_if is not None and removal is not None:
            bound = self.what_if.gain(removal)
        return ceiling(share) if bound is None else bound

    def idle_share(self, cause: Cause) -> float:
        """Return the share (0–1) of the time in which the devices were idle for this cause, or
        waited in a collective for a rank that was.
        """
        idle = self.waited_for(cause)
        for use in self.devices:
            idle += sum(part.idle_ns for part in use.gap_causes if part.cause == cause)
        return idle / self.time_ns

    def line_of(self, cause: Cause) -> str:
        """Return a sentence that names the user's own lines that ran while devices were idle for
        this cause; empty where these are not known.
        """
        parts = [
            part
            for use in self.devices
            for part in use.gap_causes
            if part.cause == cause and part.line
        ]
        if not parts:
            return ""
        return f" Most of that is in {max(parts, key=lambda part: part.idle_ns).line}."

    def names_a_part(self, cause: Cause) -> bool:
        """Return True if `line_of` names a line, and others have a good part of that time."""
        parts = [part for use in self.devices for part in use.gap_causes if part.cause == cause]
        longest = max(parts, key=lambda part: part.idle_ns, default=None)
        if longest is None or not longest.line or longest.places < 2:
            return False
        named_ns = sum(dict(part.inside).get(longest.line, 0) for part in parts)
        return named_ns < NEARLY_ALL * sum(part.idle_ns for part in parts)

    @property
    def late(self) -> list[LateRank]:
        """Who was waited for in collectives, longest first; empty where they were not matched."""
        return self.collective_waits.late if self.collective_waits else []

    def waited_for(self, *doings: str) -> int:
        """Return the time in which ranks waited for one that did one of these, ns."""
        return sum(row.waiting_ns for row in self.late if row.doing in doings)

    def waiting_share(self, late: Sequence[LateRank]) -> float:
        """Return the share (0–1) of the time of the rank that takes longest for which a rank waits,
        on average, for those that are late in these ways.
        """
        longest_ns = self.collective_waits.longest_ns if self.collective_waits else 0
        # The others wait at the same time: without the late rank, all would be done sooner by what
        # one of them waits.
        waiting_ns = sum(row.waiting_ns for row in late) / max(self.ranks - 1, 1)
        return waiting_ns / longest_ns if longest_ns else 0.0

    def removable_share(self, late: Sequence[LateRank]) -> float:
        """Return the share (0–1) of that time which all would save if nobody were late in these
        ways: the busiest rank's own work stays.
        """
        waits = self.collective_waits
        if waits is None or not waits.longest_ns:
            return 0.0
        return min(self.waiting_share(late), 1 - waits.least_ns / waits.longest_ns)


class Detection(msgspec.Struct, frozen=True):
    """A detector's result: a sentence of evidence, and the share (0–1) of the time that it costs.

    `title` and `advice` go before those of the finding's row where this capture needs others;
    `where` completes the title.
    """

    evidence: str
    share: float
    title: str = ""
    advice: str = ""
    where: str = ""
    removal: Removal | None = None
    """What a complete fix takes away, for the largest possible gain; None: the share of the time.
    """
    of_all: bool = False
    """True if the evidence names one line, and others cost a good part of the time, too."""
    shared_out: float = 0.0
    """The share that a fix takes away which leaves all work to be done and spreads it evenly over
    the ranks; 0 where the time is not a rank's.
    """
