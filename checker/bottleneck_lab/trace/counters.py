"""ncu's measurements of single kernels: counters, with no times of day."""

from __future__ import annotations

import msgspec


class KernelCounters(msgspec.Struct, frozen=True):
    """One profiled launch. `metrics` are in base units (ns, bytes, %, per second), by ncu's own
    names.
    """

    name: str
    device: int
    compute_capability: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    metrics: dict[str, float]

    @property
    def duration_ns(self) -> float:
        """Under ncu's serialised replay; 0 when it was not measured."""
        return self.metrics.get("gpu__time_duration.sum", 0.0)
