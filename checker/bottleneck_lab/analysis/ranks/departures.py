"""When messages leave, against the backward pass whose gradients they carry."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.device.transfers import reduces
from bottleneck_lab.analysis.rows import named
from bottleneck_lab.analysis.steps.window import launch_times
from bottleneck_lab.trace.timeline import ActivityKind, Ints, Timeline, take

_BACKWARD = re.compile(r"^(?:#+ )?(?:loss\.?)?[_ ]?backward(?:[_ ]pass)?(?: #+)?$", re.IGNORECASE)


class Departures(msgspec.Struct, frozen=True):
    """Reducing messages that were launched in or after a marked backward, over all ranks: how many
    bytes, and how many of these left before that backward had ended on the device.
    """

    bytes: int
    early_bytes: int


def find_departures(timeline: Timeline) -> Departures | None:
    """Return when reducing messages left; None where no backward is marked, or no size known."""
    ranges, device = timeline.ranges, timeline.device
    marked = named(timeline, ranges, _BACKWARD) if len(ranges) else np.zeros(0, dtype=bool)
    if not marked.any():
        return None
    passes, reducing = take(ranges, marked), reduces(timeline)
    moved = early = 0
    for rank in np.unique(passes.rank).tolist():
        mine = passes.rank == rank
        begun, ended = passes.start[mine], passes.end[mine]
        sent = np.flatnonzero(reducing & (device.rank == rank))
        of_pass = np.searchsorted(begun, launch_times(timeline, sent), side="right") - 1
        sent, of_pass = sent[of_pass >= 0], of_pass[of_pass >= 0]
        done = _ends(timeline, rank, begun, ended)
        moved += int(device.bytes[sent].sum())
        early += int(device.bytes[sent][device.start[sent] < done[of_pass]].sum())
    return Departures(moved, early) if moved else None


def _ends(timeline: Timeline, rank: int, begun: Ints, ended: Ints) -> Ints:
    """Return when the kernels that each backward launched on a rank had ended, ns."""
    device = timeline.device
    kernels: NDArray[np.intp] = np.flatnonzero(
        (device.rank == rank) & (device.kind == ActivityKind.KERNEL)
    )
    launched = launch_times(timeline, kernels)
    at = np.searchsorted(begun, launched, side="right") - 1
    inside = (at >= 0) & (launched < ended[at])
    done = begun.copy()
    np.maximum.at(done, at[inside], device.end[kernels[inside]])
    return done
