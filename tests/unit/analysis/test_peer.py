"""Agreement with Holistic Trace Analysis 0.6.1 on real captures, counted in its own way.

The figures were read off the peer itself. Its way differs from ours on purpose (test_right.py shows
where ours is right): times are rounded inwards to µs, device rows are kept only when a host row
with their correlation starts before the last ProfilerStep, the window runs from the first device
row to the last, and waits drawn on a stream count as busy.
"""

import json

import numpy as np
import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.trace import ActivityKind
from bottleneck_lab.trace.timeline import Timeline, take

from ...captures import recorded_capture

PEER = {
    "hta_a100_16ranks_rank0": (705853, 143836, 166865),
    "hta_a100x2_nccl": (338781, 75169, 21636),
    "hta_simple_add_sync": (16414376, 10670, 39293),
    "hta_world128_rank0": (321378, 106252, 172428),
    "hta_world128_rank1": (328671, 135548, 136455),
    "kineto_v100_resnet50_workers0": (327463, 492891, 10140),
    "kineto_v100_resnet50_workers4": (164699, 495912, 16562),
    "tracelens_h100_bert_small": (3653, 252, 2),
    "tracelens_h100_vit": (6491, 1065, 3),
    "tracelens_mi210_gpu_only": (1199, 4780, 0),
}
"""(idle, compute, non-compute) µs of `get_temporal_breakdown`."""


def as_the_peer_counts(timeline: Timeline) -> tuple[int, int, int]:
    """(idle, compute, non-compute) µs."""
    device = timeline.device
    steps = [i for i, name in enumerate(timeline.strings) if name.startswith("ProfilerStep")]
    starts = timeline.ranges.start[np.isin(timeline.ranges.name, steps)]
    if len(starts) > 1:
        known = timeline.runtime.correlation[timeline.runtime.start < starts.max()]
        device = take(device, np.isin(device.correlation, known))
    start, end = -(-device.start // 1000), device.end // 1000
    compute = device.kind == ActivityKind.KERNEL
    busy = iv.union(start, end)
    computing = iv.union(start[compute], end[compute])
    whole = int(end.max() - start.min())
    return whole - busy.total, computing.total, busy.total - computing.total


@pytest.mark.parametrize("name", PEER)
def test_the_temporal_breakdown_agrees(name):
    timeline = load(recorded_capture(f"{name}.json.gz"))
    assert as_the_peer_counts(timeline) == PEER[name]


@pytest.mark.parametrize("name", PEER)
def test_our_figures_add_up_on_real_captures(name):
    summary = summarise(load(recorded_capture(f"{name}.json.gz")))
    for use in summary.devices:
        assert (
            sum(part.idle_ns for part in use.gap_causes) == use.idle_ns == use.wall_ns - use.busy_ns
        )
        assert use.compute_ns + use.exposed_communication_ns + use.exposed_copy_ns == use.busy_ns
    assert json.dumps([finding.id for finding in summary.findings])


def test_resnet_waits_for_its_loader_without_workers_and_not_with_four():
    alone, helped = (
        summarise(load(recorded_capture(f"kineto_v100_resnet50_workers{n}.json.gz")))
        for n in (0, 4)
    )
    assert alone.findings[0].id == "input-starved"
    assert "input-starved" not in {finding.id for finding in helped.findings}


def test_nsys_kernel_times_are_the_exports_own():
    """Summed durations by device as SQL gives them on the same file."""
    timeline = load(recorded_capture("nsysai_h100_2gpu_1s.sqlite.gz"))
    kernels = take(
        timeline.device,
        (timeline.device.kind == ActivityKind.KERNEL)
        | (timeline.device.kind == ActivityKind.COMMUNICATION),
    )
    sums = {d: int((kernels.end - kernels.start)[kernels.device == d].sum()) for d in (0, 1)}
    assert (len(kernels), sums) == (3442, {0: 22385163, 1: 22444359})
    assert not summarise(timeline).quality.reliable, (
        "half of its launches have their kernels outside the second that was recorded"
    )
