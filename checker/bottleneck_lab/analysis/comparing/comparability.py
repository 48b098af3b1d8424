"""Conditions under which a capture was made, and what differs in them between two sides: another
GPU, other recording settings, another program, a busier machine.

A difference in the code can be told only where the rest is the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host.second_run import FRAMES_OF, SECOND_RUN
from bottleneck_lab.analysis.intervals import blocks
from bottleneck_lab.analysis.plateau import BUSY_CORES
from bottleneck_lab.analysis.steps.window import BATCH
from bottleneck_lab.trace.load import CODE, CORES, OTHER_CORES
from bottleneck_lab.trace.names import CALIBRATED, is_host_modelled
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceInfo,
    DeviceTable,
    HostTable,
    Timeline,
    devices_of,
)

Kind = Literal["device", "versions", "settings", "program", "load"]

# Two versions of a program share most of their operators or kernels by time; where less than this
# share (0-1) is common, they are taken for two programs. A compiled or fused version still has the
# step's ranges, the copies and the library's matrix kernels in common.
COMMON_SHARE = 0.1
# Drivers keep more or less of a device's memory for themselves; a slice has half or less.
SAME_MEMORY = 1.2

VERSIONS = {
    "cuda_driver_version": "CUDA driver",
    "cuda_runtime_version": "CUDA runtime",
    "hip_driver_version": "HIP driver",
    "hip_runtime_version": "HIP runtime",
}
"""Versions of the software below a program: their names in a capture's facts, and a reader's."""
_STACK = "Python frames (with_stack, `lab profile --stack`)"
# Settings by Kineto's name for them.
_STATED = {
    "with_stack": _STACK,
    "record_shapes": "shapes (record_shapes)",
    "profile_memory": "allocations (profile_memory)",
}


class Difference(msgspec.Struct, frozen=True):
    """Something beside the code that differs between two sides, as a sentence. `slows`: the side
    whose times it makes longer, where that is known, to `up_to` times as long.
    """

    kind: Kind
    sentence: str
    slows: Literal["", "before", "after"] = ""
    up_to: float = math.inf


class Load(NamedTuple):
    """How many cores other programs kept busy, and how many there are."""

    other_cores: float
    cores: int


class Size(NamedTuple):
    """A device's multiprocessors, and the bytes of its memory; 0 where not recorded."""

    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Conditions:
    """The devices of a capture (by name, with their number), its recording settings, its program's
    names with their summed time, ns, and how many ranks the program has (0: not stated).
    `calibrated_ns`: what a full batch takes on a device that was set by the machine's speed; 0 on
    any other. `load`: how much of the machine's cores other programs took; None where that is not
    known, or the host's times are modelled.
    """

    devices: dict[str, int]
    settings: frozenset[str]
    tool: str
    names: dict[str, int]
    world_size: int = 0
    calibrated_ns: int = 0
    sizes: dict[str, Size] = field(default_factory=dict)
    """By the devices' names, as far as they are recorded."""
    load: Load | None = None
    code: str = ""
    """The hash of a lab's code; empty elsewhere."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the software below the program, by the reader's names, as far as they are recorded."""


def format_version(version: str) -> str:
    """Return 12.8 for CUDA's 12080; any other version as it is."""
    if version.isdecimal() and 10_000 <= int(version) < 1_000_000:
        return f"{int(version) // 1000}.{int(version) % 1000 // 10}"
    return version


def find_conditions(timeline: Timeline) -> Conditions:
    """Return the conditions of a capture."""
    infos = _working(timeline)
    devices = Counter(
        info.name or _unnamed(info.compute_capability, info.multiprocessors) for info in infos
    )
    if timeline.emulated:
        devices = Counter({"emulated accelerator": len(infos) or 1})
    elif not devices:
        devices = Counter({"CPU": 1})
    # Kineto states a setting only where it is on. Frames are looked for, since other tools and
    # older releases do not state them; shapes and allocations may be on and leave nothing.
    recorded = {name for fact, name in _STATED.items() if timeline.facts.get(fact) in ("1", "True")}
    if len(timeline.python) and timeline.facts.get(FRAMES_OF) != SECOND_RUN:
        recorded.add(_STACK)
    device, operators = timeline.device, timeline.operators
    names = _times(device, device.kind == ActivityKind.KERNEL, timeline.strings)
    names += _times(operators, np.ones(len(operators), dtype=bool), timeline.strings)
    # A server's batches of other sizes are the same work.
    for name in [name for name in names if BATCH.search(name)]:
        names[BATCH.sub("batch", name)] += names.pop(name)
    return Conditions(
        dict(devices),
        frozenset(recorded),
        timeline.format,
        dict(names),
        timeline.world_size,
        calibrated_ns(timeline),
        {info.name: Size(info.multiprocessors, info.memory_bytes) for info in infos if info.name},
        _load(timeline),
        timeline.facts.get(CODE, ""),
        {
            name: format_version(timeline.facts[fact])
            for fact, name in VERSIONS.items()
            if fact in timeline.facts
        },
    )


def _load(timeline: Timeline) -> Load | None:
    cores = int(timeline.facts.get(CORES, 0))
    if not cores or is_host_modelled(timeline):
        return None
    return Load(float(timeline.facts[OTHER_CORES]), cores)


def _working(timeline: Timeline) -> list[DeviceInfo]:
    """Return the devices that compute, or all where none does: a process often touches the first
    device without using it.
    """
    kinds = timeline.device.kind
    computing = (kinds == ActivityKind.KERNEL) | (kinds == ActivityKind.COMMUNICATION)
    pairs = set(devices_of(timeline.device, computing))
    return [info for info in timeline.devices if not pairs or (info.rank, info.index) in pairs]


def calibrated_ns(timeline: Timeline) -> int:
    """Return what a full batch takes on a device that was set by the machine's speed; 0 on any
    other.
    """
    calibrated = timeline.facts.get(CALIBRATED, "0")
    return int(calibrated) if calibrated.isdecimal() else 0


def _unnamed(capability: str, multiprocessors: int) -> str:
    """Return what tells a GPU whose name was not recorded; empty where nothing does."""
    parts = [f"compute capability {capability}"] if capability else []
    if multiprocessors:
        parts += [f"{multiprocessors} multiprocessors"]
    return f"a GPU with {' and '.join(parts)}" if parts else ""


def _times(
    table: DeviceTable | HostTable, mask: NDArray[np.bool_], strings: Sequence[str]
) -> Counter[str]:
    """Return the summed time of the masked rows by name, ns."""
    sums = np.zeros(len(strings))
    for rows in blocks(len(table)):
        lengths = np.where(mask[rows], table.end[rows] - table.start[rows], 0)
        sums += np.bincount(table.name[rows], weights=lengths, minlength=len(strings))
    return Counter({strings[at]: int(sums[at]) for at in np.flatnonzero(sums).tolist()})


def find_differences(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    """Return what differs between two sides beside the code, devices first."""
    return [
        *_devices(before, after),
        *_versions(before, after),
        *_settings(before, after),
        *_programs(before, after),
        *_loads(before, after),
    ]


def is_same_code(captures: Iterable[Conditions]) -> bool:
    """Return True if all captures are known to be of the same code."""
    codes = {each.code for each in captures}
    return len(codes) == 1 and "" not in codes


def _devices(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    old, new = (_joined(each.devices for each in side) for side in (before, after))
    unnamed = ["" in side for side in (old, new)]
    # Where one side does not say which GPU it ran on, only the number can differ.
    if any(unnamed) and "CPU" not in (*old, *new):
        old, new = ({"": sum(side.values())} for side in (old, new))
    if old == new and not all(unnamed) and any(unnamed):
        side = "before" if unnamed[0] else "after"
        return [Difference("device", f"the GPU of {side} was not recorded, and may be another")]
    if old == new:
        return _slices(before, after) or _world_sizes(before, after)
    called = "the GPUs differ"
    if "CPU" in (*old, *new) or "emulated accelerator" in (*old, *new):
        called = "the devices differ"
    devices = Difference("device", f"{called}: {_listed(old)} before, {_listed(new)} after")
    return [devices, *_world_sizes(before, after)]


def _slices(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    """Return a difference where GPUs of one name are of different sizes, as slices of one are."""
    old, new = (
        {name: size for each in side for name, size in each.sizes.items()}
        for side in (before, after)
    )
    for name in sorted(old.keys() & new.keys()):
        processors, memory = zip(old[name], new[name], strict=True)
        parts = []
        if 0 not in processors and processors[0] != processors[1]:
            parts.append("{} multiprocessors before, {} after".format(*processors))
        if 0 not in memory and max(memory) > SAME_MEMORY * min(memory):
            sizes = [f"{size / 1e9:.3g} GB" for size in memory]
            parts.append("{} of memory before, {} after".format(*sizes))
        if parts:
            sentence = (
                f"the GPUs differ, like slices of one (MIG): {name} with {' and '.join(parts)}"
            )
            return [Difference("device", sentence)]
    return []


def _world_sizes(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    """Return a difference where the programs have other numbers of ranks. One that states none has
    but one, as a rule.
    """
    old, new = (sorted({each.world_size for each in side}) for side in (before, after))
    if {max(size, 1) for size in old} == {max(size, 1) for size in new}:
        return []
    sizes = [", ".join(str(size or "none stated") for size in side) for side in (old, new)]
    sentence = f"the programs' numbers of ranks differ: {sizes[0]} before, {sizes[1]} after"
    return [Difference("device", sentence)]


def _versions(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    """Return a difference where other versions of CUDA or HIP were below the program."""
    sides = [
        {name: version for each in side for name, version in each.versions.items()}
        for side in (before, after)
    ]
    parts = [
        f"{name} {sides[0][name]} before, {sides[1][name]} after"
        for name in VERSIONS.values()
        if all(name in side for side in sides) and sides[0][name] != sides[1][name]
    ]
    return [Difference("versions", f"the software differs: {'; '.join(parts)}")] if parts else []


def _joined(sides: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the devices of one capture of a side: repeated ones run on the same."""
    merged: dict[str, int] = {}
    for devices in sides:
        for name, count in devices.items():
            merged[name] = max(count, merged.get(name, 0))
    return merged


def _listed(devices: dict[str, int]) -> str:
    return ", ".join(
        f"{count} x {name or 'GPU'}" if count > 1 or not name else name
        for name, count in devices.items()
    )


def _settings(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    old, new = (frozenset().union(*(each.settings for each in side)) for side in (before, after))
    tools = [sorted({each.tool for each in side}) for side in (before, after)]
    settings = []
    if tools[0] != tools[1]:
        settings.append(f"{', '.join(tools[0])} before, {', '.join(tools[1])} after")
    settings += [f"{name} only before" for name in sorted(old - new)]
    settings += [f"{name} only after" for name in sorted(new - old)]
    if not settings:
        return []
    return [
        Difference(
            "settings",
            f"they were recorded with different settings, whose cost is in the times:"
            f" {'; '.join(settings)}",
        )
    ]


def _programs(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    old, new = (_shares(side) for side in (before, after))
    if not old or not new:
        return []
    common = sum(min(share, new.get(name, 0.0)) for name, share in old.items())
    if common >= COMMON_SHARE:
        return []
    most = [max(side, key=lambda name: side[name]) for side in (old, new)]
    return [
        Difference(
            "program",
            f"they look like two programs: {common:.0%} of their operators and kernels are common"
            f" (mostly {most[0]} before, {most[1]} after)",
        )
    ]


def _loads(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    """Return a difference where other programs took more of the machine on one side. What needs
    all cores then takes up to as many times as long as the other side had more of them left.
    """
    loads = [[each.load for each in side if each.load] for side in (before, after)]
    if not all(loads):
        return []
    old, new = (sum(load.other_cores for load in side) / len(side) for side in loads)
    if abs(old - new) <= BUSY_CORES:
        return []
    cores = loads[0][0].cores
    # A fair scheduler leaves even a single thread half a core beside others.
    left = [max(0.5, cores - other) for other in (old, new)]
    return [
        Difference(
            "load",
            f"other programs kept {old:.1f} of {cores} cores busy before and {new:.1f} after",
            slows="after" if new > old else "before",
            up_to=max(left) / min(left),
        )
    ]


def _shares(side: Sequence[Conditions]) -> dict[str, float]:
    times: Counter[str] = Counter()
    for conditions in side:
        times.update(conditions.names)
    whole = sum(times.values())
    return {name: time / whole for name, time in times.items()} if whole else {}
