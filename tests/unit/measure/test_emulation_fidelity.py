"""Modelled ratios on the virtual GPU are those that were measured on a real one."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "emulation_fidelity.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("emulation_fidelity", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fidelity = _load()
TRAININGS = json.loads(fidelity.RECORD.read_text("utf-8"))["trainings"]


BETWEEN = (128, 256)
"""Widths between the two ends: where launches count, and where work does. `make slow` models them,
too.
"""


def modelled(training: dict[str, Any]) -> Any:
    """Return a row of the record as a parameter."""
    width = training["size"].get("WIDTH", "as shipped")
    slow = [pytest.mark.slow] if width in BETWEEN else []
    return pytest.param(training, id=f"{training['lab']}-{width}", marks=[pytest.mark.long, *slow])


@pytest.mark.parametrize("training", [modelled(row) for row in TRAININGS])
def test_a_modelled_ratio_is_within_a_tenth_of_the_measured_one(training: dict[str, Any]) -> None:
    measured = fidelity.measured_ratio(training)
    assert fidelity.model(training).ratio == pytest.approx(measured, rel=fidelity.TOLERANCE)


def test_the_prices_are_those_that_were_read() -> None:
    gpu = fidelity.H200
    assert gpu.kernel_time_us(0, 0) == 1.0
    assert gpu.kernel_time_us(0, 0, reduces=True) == 2.4
    starter = 150 * gpu.launch_us + 28 * gpu.launch_us + 32 * gpu.sample_us + gpu.loop_us
    # 37 µs a kernel for Python, dispatcher and autograd: 5.15 ms for the 137 kernels of a step.
    assert starter / 137 == pytest.approx(37, rel=0.1)
