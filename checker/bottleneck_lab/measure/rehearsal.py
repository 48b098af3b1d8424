"""A CUDA device that is not there, to rehearse on: `BOTTLENECK_LAB_REHEARSAL=1`.

What a program asks of `cuda` is done on the host, in order, on a queue whose time is modelled: operators are queued for a while each, and who waits for
the device waits that long. So labs, checks and captures run from start to end on a machine without a GPU. No figure of it means anything:
a check on it ends INCONCLUSIVE and keeps none, `make gpu` records nothing.
"""

from __future__ import annotations

import os

VARIABLE = "BOTTLENECK_LAB_REHEARSAL"
NAME = "Rehearsal (no GPU)"
REHEARSED = "Rehearsal on a device that is not there: the check ran, and nothing was measured."


def rehearsing() -> bool:
    """Whether this process is to pretend that there is a CUDA device."""
    return os.environ.get(VARIABLE) == "1"
