"""The call tree of several tables, against its definition row by row."""

from __future__ import annotations

import numpy as np
import pytest

from bottleneck_lab.analysis.host.nesting import nest, outermost
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


@pytest.mark.parametrize("seed", range(200))
def test_a_tree_of_several_tables_is_in_order_and_nested_by_thread(seed):
    tables = _tables(seed)
    rows = [row for t in tables for row in zip(t.start, t.end, t.thread, strict=True)]
    # Of rows that start together the longer comes first, and of equal ones the earlier table's.
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1]))

    tree = nest(*tables)

    assert [order[at] for at in tree.position] == list(range(len(rows)))
    for at, row in enumerate(order):
        start, _, thread = rows[row]
        earlier = [rows[i] for i in order[:at]]
        open_rows = [s for s, end, own in earlier if own == thread and max(end, s + 1) > start]
        assert tree.depth[at] == len(open_rows)
        assert (tree.parent[at] >= 0) == bool(open_rows)
        if open_rows:
            assert tree.depth[tree.parent[at]] == tree.depth[at] - 1


@pytest.mark.parametrize("seed", range(50))
def test_outermost_rows_are_those_of_depth_zero(seed):
    for table in _tables(seed):
        assert (outermost(table) == (nest(table).depth == 0)).all()
