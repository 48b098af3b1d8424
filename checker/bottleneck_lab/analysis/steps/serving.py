"""The batches in a batch server's capture: how large they were, how they followed each other, and
what the host did for each.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.rows import named, union_of
from bottleneck_lab.analysis.steps.figures import Series, Stretches
from bottleneck_lab.analysis.steps.window import BATCH, Window, batch_rows
from bottleneck_lab.trace.timeline import Ints, Timeline

_PARTS = ("queue", "preprocess", "h2d", "infer", "postprocess")
MOST_STRETCHES = 30
"""A stretch of several batches varies less than one alone."""


class PartUse(msgspec.Struct, frozen=True):
    """A part of the work for batches, on all threads: time of it for each batch, and the share
    (0-1) of its time in which the device was at work.
    """

    name: str
    batch_ns: int
    beside_device_share: float


class ServingUse(msgspec.Struct, frozen=True):
    """A device's batches. `sizes`: how many batches had how many images; `batch_ns`, `gap_ns`:
    medians of a batch and of the pause after one.
    """

    batches: int
    images_per_s: float
    sizes: list[tuple[int, int]]
    batch_ns: int
    gap_ns: int
    idle_share: float
    parts: list[PartUse]

    @property
    def mean_images(self) -> float:
        """Images in a batch, on average."""
        return sum(size * count for size, count in self.sizes) / self.batches

    @property
    def unpaused_images_per_s(self) -> float:
        """Images/s if a batch followed every batch at once: by Little's law those on the device,
        over the time that it takes for them.
        """
        return self.mean_images * 1e9 / max(1, self.batch_ns)


def find_serving(timeline: Timeline, window: Window) -> ServingUse | None:
    """Return what the rows named `… (batch N)` show, where the host has marked what it did for
    them; None if no batches were served.
    """
    batches = _find_batches(timeline, window)
    if batches is None:
        return None
    start, end, sizes = batches
    span_ns = int(end[-1] - start[0])
    busy = iv.union(start, end)
    images, counts = np.unique(sizes, return_counts=True)
    return ServingUse(
        batches=len(start),
        # From the end of the first batch on: what was done before the capture is not in it.
        images_per_s=float(sizes[1:].sum()) * 1e9 / max(1, int(end[-1] - end[0])),
        sizes=list(zip(images.tolist(), counts.tolist(), strict=True)),
        batch_ns=int(np.median(end - start)),
        gap_ns=int(np.median(np.maximum(0, start[1:] - end[:-1]))),
        idle_share=1 - busy.total / max(1, span_ns),
        parts=[part for name in _PARTS if (part := _part(timeline, name, end, busy))],
    )


def find_batch_figures(timeline: Timeline, window: Window) -> Series:
    """Return by figure a sample a batch, ns: ("step", "image"), the time from the end of the batch
    before to its own, for each of its images, and ("step", "batch"), its time on the device, but
    not of the first and the last, which the recording may cut off. Empty if no batches were served.
    """
    batches = _find_batches(timeline, window)
    if batches is None:
        return {}
    start, end, sizes = batches
    return {
        ("step", "image"): np.diff(end) / sizes[1:],
        ("step", "batch"): (end - start)[1:-1].astype(np.float64),
    }


def find_stretches(timeline: Timeline, window: Window) -> Stretches | None:
    """Return stretches of as many batches each, from the end of a batch to that of another; None if
    no batches were served.
    """
    batches = _find_batches(timeline, window)
    if batches is None:
        return None
    order = np.argsort(batches[1], kind="stable")
    ends, sizes = batches[1][order], batches[2][order]
    count = min(MOST_STRETCHES, len(ends) - 1)
    at = np.linspace(0, len(ends) - 1, count + 1).astype(np.int64)
    images = np.add.reduceat(sizes[1:], at[:-1])
    return Stretches(ends[at], images)


def _find_batches(timeline: Timeline, window: Window) -> tuple[Ints, Ints, Ints] | None:
    """Return start, end and images of every batch on the device, in order."""
    device, rows = timeline.device, batch_rows(timeline)
    rows = rows[device.start[rows] >= window.start]
    if not len(rows):
        return None
    size_of = {
        name: int(match[1])
        for name in np.unique(device.name[rows]).tolist()
        if (match := BATCH.search(timeline.strings[name]))
    }
    sizes = np.array([size_of[int(name)] for name in device.name[rows]], dtype=np.int64)
    return device.start[rows], device.end[rows], sizes


def _part(timeline: Timeline, name: str, end: Ints, busy: iv.Intervals) -> PartUse | None:
    mask = named(timeline, timeline.ranges, re.compile(f"^{name}$"))
    if not mask.any():
        return None
    ranges = timeline.ranges
    # From the end of the first batch on: what was done for it may not be in the capture.
    lengths = np.minimum(ranges.end[mask], end[-1]) - np.maximum(ranges.start[mask], end[0])
    total = int(np.maximum(0, lengths).sum())
    covered = iv.clip(union_of(ranges, mask), int(end[0]), int(end[-1]))
    beside = iv.intersect(covered, busy).total / covered.total if covered.total else 0.0
    return PartUse(name, total // max(1, len(end) - 1), beside)
