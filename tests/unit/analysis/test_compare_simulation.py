"""The benchmark that simulates comparisons of repeated captures runs with today's `compare`."""

from __future__ import annotations

import random
from pathlib import Path

from ...modules import load_file

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "compare_simulation.py"


def test_simulated_captures_are_compared_as_real_ones_are():
    simulation = load_file(BENCHMARK, "compare_simulation")
    slots = simulation.NOISES["normal"](random.Random(1), simulation.LEVELS["quiet"])
    result = simulation.comparison(random.Random(1), slots, 32, simulation.SLOWER)
    assert "time" in simulation.worse(result)
