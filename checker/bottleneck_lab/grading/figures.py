"""The figures of a capture that a lab's questions ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.causes import CAUSES, OUTSIDE
from bottleneck_lab.analysis.steps.window import Window

if TYPE_CHECKING:
    from bottleneck_lab.analysis.device.use import DeviceUse
    from bottleneck_lab.analysis.memory.growth import MemoryUse
    from bottleneck_lab.analysis.summary import Summary

_PARTS = (
    "busy",
    "idle",
    "compute",
    "communication",
    "copy",
    "exposed_communication",
    "exposed_copy",
)

FIGURES = (
    *(f"{part}_share" for part in (*_PARTS, "overlap", "top_operator", "data_wait")),
    *(f"idle_{cause}_share" for cause in CAUSES),
    "idle_line_share",
    "largest_message_share",
    "longest_line_share",
    "host_wait_share",
    "longest_wait_saving_share",
    "waiting_line_share",
    "interrupted_share",
    "largest_gain_ratio",
    "memory_growth_ratio",
    "memory_growth_share",
    "peak_over_start_ratio",
    "unpaused_images_per_s",
)
"""Every name that `figures_of` may give, but for `<range>_share` of the ranges that a workload
marks.
"""


class CaptureFigures(NamedTuple):
    """The learner's capture, for checking answers: its figures, its length, the figures of any
    stretch of it, and the length of its longest gap.
    """

    figures: Mapping[str, float]
    span_ns: int
    within: Callable[[Window], Mapping[str, float]]
    longest_gap_ns: int = 0


def figures_of(summary: Summary) -> dict[str, float]:
    """Return what a capture shows, as the numbers that a question's `from_capture` may name: shares
    of the wall time (0–1; from the first work to the last where no steps are marked) and ratios.
    A figure that the capture cannot show is missing.

    - `<range>_share` for every marked range; `data_wait_share` is `data_share`'s other name.
    - Over all devices together: `busy_share`, `idle_share`, `compute_share`,
      `communication_share`, `copy_share`, `exposed_communication_share`, `exposed_copy_share`,
      `overlap_share`, `idle_<cause>_share`, and `largest_message_share`, exposed communication in
      messages of the largest size.
    - `longest_line_share`, in which the host is on the line that takes it longest, and
      `idle_line_share`, in which it is on one line, operator or range while a device is idle.
    - `host_wait_share`, in which the host waits for the device; `waiting_line_share`, in which it
      is on the line that waits longest (or in the operator or call, where no lines were recorded),
      waiting or not; `longest_wait_saving_share`, by how much the program would be shorter without
      that line alone.
    - `interrupted_share`, by which kernels took longer than the same ones in other steps.
    - `top_operator_share`, the largest operator's share of all operators' own time.
    - `largest_gain_ratio`, the most that removing the costliest finding can bring, where every
      finding states its gain.
    - `memory_growth_share`, the share of a device's peak that the steps but the last have added;
      `memory_growth_ratio`, how many times less its peak would be without that;
      `peak_over_start_ratio`, its peak over what was allocated at its first record.
    - `unpaused_images_per_s`, what a server's device would answer if it never paused between
      batches.
    """
    figures = {f"{name}_share": share for name, share in summary.range_shares.items()}
    if "data_share" in figures:
        figures["data_wait_share"] = figures["data_share"]
    figures |= _device_figures(summary.devices)
    figures |= _wait_figures(summary)
    figures |= _memory_figures(summary.memory)
    if summary.longest_line_share:
        figures["longest_line_share"] = summary.longest_line_share
    if summary.waiting_line_share:
        figures["waiting_line_share"] = summary.waiting_line_share
    if summary.longest_wait_gain:
        figures["longest_wait_saving_share"] = 1 - 1 / summary.longest_wait_gain
    time = sum(use.working_ns for use in summary.devices)
    if summary.collectives and time:
        largest = max(row.bytes for row in summary.collectives)
        exposed_ns = sum(row.exposed_ns for row in summary.collectives if row.bytes == largest)
        figures["largest_message_share"] = exposed_ns / time
    own_ns = [row.self_ns if summary.cpu_only else row.device_self_ns for row in summary.operators]
    if sum(own_ns):
        figures["top_operator_share"] = max(own_ns) / sum(own_ns)
    if summary.findings:
        in_time = [finding for finding in summary.findings if finding.share_of_wall > 0]
        gains = [finding.expected_gain_ratio for finding in in_time]
        if all(gains):
            figures["largest_gain_ratio"] = max([1.0, *gains])
    if summary.serving:
        figures["unpaused_images_per_s"] = summary.serving.unpaused_images_per_s
    return figures


def _wait_figures(summary: Summary) -> dict[str, float]:
    wall_ns = sum(use.wall_ns for use in summary.devices)
    if not wall_ns:
        return {}
    shares = {finding.id: finding.share_of_wall for finding in summary.findings}
    return {
        "host_wait_share": sum(row.total_ns for row in summary.syncs) / wall_ns,
        "interrupted_share": shares.get("interrupted-kernels", 0.0),
    }


def _memory_figures(memory: Sequence[MemoryUse]) -> dict[str, float]:
    """Return memory's growth, and its peak over its start, each of the device where it is most."""
    if not memory:
        return {}
    grown = [use.growth_bytes_per_step * (use.steps - 1) / max(use.peak_bytes, 1) for use in memory]
    grown_share = min(max(0.0, *grown), 1.0)
    return {
        "memory_growth_share": grown_share,
        "memory_growth_ratio": ceiling(grown_share),
        "peak_over_start_ratio": max(use.peak_bytes / max(use.first_bytes, 1) for use in memory),
    }


def _device_figures(devices: Sequence[DeviceUse]) -> dict[str, float]:
    # Start-up and end lie outside of the time that a question is about: they count neither as time
    # nor as idle.
    time = sum(use.working_ns for use in devices)
    if not time:
        return {}
    outside = sum(use.wall_ns for use in devices) - time
    shares = {
        f"{part}_share": sum(getattr(use, f"{part}_ns") for use in devices) / time
        for part in _PARTS
    }
    shares["idle_share"] -= outside / time
    for cause in (
        cause for use in devices for cause in use.gap_causes if cause.cause not in OUTSIDE
    ):
        key = f"idle_{cause.cause}_share"
        shares[key] = shares.get(key, 0.0) + cause.idle_ns / time
    idle_in = Counter[str]()
    for use in devices:
        for cause in use.gap_causes:
            idle_in.update(dict(cause.inside))
    shares["idle_line_share"] = max(idle_in.values(), default=0) / time
    sent, exposed = shares["communication_share"], shares["exposed_communication_share"]
    return {**shares, "overlap_share": 1 - exposed / sent if sent else 1.0}
