"""Readers: what a profiler wrote → one columnar `Timeline`."""

from bottleneck_lab.trace.load import load
from bottleneck_lab.trace.merging import merge_ranks
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceTable,
    Direction,
    HostMemory,
    HostTable,
    MemoryTable,
    Timeline,
)

__all__ = [
    "ActivityKind",
    "DeviceTable",
    "Direction",
    "HostMemory",
    "HostTable",
    "MemoryTable",
    "Timeline",
    "load",
    "merge_ranks",
]
