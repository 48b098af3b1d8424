"""A capture, summed up in parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis import footprint
from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.comparing.observation import observe
from bottleneck_lab.analysis.host import operators
from bottleneck_lab.analysis.host.operators import build_calls, in_parts, sum_operators
from bottleneck_lab.analysis.host.syncs import find_causes
from bottleneck_lab.analysis.host.waits import waiting_calls
from bottleneck_lab.analysis.steps.window import begun_inside
from bottleneck_lab.trace.timeline import Timeline, take

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"


def without_calls(timeline: Timeline) -> Timeline:
    """Return the timeline as tools write it that join device work to operators alone."""
    return replace(timeline, runtime=take(timeline.runtime, slice(0)))


def without_operators(timeline: Timeline) -> Timeline:
    return replace(timeline, operators=take(timeline.operators, slice(0)))


@pytest.mark.parametrize("change", [lambda timeline: timeline, without_calls, without_operators])
@pytest.mark.parametrize("name", ["h200/training.json.gz", "synthetic-sync.json.gz"])
def test_parts_of_the_host_add_up_to_the_whole(monkeypatch, name, change):
    timeline = begun_inside(load(CAPTURES / name))
    whole = change(replace(timeline, python=take(timeline.python, slice(0))))
    calls = build_calls(whole, python=False)

    monkeypatch.setattr(operators, "PART_ROWS", 64)
    parts = list(in_parts(whole))

    assert len(parts) > 3
    assert sum(len(part.operators) + len(part.runtime) for part in parts) == len(calls.layer)
    sums = [sum_operators(part, build_calls(part, python=False)) for part in parts]
    assert (np.sum(sums, axis=0) == sum_operators(whole, calls)).all()
    causes = [
        cause
        for part in parts
        for cause in find_causes(part, build_calls(part, python=False), waiting_calls(part))
    ]
    assert causes == find_causes(whole, calls, waiting_calls(whole))


def test_frames_of_python_keep_the_host_in_one_part(monkeypatch):
    timeline = load(CAPTURES / "synthetic-sync.json.gz")
    framed = replace(timeline, python=take(timeline.runtime, slice(0, 1)))

    monkeypatch.setattr(operators, "PART_ROWS", 64)

    assert list(in_parts(framed)) == [framed]


@pytest.mark.parametrize(
    "name", ["h200/training.json.gz", "synthetic-sync.json.gz", "synthetic-communication.json.gz"]
)
def test_a_report_does_not_depend_on_the_size_of_blocks(monkeypatch, name):
    timeline = load(CAPTURES / name)
    whole = observe(timeline)

    monkeypatch.setattr(iv, "BLOCK", 16)
    monkeypatch.setattr(operators, "PART_ROWS", 64)
    in_blocks = observe(replace(timeline))

    assert in_blocks.summary == whole.summary
    assert in_blocks.figures.origins == whole.figures.origins
    assert {key: values.tolist() for key, values in in_blocks.figures.series.items()} == {
        key: values.tolist() for key, values in whole.figures.series.items()
    }


def test_memory_is_handed_back_only_where_that_pays(monkeypatch):
    calls = []
    monkeypatch.setattr(footprint, "give_back", lambda: calls.append(True))
    timeline = load(CAPTURES / "synthetic-sync.json.gz")

    summarise(timeline)
    assert not calls

    monkeypatch.setattr(footprint, "SMALL_EVENTS", 0)
    summarise(timeline)
    assert calls
