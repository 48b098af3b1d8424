"""What a machine that others use makes of a check: nobody's fault, so a test may ask again."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.quiet import wait_until_quiet

Found = TypeVar("Found")

MACHINES_FAULT = ("INCONCLUSIVE", "too busy", "protocol itself takes", "Other programs kept")
"""The outcome that says so, and words of an ERROR that does. Any other ERROR is a fault of ours."""
TRIES = 3
QUIET_S = 120.0
"""How long another try waits for the other programs to end."""
hurried = False
"""True in a quick run, which has no time to wait: what the machine spoils is skipped."""


def machines_fault(said: str) -> bool:
    """Return True if an outcome with its summary blames the machine and not the work."""
    return any(words in said for words in MACHINES_FAULT)


def asked_again(measure: Callable[[], Found], said: Callable[[Found], str]) -> Found:
    """What `measure` found, in another try where what is `said` of the first lays it on the
    machine. A wrong answer has no other try.
    """
    found = measure()
    if hurried and machines_fault(said(found)):
        pytest.skip("other programs disturbed the measurement: `make test` measures again")
    for _ in range(TRIES - 1):
        if not machines_fault(said(found)):
            break
        with suppress(MachineError):
            wait_until_quiet(QUIET_S, lambda _cores: None)
        found = measure()
    return found
