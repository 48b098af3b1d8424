"""Bounds of gains against programs with switches: what turning something off really brings."""

import json
import random
from types import SimpleNamespace

import pytest

from bottleneck_lab import load
from bottleneck_lab.analysis.detectors.idle import WAITS
from bottleneck_lab.analysis.device.use import find_device_uses
from bottleneck_lab.analysis.what_if import Removal, WhatIf

PROGRAMS = 100


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("bottleneck", "part"),
    [
        ("input", "idle-input"),
        ("sync", "idle-synchronisation"),
        ("pageable", "copy"),
        ("communication", "communication"),
    ],
)
def test_the_bound_is_what_the_healthy_program_gains(summary_of, bottleneck, part, seed):
    slow, healthy = summary_of(bottleneck, seed=seed), summary_of("healthy", seed=seed)
    gained = slow.wall_ns / healthy.wall_ns
    assert slow.gains[part] == pytest.approx(gained, rel=0.02)


def random_program(make, seed: int, without: str = ""):
    """A training loop of random proportions; the same but for what is switched off."""
    rng = random.Random(seed)
    run = make.Program(jitter=0.0)
    loading, kernels, kernel_us = rng.choice([0, 300, 2_000, 6_000]), rng.randint(3, 40), 0.0
    kernel_us = rng.choice([3.0, 20.0, 120.0, 400.0])
    host_us = rng.choice([12.0, 40.0, 100.0])
    python_us = rng.choice([0, 80, 350, 600, 1_500])
    every = rng.choice([1, 1, 1, 2, 4])
    for number in range(12):
        begin = run.host
        if without != "input":
            run.python(loading)
        run.range("data", begin)
        for _ in range(kernels):
            run.operator("aten::mm", "kernel", kernel_us, host_us=host_us)
        run.python(python_us)
        if number % every == 0 and without != "waits":
            run.item()
        run.range(f"ProfilerStep#{number}", begin)
    return run


def wall_us(run) -> float:
    """How long a program takes, to the end of its last work."""
    begin = min(event["ts"] for event in run.events)
    return max(event["ts"] + event["dur"] for event in run.events) - begin


@pytest.fixture(scope="module")
def tried(make, tmp_path_factory):
    """(largest possible gain as told, true gain) of random programs, by what is switched off."""
    folder = tmp_path_factory.mktemp("programs")
    results = {"input": [], "waits": []}
    for seed in range(PROGRAMS):
        run = random_program(make, seed)
        path = folder / f"{seed}.json"
        path.write_text(json.dumps(run.trace()))
        timeline = load(path)
        what_if = WhatIf(timeline, [time.program for _, time in find_device_uses(timeline)])
        for switch, removal in (("input", Removal(causes=("input",))), ("waits", WAITS)):
            gained = wall_us(run) / wall_us(random_program(make, seed, without=switch))
            bound = what_if.gain(removal)
            results[switch].append(SimpleNamespace(seed=seed, bound=bound, gained=gained))
    return results


@pytest.mark.parametrize("switch", ["input", "waits"])
def test_bounds_hold_and_are_near(tried, switch):
    pairs = tried[switch]
    assert sum(pair.gained > 1.1 for pair in pairs) >= 5
    # A switch also saves what is around a wait: .item()'s own copy, some microseconds.
    held = sum(pair.bound >= 0.98 * pair.gained for pair in pairs)
    near = sum(pair.bound <= 1.2 * pair.gained for pair in pairs)
    assert held == len(pairs), [p for p in pairs if p.bound < 0.98 * p.gained]
    assert near >= 0.8 * len(pairs), [p for p in pairs if p.bound > 1.2 * p.gained]
