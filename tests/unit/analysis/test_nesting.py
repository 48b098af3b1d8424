"""The call tree of several tables, against its definition row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab import load
from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.lines import operator_during, places_during
from bottleneck_lab.analysis.host.nesting import nest, outermost
from bottleneck_lab.analysis.host.view import find_outermost
from bottleneck_lab.trace.timeline import HostTable, make_table


def _tables(seed: int) -> list[HostTable]:
    """Return up to three tables whose few rows often start together, some of no length."""
    draw = np.random.default_rng(seed)
    tables = []
    for _ in range(draw.integers(1, 4)):
        count = draw.integers(0, 12)
        start = draw.integers(0, 8, count)
        end = start + draw.integers(0, 5, count)
        thread = draw.integers(0, 3, count)
        tables.append(make_table(HostTable, count, start=start, end=end, thread=thread))
    return tables


def test_a_tree_of_several_tables_is_in_order_and_nested_by_thread():
    for seed in range(200):
        tables = _tables(seed)
        rows = [row for t in tables for row in zip(t.start, t.end, t.thread, strict=True)]
        # Of rows that start together the longer comes first, and of equal ones the earlier table's.
        order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1]))

        tree = nest(*tables)

        assert [order[at] for at in tree.position] == list(range(len(rows))), seed
        for at, row in enumerate(order):
            start, _, thread = rows[row]
            earlier = [rows[i] for i in order[:at]]
            open_rows = [s for s, end, own in earlier if own == thread and max(end, s + 1) > start]
            assert tree.depth[at] == len(open_rows), seed
            assert (tree.parent[at] >= 0) == bool(open_rows), seed
            if open_rows:
                assert tree.depth[tree.parent[at]] == tree.depth[at] - 1, seed


def test_outermost_rows_are_those_of_depth_zero():
    for seed in range(50):
        for table in _tables(seed):
            assert (outermost(table) == (nest(table).depth == 0)).all(), seed


CAPTURE = Path(__file__).parents[3] / "datasets" / "captures" / "h200" / "training.json.gz"
NAMES = ("aten::mm", "aten::add", "ProfilerStep#1", "aten::relu")


@pytest.fixture(scope="module")
def capture():
    return load(CAPTURE)


def test_the_outermost_operators_show_where_the_host_was_as_all_of_them_do(capture):
    """Some cross others or mark steps, as in old traces; some begin or end together."""
    for seed in range(100):
        timeline, stretches, threads = _draw_stretches(seed, capture)
        every, few = np.arange(len(timeline.operators), dtype=np.int32), find_outermost(timeline)
        assert len(few) <= len(every), seed
        for rank in timeline.ranks:
            assert places_during(timeline, stretches, rank, threads, few) == places_during(
                timeline, stretches, rank, threads, every
            ), seed
            assert operator_during(timeline, stretches, rank, few) == operator_during(
                timeline, stretches, rank, every
            ), seed


def _draw_stretches(seed, capture):
    """Return a capture's timeline with up to 20 operators of two threads, some stretches of time,
    and the threads to look at.
    """
    draw = np.random.default_rng(seed)
    count = draw.integers(1, 20)
    start = draw.integers(1, 30, count)
    operators = make_table(
        HostTable,
        count,
        start=start,
        end=start + draw.integers(0, 12, count),
        name=draw.integers(0, len(NAMES), count),
        thread=draw.integers(0, 2, count),
    )
    none = make_table(HostTable)
    timeline = replace(capture, strings=NAMES, operators=operators, ranges=none, python=none)
    begin = np.sort(draw.integers(0, 40, 6)).reshape(-1, 2)
    stretches = iv.union(begin[:, 0], begin[:, 1])
    threads = np.array([True, bool(draw.integers(0, 2)), False])
    return timeline, stretches, threads


def test_an_operator_inside_another_is_not_outermost(capture):
    operators = make_table(HostTable, 4, start=[1, 2, 2, 12], end=[10, 10, 11, 13], name=[0] * 4)
    timeline = replace(capture, strings=NAMES, operators=operators)
    assert find_outermost(timeline).tolist() == [0, 1, 3], "the second goes on after the first"
