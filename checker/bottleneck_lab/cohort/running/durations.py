"""How long checks take: a table by lab and device that every runner keeps on its machine."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec

from bottleneck_lab.catalog import Device
from bottleneck_lab.workspace.atomic import write_bytes
from bottleneck_lab.workspace.folder import read_json
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.lock import locked

KEPT = 50
"""Durations that are kept of each lab and device, the latest."""
TYPICAL_S = 60.0
"""Assumed length of a check until one has been measured."""

Durations = Mapping[tuple[str, Device], list[float]]
"""Seconds from the start of a check to its verdict, by lab and device, oldest first."""


class _Table(msgspec.Struct, frozen=True):
    """Contents of the file."""

    seconds: dict[str, dict[Device, list[float]]] = {}


def load_durations() -> Durations:
    """Return what the runners of this machine have measured."""
    file = home() / "durations.json"
    table = read_json(file, _Table) if file.exists() else _Table()
    return {
        (lab, device): seconds
        for lab, devices in table.seconds.items()
        for device, seconds in devices.items()
    }


def keep_duration(lab: str, device: Device, seconds: float) -> None:
    """Add a check to this machine's table."""
    file = home() / "durations.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.with_suffix(".lock"), "a runner"):
        table = read_json(file, _Table) if file.exists() else _Table()
        kept = table.seconds.setdefault(lab, {}).setdefault(device, [])
        table.seconds[lab][device] = [*kept, round(seconds, 2)][-KEPT:]
        write_bytes(file, msgspec.json.format(msgspec.json.encode(table)))


def typical_s(durations: Durations, lab: str, device: Device) -> float:
    """Return the median duration of a lab on a device.

    Without one, that of all labs on that device, of all checks, or `TYPICAL_S`.
    """
    same_device = [s for (_, other), times in durations.items() if other == device for s in times]
    everything = [s for times in durations.values() for s in times]
    known = durations.get((lab, device)) or same_device or everything
    return median(known) if known else TYPICAL_S
