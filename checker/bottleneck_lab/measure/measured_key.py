"""The answers to a lab's choices as this machine measures them, by the `key.py` of a lab that has
one: what limits a piece of code may differ from one machine to the next.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import MachineError

KEY = "key.py"
LONGEST_S = 120.0


def has_key(lab: Lab) -> bool:
    """Return True if the lab measures the answers to its choices."""
    return (lab.path / KEY).is_file()


def measure_key(lab: Lab, device: Device) -> dict[str, str]:
    """Run the lab's `key.py`, and return the right choice for each question that it answers.

    Raises MachineError if it does not answer within two minutes.
    """
    try:
        run = subprocess.run(
            [sys.executable, KEY, "--device", device],
            cwd=lab.path,
            capture_output=True,
            timeout=LONGEST_S,
            check=True,
        )
        return msgspec.json.decode(run.stdout, type=dict[str, str])
    except (subprocess.SubprocessError, OSError, msgspec.MsgspecError) as error:
        raise MachineError(
            f"What is right on this machine could not be measured: {error}.",
            "Close other programs and check again.",
        ) from error
