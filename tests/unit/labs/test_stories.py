"""Counts in a story hold in the program and in its capture: how often, how many, how much."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bottleneck_lab.analysis.summary import Summary, summarise
from bottleneck_lab.trace import load, merge_ranks
from bottleneck_lab.workspace.cases import PROGRAM, load_library, traces_of

COUNTS = re.compile(
    r"\d|\b(half|twice|double|quarters?|thirds?|fifths?|tenths?|fourth|every|each|most"
    r"|two|three|four|six|seven|eight|twelve|thirteen|thirty|forty|fifty|sixteen|eighty"
    r"|hundred|thousand|seconds?|minutes?|hours?|night|morning|weekend)\b",
    re.IGNORECASE,
)
"""Words of number and frequency: a story that has one is held to it."""
CARD = 141e9
"""Bytes of the H200 that the cases run on."""


def first_busy(s: Summary) -> float:
    return s.devices[0].busy_share


def costs(s: Summary) -> list[int]:
    """Return the time of each step, without the first, which has nothing before it."""
    return [step.cost_ns for step in s.steps][1:]


def steps_until_full(s: Summary, card: float = CARD) -> float:
    memory = s.memory[0]
    return (card - memory.peak_bytes) / memory.growth_bytes_per_step + len(s.steps)


def step_ms(s: Summary) -> float:
    return s.step_mean_ns / 1e6


OF_LIBRARY: dict[str, tuple[list[str], Callable[[Summary], bool]]] = {
    "bird-calls": (
        ["index % 200", "step % 4 == 3"],
        lambda s: sum(cost > 5 * min(costs(s)) for cost in costs(s)) < len(costs(s)) / 2,
    ),
    "bird-choirs": (
        [],
        lambda s: (
            600 < steps_until_full(s) < 700
            and 0.5 < steps_until_full(s, 80e9) / steps_until_full(s) < 0.6
        ),
    ),
    "clinic-notes": (
        ["count=10_000", "Notes(), 128,"],
        lambda s: first_busy(s) > 0.95 and 7 < 10_000 / 128 * step_ms(s) / 1000 < 8,
    ),
    "cloud-masks": (["bands=13", "num_workers=6"], lambda s: True),
    "dose-planner": ([], lambda s: len(s.devices) == 2),
    "face-search": (["num_workers=8", "pin_memory=True", "dtype=torch.uint8"], lambda s: True),
    "gene-tokens": ([], lambda s: first_busy(s) > 0.95),
    "law-library": (
        [],
        lambda s: (
            len(s.devices) == 4 and all(0.4 < d.compute_ns / d.wall_ns < 0.5 for d in s.devices)
        ),
    ),
    "leaf-doctor": (
        ["count=640", "num_workers=8"],
        lambda s: abs(first_busy(s) - 0.2) < 0.03,
    ),
    "letter-sorter": (
        ["count=2_997"],
        lambda s: len(s.devices) == 3 and sum(d.compute_ns / d.wall_ns for d in s.devices) < 1.9,
    ),
    "mosaic-painter": (["optimizer.step()"], lambda s: first_busy(s) < 0.3),
    "museum-guide": ([], lambda s: first_busy(s) > 0.95),
    "night-exams": (["choices=4"], lambda s: first_busy(s) < 0.5),
    "old-sermons": (
        ["SHORTEST, LONGEST = 512, 1024", "SHORTEST + 16 * number"],
        lambda s: (1024 - 512) / 16 == 32,
    ),
    "picture-maker": (["pictures=4, steps=50"], lambda s: first_busy(s) < 0.2),
    "poem-writer": (
        ["depth=12", "lines=64", "(lines, 512)"],
        lambda s: first_busy(s) > 0.95 and abs(step_ms(s) - 30) < 0.5,
    ),
    "polite-pretrainer": (["accumulate=2"], lambda s: len(s.devices) == 2),
    "price-curve": (["GOODS = 80"], lambda s: abs(first_busy(s) - 0.8) < 0.05),
    "price-tags": (["queue.take(16)"], lambda s: first_busy(s) < 0.3),
    "rail-cracks": (["step % 500 == 499"], lambda s: steps_until_full(s) < 499),
    "reply-bot": (["batch=4"], lambda s: True),
    "river-levels": (
        ["range(3_000)"],
        lambda s: 2.3 < 3_000 * step_ms(s) / 60_000 < 2.9,
    ),
    "roof-tiles": (["bfloat16()"], lambda s: first_busy(s) > 0.95),
    "route-times": (
        ["torch.randn(8192,"],
        lambda s: first_busy(s) * step_ms(s) < 80 and 1.3e9 < max(costs(s)) < 1.6e9,
    ),
    "satellite-years": (
        ["YEARS = 40", "num_workers=8"],
        lambda s: abs(first_busy(s) - 0.5) < 0.05,
    ),
    "ship-names": (["length=48"], lambda s: abs(first_busy(s) - 0.1) < 0.03),
    "star-catalogue": ([], lambda s: first_busy(s) > 0.95 and 11 < step_ms(s) < 12),
    "steady-encoder": (
        ["count=200_000", "batch_size=128"],
        lambda s: abs(200_000 / 128 * step_ms(s) / 1000 - 45) < 3,
    ),
    "teacher-average": (
        ["copy.deepcopy(student)"],
        lambda s: abs(first_busy(s) - 0.2) < 0.03 and abs(step_ms(s) - 29) < 0.5,
    ),
    "ticket-router": ([], lambda s: abs(first_busy(s) - 0.2) < 0.03),
    "tide-stages": (["HARBOURS = 100"], lambda s: True),
    "tiny-stories": (
        ["depth=8"],
        lambda s: first_busy(s) > 0.95 and abs(step_ms(s) - 76) < 0.5,
    ),
    "warehouse-robots": (["HALLS, SENSES, MOVES = 256"], lambda s: True),
    "wide-recommender": (
        [],
        lambda s: len(s.devices) == 4 and all(d.compute_ns / d.wall_ns < 0.5 for d in s.devices),
    ),
    "wind-farms": (
        [],
        lambda s: [round(d.compute_ns / d.wall_ns, 1) for d in s.devices] == [0.7, 0.7],
    ),
}
CASES = {case.name: case for case in load_library().cases}


@pytest.mark.parametrize("name", OF_LIBRARY)
def test_a_case_of_the_library_is_as_its_story_says(name):
    case, (parts, holds) = CASES[name], OF_LIBRARY[name]
    program = Path(traces_of(case)[0]).with_name(PROGRAM).read_text()
    assert [part for part in parts if part not in program] == []
    assert holds(summarise(merge_ranks([load(path) for path in traces_of(case)]))), case.story


def test_every_story_of_the_library_that_counts_is_held_to_it():
    assert {name for name, case in CASES.items() if COUNTS.search(case.story)} <= {*OF_LIBRARY}
