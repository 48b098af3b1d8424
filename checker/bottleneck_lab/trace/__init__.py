"""Readers: what a profiler wrote → one columnar `Timeline`."""

from bottleneck_lab.trace.load import load, merge_ranks
from bottleneck_lab.trace.timeline import DeviceTable, Direction, HostMemory, HostTable, Kind, MemoryTable, Timeline

__all__ = [
    "DeviceTable",
    "Direction",
    "HostMemory",
    "HostTable",
    "Kind",
    "MemoryTable",
    "Timeline",
    "load",
    "merge_ranks",
]
