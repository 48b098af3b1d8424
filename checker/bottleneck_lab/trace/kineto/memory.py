"""Allocations and frees with the lines that made them."""

from __future__ import annotations

from dataclasses import dataclass

from bottleneck_lab.trace.join import Numbers
from bottleneck_lab.trace.timeline import MemoryTable


@dataclass(frozen=True, slots=True)
class NamedMemory(MemoryTable):
    """Allocations and frees as a Chrome trace has them. `name` is the line of the program that ran,
    where the trace says so, as those of a virtual GPU do; else the event's own name.
    """

    name: Numbers
