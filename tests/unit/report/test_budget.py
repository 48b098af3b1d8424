"""A step's budget without some of its lines, and with launches in their place."""

import pytest

from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.budget import describe_change, describe_sides

COLUMNS = ["part", "launches", "host_ms", "host_us_each", "device_ms"]
ANSWER = QueryResult(
    COLUMNS,
    [
        ["/home/ada/train.py(31): train", 78.0, 1.5, 20.0, 0.25],
        ["recipe.py(31): forward", 30.0, 0.5, 20.0, 2.0],
        ["train.py(32): train", None, 1.0, None, None],
        ["fixed charge of a step (modelled)", None, 0.5, None, None],
        ["enumerate(DataLoader)#__next__", None, 0.4, None, None],
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
            ["train.py:31", "recipe.py:31"],
            "line 31 of train.py and line 31 of recipe.py are 108 launches, 2 ms on the host and",
            "2 ms on the host and 0.75 ms on the device.",
        ),
        (
            ["enumerate"],
            "enumerate(DataLoader)#__next__ is 0.4 ms on the host. ",
            "3.6 ms on the host and 3 ms on the device.",
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
    text = describe_change(ANSWER, lines)
    assert text.startswith(f"In a step, {taken}")
    below = text.partition("\n")[2]
    assert below.startswith(f"Without that, and with nothing in its place, the sums are {left}")


def test_the_gain_is_that_of_the_longer_sum():
    text = describe_change(ANSWER, ["train.py:31"])
    assert text.endswith(
        "With no wait left anywhere a step takes about 2.75 ms instead of 7 ms: 2.55 times as fast."
    )
    assert "Each launch in their place costs the host about 20 µs." in text


def test_launches_in_place_of_lines_cost_what_one_costs_here():
    text = describe_change(ANSWER, ["train.py:31", "recipe.py:31"], ["3"])
    assert (
        "Without that, and with 3 launches at 20 µs of the host in its place, the sums"
        " are 2.06 ms on the host and 0.75 ms on the device, plus what your own code takes there."
    ) in text
    assert text.endswith("a step takes about 2.06 ms instead of 7 ms: 3.40 times as fast.")
    assert "Each launch in their place" not in text
    assert "leaves out the waits of all lines, so it ranks no causes" in text


def test_time_of_the_host_in_place_of_a_row_counts_beside_launches():
    text = describe_change(ANSWER, ["enumerate"], ["2", "0.1ms", "50 us"])
    assert (
        "with 2 launches at 20 µs of the host and 0.15 ms of the host in its place, the sums are"
        " 3.79 ms on the host and 3 ms on the device"
    ) in text
    for given in ("x", "0", "-1", "1.5", "3 s"):
        with pytest.raises(UsageError, match="neither a number of launches nor a time"):
            describe_change(ANSWER, [], [given])


def test_a_number_that_two_files_have_is_refused_with_both():
    with pytest.raises(UsageError, match=r"On line 31, train\.py and recipe\.py each") as refused:
        describe_change(ANSWER, ["31"])
    assert "`--without train.py:31` or `--without recipe.py:31`" in refused.value.remedy
    with pytest.raises(UsageError, match="On lines 31-32, "):
        describe_change(ANSWER, ["31-32"])


def test_the_slower_side_is_that_of_the_longer_sum():
    assert describe_sides(ANSWER) == (
        "Without waits the host is the slower side: 4 ms a step, against 3 on the device. Once"
        " nothing waits, only less work there saves time."
    )
    parts = [["host", "all but waits", 2.0], ["device", "all but idle time", 2.5]]
    step = QueryResult(["side", "part", "ms_a_step"], parts)
    assert "the device is the slower side: 2.5 ms a step, against 2 on the host" in describe_sides(
        step
    )
    assert not describe_sides(QueryResult(step.columns, parts[:1])), "no accelerator"


def test_launches_are_counted_with_all_lines_left():
    first, _, below = describe_change(ANSWER, [], ["1"]).partition("\n")
    assert first.startswith("What follows is for all your changes together")
    assert below.startswith(
        "With 1 launch at 20 µs of the host more, the sums are 4.02 ms on the host and 3 ms on"
        " the device, plus what your own code takes there."
    )


def test_launches_are_refused_where_none_has_a_price():
    rows = [[part, None, host, None, None] for part, _, host, *_ in ANSWER.rows]
    with pytest.raises(UsageError, match="no line of this capture launches anything on a device"):
        describe_change(QueryResult(COLUMNS, rows), ["train.py:31"], ["3"])


def test_a_line_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="No line 40") as refused:
        describe_change(ANSWER, ["40"])
    assert "train.py:31, recipe.py:31, train.py:32" in refused.value.remedy
    for line in ("recipe.py:32", "-31", "x"):
        with pytest.raises(UsageError, match="No line "):
            describe_change(ANSWER, [line])


def test_without_an_accelerator_the_host_s_sum_alone_counts():
    rows = [[*row[:4], None] for row in ANSWER.rows]
    text = describe_change(QueryResult(COLUMNS, rows), ["train.py:31"])
    assert "2.5 ms on the host and 0 ms on the device" in text
    assert "2.5 ms instead of 7 ms: 2.80 times" in text


def test_without_all_of_its_lines_nothing_is_left_of_a_step():
    whole = [ANSWER.rows[0], ["sum", *ANSWER.rows[0][1:]], ANSWER.rows[-1]]
    text = describe_change(QueryResult(COLUMNS, whole), ["31"])
    assert text.endswith("Without that, nothing is left of the step.")
