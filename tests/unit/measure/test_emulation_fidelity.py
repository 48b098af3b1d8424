"""Modelled ratios on the virtual GPU are those that were measured on a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ...modules import load_file

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "emulation_fidelity.py"


fidelity = load_file(BENCHMARK, "emulation_fidelity")
TRAININGS = json.loads(fidelity.RECORD.read_text("utf-8"))["trainings"]


BETWEEN = (128, 256)
"""Widths between the two ends: where launches count, and where work does. `make slow` models them,
too.
"""
FEWER_STEPS = 8
"""So many of the page's 12 tell the two ends."""


def modelled(training: dict[str, Any]) -> Any:
    """Return a row of the record as a parameter."""
    width = training["size"].get("WIDTH", "as shipped")
    slow = [pytest.mark.slow] if width in BETWEEN else []
    return pytest.param(training, id=f"{training['lab']}-{width}", marks=[pytest.mark.long, *slow])


@pytest.mark.parametrize("training", [modelled(row) for row in TRAININGS])
def test_a_modelled_ratio_is_within_a_tenth_of_the_measured_one(
    training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if training["size"].get("WIDTH") not in BETWEEN:
        monkeypatch.setattr(fidelity, "STEPS", FEWER_STEPS)
    measured = fidelity.measured_ratio(training)
    assert fidelity.model(training).ratio == pytest.approx(measured, rel=fidelity.TOLERANCE)


HOST = ("idle_launch", "idle_python", "idle_fixed")
"""Launches and the host's Python: the model's fixed charge stands for Python between launches."""


def both(captured):
    """Return the shares of a real capture, and of the same program on the virtual GPU."""
    real = fidelity.read_shares(fidelity.ROOT / "datasets" / "captures" / captured.file)
    return real, fidelity.capture_modelled(captured)


@pytest.mark.long
def test_a_modelled_capture_shows_what_a_real_one_does_where_launches_are_all() -> None:
    real, modelled = both(fidelity.CAPTURES[0])
    assert modelled.shares["idle_launch"] == pytest.approx(real.shares["idle_launch"], abs=0.01)
    host = [sum(row.shares.pop(name) for name in HOST) for row in (modelled, real)]
    assert host[0] == pytest.approx(host[1], abs=0.035)
    assert modelled.shares == pytest.approx(real.shares, abs=0.035)
    assert modelled.shares["idle_input"] == pytest.approx(real.shares["idle_input"], abs=0.01)
    assert modelled.launches == pytest.approx(real.launches, rel=0.1)
    assert modelled.waits == pytest.approx(real.waits, abs=0.5)


@pytest.mark.long
def test_waits_are_counted_as_on_a_real_device_and_their_share_is_too_large() -> None:
    real, modelled = both(fidelity.CAPTURES[1])
    assert modelled.waits == pytest.approx(real.waits, abs=0.5)
    assert modelled.launches == pytest.approx(real.launches, rel=0.1)
    for name, within in {"busy": 0.02, "idle_copy": 0.03, "idle_input": 0.04}.items():
        assert modelled.shares[name] == pytest.approx(real.shares[name], abs=within), name
    # What docs/emulation.md says of the rest: launches and Python together, and the waits.
    host = [sum(row.shares[name] for name in HOST) for row in (modelled, real)]
    assert host[0] == pytest.approx(host[1], abs=0.03)
    assert real.shares["idle_synchronisation"] < modelled.shares["idle_synchronisation"] < 0.15
    assert max(real.shares, key=real.shares.get) == max(modelled.shares, key=modelled.shares.get)


def test_the_prices_are_those_that_were_read() -> None:
    gpu = fidelity.H200
    assert gpu.kernel_time_us(0, 0) == 1.0
    assert gpu.kernel_time_us(0, 0, reduces=True) == 2.4
    starter = 150 * gpu.launch_us + 28 * gpu.launch_us + 32 * gpu.sample_us + gpu.loop_us
    # 37 µs a kernel for Python, dispatcher and autograd: 5.15 ms for the 137 kernels of a step.
    assert starter / 137 == pytest.approx(37, rel=0.1)
