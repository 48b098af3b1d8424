"""Interval arithmetic against a count of every nanosecond."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck_lab.analysis import intervals as iv


@pytest.fixture(scope="module", params=[2, iv.BLOCK], autouse=True)
def block(request):
    """Go through rows in blocks of a few, and in one that holds them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iv, "BLOCK", request.param)
        yield


pairs = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


def made(rows) -> iv.Intervals:
    array = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return iv.union(array[:, 0], array[:, 1])


def points(intervals: iv.Intervals) -> set[int]:
    found = [
        set(range(a, b))
        for a, b in zip(intervals.start.tolist(), intervals.end.tolist(), strict=True)
    ]
    assert sum(map(len, found)) == intervals.total, "disjoint"
    assert (np.diff(intervals.start) > 0).all()
    return set().union(*found)


@settings(max_examples=200)
@given(pairs, pairs, st.integers(0, 80), st.integers(0, 80))
def test_set_algebra(first, second, x, y):
    a, b = made(first), made(second)
    low, high = min(x, y), max(x, y)
    p, q = points(a), points(b)
    assert p == {t for s, e in first for t in range(s, e)}
    assert points(iv.intersect(a, b)) == p & q
    assert points(iv.subtract(a, b)) == p - q
    assert points(iv.join(a, b)) == p | q
    assert points(iv.clip(a, low, high)) == p & set(range(low, high))
    assert points(iv.complement(a, low, high)) == set(range(low, high)) - p
    assert iv.covered_before(a, np.array([low, high])).tolist() == [
        len([t for t in p if t < limit]) for limit in (low, high)
    ]


@given(pairs, pairs, st.integers(0, 80), st.integers(0, 20))
def test_time_within_stretches(first, second, start, length):
    a, inside = points(made(first)), set(range(start, start + length))
    rows = np.array([(start, start + length), *second], dtype=np.int64)

    covered = iv.covered_within(made(first), rows[:, 0], rows[:, 1])

    assert covered[0] == len(a & inside)
    assert covered[1:].tolist() == [len(a & set(range(s, e))) for s, e in second]
    assert (iv.meets(made(first), rows[:, 0], rows[:, 1]) == (covered > 0)).all()
    half = (covered + 1) // 2
    until = iv.covered_until(made(first), rows[:, 0], rows[:, 1], half)
    assert ((until <= rows[:, 1]) | (half == 0)).all()
    assert (iv.covered_within(made(first), rows[:, 0], until)[half > 0] == half[half > 0]).all()


@given(pairs)
def test_separate_rows_cover_the_same_and_stay_apart(rows):
    array = np.array(rows, dtype=np.int64).reshape(-1, 2)
    apart = iv.separate(array[:, 0], array[:, 1])
    assert points(apart) == points(made(rows))
    assert set(apart.end.tolist()) <= set(array[:, 1].tolist())


@given(pairs, st.integers(0, 10))
def test_holes(rows, longest):
    a = made(rows)
    closed = iv.close_holes(a, longest)
    assert points(a) <= points(closed)
    assert (closed.start[1:] - closed.end[:-1] > longest).all()
