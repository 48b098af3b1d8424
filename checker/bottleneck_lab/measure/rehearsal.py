"""A CUDA device that is not there, to rehearse on: `BOTTLENECK_LAB_REHEARSAL=1`.

What a program asks of `cuda` is done on the host, in order, on a queue whose time is modelled:
operators are queued for a while each, and who waits for the device waits that long. So labs, checks
and captures run from start to end on a machine without a GPU. No figure of it means anything: a
check on it ends INCONCLUSIVE and keeps none, `make gpu` records nothing.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "BOTTLENECK_LAB_REHEARSAL"
NAME = "Rehearsal (no GPU)"
GPUS = 2
"""Devices that are stood in for: as many as `ddp-scaling` needs."""
REHEARSED = "Rehearsal without a real device: the check ran, but nothing was measured."


def rehearsing() -> bool:
    """Whether this process is to pretend that there is a CUDA device."""
    return os.environ.get(VARIABLE) == "1"


STAND_IN = "stand_in.py"
"""The lab's own stand-in, where a rehearsal needs one, as it lies beside a submission."""


def python(device: str) -> tuple[str, ...]:
    """The interpreter for a script of the learner's that is run as it stands on `device`."""
    stood_in = (
        ("-m", "bottleneck_lab.measure.rehearsed") if device == "cuda" and rehearsing() else ()
    )
    return (sys.executable, "-u", *stood_in)
