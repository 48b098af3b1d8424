"""The books that the engine keeps of a run, and the messages of its owner. Free of PyTorch: a
process that only reads the books starts without it.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.measure.virtual_gpu.clock import Span
from bottleneck_lab.measure.virtual_gpu.memory import MemoryChange
from bottleneck_lab.measure.virtual_gpu.spec import GpuSpec


class Figures(msgspec.Struct, frozen=True):
    """Figures of one run. Times in µs of the logical clock, per step where a list.

    `setup_waits` and `report_waits`: waits until the first product, and until each report.
    `line_waits`: those since the first step, by the program's line.
    `lives`: step in which tensors were made, step in which they were gone (the last for those that
    live), and how many, on the device and copied from there; steps count from 1. Then the program's
    lines that made them, as `trace.stacks` joins them, and their dtype and shape, by its own word.
    `returned_bytes`: copied to the host. `useful_flops`: of `flops`, those from which the
    parameters follow that were handed over; `step_flops` and `report_flops`: as many until each
    step began and until each report. All three are empty before parameters are handed over.
    `races`: the program's lines whose copy read a pinned buffer that was overwritten meanwhile.
    `unawaited`: those whose copy to the host nobody had waited for when a report was made.
    """

    total_us: float
    step_us: list[float]
    step_launches: list[int]
    waits: int
    step_waits: list[int]
    flops: float
    setup_waits: int
    report_waits: list[int]
    returned_bytes: int
    peak_bytes: int
    reserved_bytes: int
    step_bytes: list[int]
    steps: int
    lives: list[tuple[int, int, int, str, str]]
    useful_flops: float = 0.0
    step_flops: list[float] = []
    report_flops: list[float] = []
    line_waits: dict[str, int] = {}
    races: list[str] = []
    unawaited: list[str] = []


class KeptArray(msgspec.Struct, frozen=True):
    """A parameter's values, in float32 whatever it was trained in: NumPy has no bfloat16."""

    shape: list[int]
    data: bytes

    def array(self) -> NDArray[np.float32]:
        return np.frombuffer(self.data, np.float32).reshape(self.shape)


class Books(msgspec.Struct, frozen=True):
    """One run's. `kept` are the parameters that the program handed over at its end; empty if it did
    not get that far.
    """

    figures: Figures
    kept: dict[str, KeptArray]
    spans: list[Span]
    changes: list[MemoryChange]


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The owner opens the books of a new run. It is not answered: what the program sends afterwards
    is of that run. With a secret, parameters start on the device as only the device knows them.
    """

    spec: GpuSpec
    recording: bool
    secret: int = 0


class End(msgspec.Struct, frozen=True, tag=True):
    """The owner closes the books; `Books` are the answer."""
