"""A lab's code, run as its kind does: alone, or on emulated ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bottleneck_lab.analysis.ranks.scaling import Sweep
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.measure.context import Context, Progress
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.sandbox.children import OnLine
from bottleneck_lab.measure.sandbox.janitor import Janitor


def show_nothing(_activity: str, _share: float) -> None:
    """Ignore progress."""


class Workload(NamedTuple):
    """A lab's code in a folder, the device that it runs on, and its data set."""

    lab: Lab
    folder: Path
    device: Device
    data: Path


@contextmanager
def context_of(workload: Workload, progress: Progress = show_nothing) -> Iterator[Context[Any]]:
    """Yield what a kind needs to run the learner's code in its own folder; whatever it starts or
    writes is gone afterwards.
    """
    lab, folder, device, data = workload
    settings = kind_of(lab).settings(lab, device)
    with Janitor() as janitor:
        yield Context(lab, device, settings, folder, folder, data, janitor, progress)


def run_workload(workload: Workload, on_line: OnLine) -> int:
    """Run the code as it stands, passing its output to `on_line`; return its exit status."""
    with context_of(workload) as context:
        return kind_of(workload.lab).run(context, on_line)


def scale_workload(workload: Workload, ranks: list[int], progress: Progress) -> list[Sweep]:
    """Run a distributed script on emulated ranks; return its modelled scaling, carried on to
    `ranks`. Raises CaptureError when the script fails.
    """
    with context_of(workload, progress) as context:
        try:
            return kind_of(workload.lab).scale(context, ranks)
        except LearnerFault as fault:
            raise CaptureError(
                fault.detail, "Fix `train.py`, or restore the original with `lab reset`."
            ) from fault
