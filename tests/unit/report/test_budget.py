"""A step's budget without some of its lines."""

import pytest

from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.budget import describe_without

COLUMNS = ["part", "launches", "host_ms", "host_us_each", "device_ms"]
ANSWER = QueryResult(
    COLUMNS,
    [
        ["/home/ada/train.py(31): train", 78.0, 1.5, 20.0, 0.25],
        ["recipe.py(31): forward", 30.0, 0.5, 20.0, 2.0],
        ["train.py(32): train", None, 1.0, None, None],
        ["fixed charge of a step (modelled)", None, 0.9, None, None],
        ["sum", 108.0, 4.0, None, 3.0],
        ["a step now, with waits", None, 7.0, None, 7.0],
    ],
)


@pytest.mark.parametrize(
    ("lines", "taken", "left"),
    [
        (
            ["train.py:31"],
            "line 31 of train.py is 78 launches, 1.5 ms on the host and 0.25 ms on the device.",
            "2.5 ms on the host and 2.75 ms on the device.",
        ),
        (
            ["train.py:31", "32"],
            "lines 31, 32 of train.py are 78 launches, 2.5 ms on the host and 0.25 ms on the",
            "1.5 ms on the host and 2.75 ms on the device.",
        ),
        (
            ["31"],
            "line 31 of train.py and line 31 of recipe.py are 108 launches, 2 ms on the host and",
            "2 ms on the host and 0.75 ms on the device.",
        ),
        (
            ["train.py:30-40"],
            "lines 31, 32 of train.py are 78 launches",
            "1.5 ms on the host and 2.75 ms on the device.",
        ),
        (
            ["32"],
            "line 32 of train.py is 1 ms on the host. ",
            "3 ms on the host and 3 ms on the device.",
        ),
    ],
)
def test_what_lines_take_is_told_before_the_sums_without_them(lines, taken, left):
    text = describe_without(ANSWER, lines)
    assert text.startswith(f"In a step, {taken}")
    below = text.partition("\n")[2]
    assert below.startswith(
        f"Without these lines, and with nothing in their place, the sums are {left}"
    )


def test_the_gain_is_that_of_the_longer_sum():
    text = describe_without(ANSWER, ["train.py:31"])
    assert text.endswith(
        "With no wait left anywhere a step takes about 2.75 ms instead of 7 ms: 2.55 times as fast."
    )
    assert "Each launch in their place costs the host about 20 µs." in text


def test_a_line_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="No line 40") as refused:
        describe_without(ANSWER, ["40"])
    assert "train.py:31, recipe.py:31, train.py:32" in refused.value.remedy
    for line in ("recipe.py:32", "-31", "x"):
        with pytest.raises(UsageError, match="No line "):
            describe_without(ANSWER, [line])


def test_without_an_accelerator_the_host_s_sum_alone_counts():
    rows = [[*row[:4], None] for row in ANSWER.rows]
    text = describe_without(QueryResult(COLUMNS, rows), ["train.py:31"])
    assert "2.5 ms on the host and 0 ms on the device" in text
    assert "2.5 ms instead of 7 ms: 2.80 times" in text


def test_without_all_of_its_lines_nothing_is_left_of_a_step():
    whole = [ANSWER.rows[0], ["sum", *ANSWER.rows[0][1:]], ANSWER.rows[-1]]
    text = describe_without(QueryResult(COLUMNS, whole), ["31"])
    assert text.endswith("Without these lines, nothing is left of it.")
