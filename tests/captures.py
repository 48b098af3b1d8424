"""Recorded captures: the project's own, and those of other projects, which it may not pass on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

OWN = Path(__file__).parents[1] / "datasets" / "captures"
OTHERS = os.environ.get("BOTTLENECK_LAB_CAPTURES", "")
"""The folder of other projects' captures: Holistic Trace Analysis's, Kineto's, TraceLens's and
nsys-ai's test data.
"""


def recorded_capture(name: str) -> Path:
    """Return the path of a capture; skip the test if it is another project's and not there."""
    for folder in (OWN, *([Path(OTHERS)] if OTHERS else [])):
        if (folder / name).is_file():
            return folder / name
    pytest.skip(f"BOTTLENECK_LAB_CAPTURES names no folder with {name}")
