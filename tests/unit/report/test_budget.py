"""A step's budget without some of its lines, and with launches in their place."""

import pytest

from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.budget import (
    UNCHANGED,
    Change,
    derive_most_saved,
    describe_change,
    describe_sides,
    find_parts,
)
from bottleneck_lab.report.operator_launches import OPERATORS

COLUMNS = ["part", "launches", "host_ms", "waiting_ms", "device_ms"]
ANSWER = QueryResult(
    COLUMNS,
    [
        ["/home/ada/train.py(31): train", 75.0, 1.5, 2.5, 0.25],
        ["recipe.py(31): forward", 25.0, 0.5, None, 2.0],
        ["train.py(32): train", None, 1.0, None, None],
        ["fixed charge of a step (modelled)", None, 0.5, None, None],
        ["enumerate(DataLoader)#__next__", None, 0.4, None, None],
        ["sum", 100.0, 4.0, 3.0, 3.0],
        ["idle", None, None, None, 4.0],
        ["a step now", None, 7.0, None, 7.0],
    ],
)


@pytest.mark.parametrize(
    ("left_out", "taken", "host", "device"),
    [
        (
            ["train.py:31"],
            "line 31 of train.py is 75 launches, 1.50 ms on the host, 2.50 ms of waiting and"
            " 0.25 ms on the device",
            "4.00 − 1.50 = 2.50 ms",
            "3.00 − 0.25 = 2.75 ms, the slower side",
        ),
        (
            ["train.py:31", "32"],
            "lines 31, 32 of train.py are 75 launches, 2.50 ms on the host, 2.50 ms of waiting and"
            " 0.25 ms on the device",
            "4.00 − 2.50 = 1.50 ms",
            "3.00 − 0.25 = 2.75 ms, the slower side",
        ),
        (
            ["train.py:31", "recipe.py:31"],
            "line 31 of train.py and line 31 of recipe.py are 100 launches, 2.00 ms on the host,"
            " 2.50 ms of waiting and 2.25 ms on the device",
            "4.00 − 2.00 = 2.00 ms, the slower side",
            "3.00 − 2.25 = 0.75 ms",
        ),
        (
            ["enumerate"],
            "enumerate(DataLoader)#__next__ is 0.40 ms on the host",
            "4.00 − 0.40 = 3.60 ms, the slower side",
            "3.00 ms",
        ),
        (
            ["train.py:30-40"],
            "lines 31, 32 of train.py are 75 launches, 2.50 ms on the host, 2.50 ms of waiting and"
            " 0.25 ms on the device",
            "4.00 − 2.50 = 1.50 ms",
            "3.00 − 0.25 = 2.75 ms, the slower side",
        ),
        (
            ["32"],
            "line 32 of train.py is 1.00 ms on the host",
            "4.00 − 1.00 = 3.00 ms, the slower side",
            "3.00 ms",
        ),
    ],
)
def test_both_sums_are_added_up_without_what_is_left_out(left_out, taken, host, device):
    parts = find_parts(ANSWER, left_out)
    first, alone, gain, *rest = describe_change(ANSWER, parts, UNCHANGED, 1.47).splitlines()
    assert first == f"Left out: {taken}."
    assert alone.startswith("This alone, while other lines still wait: ")
    assert "4.76 ms a step, which saves 32.0%: 1.47 times as fast." in alone
    assert gain.startswith("This, and all waits gone: a step takes about ")
    assert gain.endswith(" times as fast.")
    assert rest == [
        f"  host    {host}",
        f"  device  {device}",
        "For a prediction, add what takes its place: each launch costs the host about 20 µs,"
        " `--with 3`; `--device-work 0.8` is for less work on the device.",
    ]
    unknown = gain.replace("This, and", "With")
    assert describe_change(ANSWER, parts, UNCHANGED).splitlines() == [first, unknown, *rest]


def test_what_is_gained_alone_is_derived_with_the_waits_that_come_to_other_lines():
    parts = find_parts(ANSWER, ["train.py:31"])
    _, alone, *_ = describe_change(ANSWER, parts, UNCHANGED, 7.0 / 3.4).splitlines()
    assert alone == (
        "This alone, while other lines still wait: 7.00 − (1.50 + 2.50) + 0.40 = 3.40 ms a"
        " step, which saves 51.4%: 2.06 times as fast. The 0.40 ms are waits that come to other"
        " lines."
    )
    # A replay that leaves less than the rest: what more there is to it, the sums do not say.
    _, alone, *_ = describe_change(ANSWER, parts, UNCHANGED, 7.0 / 2.9).splitlines()
    assert alone == (
        "This alone, while other lines still wait: 2.90 ms a step, which saves 58.6%:"
        " 2.41 times as fast."
    )


def test_the_gain_is_that_of_the_longer_sum():
    parts = find_parts(ANSWER, ["train.py:31"])
    _, gain, *_ = describe_change(ANSWER, parts, UNCHANGED).splitlines()
    assert gain == (
        "With all waits gone: a step takes about 2.75 ms instead of 7.00 ms: 2.55 times as fast."
    )


def test_launches_and_time_in_place_of_lines_are_added_to_the_host_s_sum():
    parts = find_parts(ANSWER, ["train.py:31", "recipe.py:31"])
    out, added, gain, host, device = describe_change(
        ANSWER, parts, Change(added=["2", "1", "0.1ms", "50 us"])
    ).splitlines()
    assert out.startswith("Left out: line 31 of train.py and")
    assert added == "Added: 3 launches at 20 µs of the host and 0.15 ms of the host."
    assert "about 2.21 ms instead of 7.00 ms: 3.17 times as fast." in gain
    assert host == "  host    4.00 − 2.00 + 0.21 = 2.21 ms, the slower side"
    assert device == (
        "  device  3.00 − 2.25 = 0.75 ms, without what your own code takes there: `--with"
        " device:0.2ms` adds it"
    )


def test_where_the_device_is_slower_an_unknown_part_of_it_makes_a_sum_the_best_case():
    parts = find_parts(ANSWER, ["train.py:31"])
    _, _, gain, *_ = describe_change(ANSWER, parts, Change(added=["1"])).splitlines()
    assert "a step takes at best 2.75 ms" in gain
    known = Change(added=["1", "device:0.1ms"])
    _, _, gain, *_ = describe_change(ANSWER, parts, known).splitlines()
    assert "a step takes about 2.85 ms" in gain


def test_with_nothing_left_out_what_is_added_counts_all_the_same():
    added, _, host, device = describe_change(ANSWER, [], Change(added=["1"])).splitlines()
    assert added == "Added: 1 launch at 20 µs of the host."
    assert host == "  host    4.00 + 0.02 = 4.02 ms, the slower side"
    assert device == (
        "  device  3.00 ms, without what your own code takes there: `--with device:0.2ms` adds it"
    )


def test_operators_are_added_with_their_launches_forward_and_backward():
    """However they are called, and whether they are given apart or with commas."""
    added, *operators, _, host, _ = describe_change(
        ANSWER,
        [],
        Change(added=["6*layer_norm, 2 * nn.Linear,2", "F.layer_norm", "sgd_fused,backward,0.1ms"]),
        emulated=True,
    ).splitlines()
    assert added == "Added: 26 launches at 20 µs of the host and 0.10 ms of the host."
    assert operators == [
        "  7 × layer_norm: 7 launches forward, 7 backward",
        "  2 × linear: 2 launches forward, 6 backward",
        "  1 × sgd_fused: 1 launch",
        "  1 × backward: 1 launch backward",
        "  2 launches besides",
    ]
    assert host == "  host    4.00 + 0.62 = 4.62 ms, the slower side"


def test_an_unknown_operator_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match=r"What 'F\.relu6' launches is not known") as refused:
        describe_change(ANSWER, [], Change(added=["6*F.relu6"]), emulated=True)
    for name in OPERATORS:
        assert f"\n  {name} " in refused.value.remedy


def test_operators_are_refused_where_another_device_decides_what_they_launch():
    with pytest.raises(UsageError, match="known of the emulated device only") as refused:
        describe_change(ANSWER, [], Change(added=["gelu"]))
    assert "`--with 3`" in refused.value.remedy


def test_time_of_the_device_in_place_of_lines_is_added_to_its_sum():
    parts = find_parts(ANSWER, ["recipe.py:31"])
    change = Change(added=["2", "0.1 ms", "device:0.4ms", "device:100us"])
    _, added, _, _, device = describe_change(ANSWER, parts, change).splitlines()
    assert added == (
        "Added: 2 launches at 20 µs of the host, 0.10 ms of the host and 0.50 ms of the device."
    )
    assert device == "  device  3.00 − 2.00 + 0.50 = 1.50 ms"


def test_alone_counts_what_is_added_as_if_all_of_it_came_on_top():
    parts = find_parts(ANSWER, ["train.py:31"])
    change = Change(added=["5", "0.3ms", "device:0.1ms"])
    _, _, alone, *_ = describe_change(ANSWER, parts, change, 1.4).splitlines()
    # 7 ms / 1.4 and 0.1 + 0.3 + 0.1 ms more.
    assert alone == (
        "This alone, while other lines still wait: 5.50 ms a step or less, 1.27 times as fast or"
        " more, if what is added waits for nothing: a single `.item()` may undo most of it."
    )


def test_nothing_is_said_of_waits_that_take_next_to_nothing():
    rows = [row for row in ANSWER.rows if row[0] not in ("sum", "a step now", "idle")]
    rows += [
        ["sum", 100.0, 4.0, 0.01, 3.0],
        ["idle", None, None, None, 1.01],
        ["a step now", None, 4.01, None, 4.01],
    ]
    answer = QueryResult(COLUMNS, rows)
    _, gain, stay, *_ = describe_change(answer, ["train.py(32): train"], UNCHANGED).splitlines()
    assert gain == "After that, a step takes about 3.00 ms instead of 4.01 ms: 1.34 times as fast."
    assert stay == "Waits that stay may add up to 0.01 ms."


def test_less_work_on_the_device_scales_what_is_left_of_its_sum():
    parts = find_parts(ANSWER, ["train.py:31"])
    _, remains, gain, host, device, _ = describe_change(
        ANSWER, parts, Change(device_share=0.6)
    ).splitlines()
    assert remains == "Of the device's other work, 60% remains."
    assert "about 2.50 ms instead of 7.00 ms: 2.80 times as fast" in gain
    assert host == "  host    4.00 − 1.50 = 2.50 ms, the slower side"
    assert device == "  device  (3.00 − 0.25) × 0.6 = 1.65 ms"
    *_, device, _ = describe_change(ANSWER, [], Change(device_share=0.5)).splitlines()
    assert device == "  device  3.00 × 0.5 = 1.50 ms"


@pytest.mark.parametrize("given", ["", "0", "-1", "1.5", "3 s", "3,,2", "0*gelu", "6*"])
def test_what_is_neither_launches_nor_a_time_is_refused(given):
    with pytest.raises(UsageError, match="neither launches, an operator nor a time"):
        describe_change(ANSWER, [], Change(added=[given]))


def test_several_lines_are_given_with_commas():
    assert find_parts(ANSWER, ["train.py:31", "32,32-40"]) == find_parts(ANSWER, ["train.py:30-40"])
    with pytest.raises(UsageError, match="'33' is no line"):
        find_parts(ANSWER, ["32,33"])


def test_lines_and_other_rows_are_given_together():
    line, loading = "train.py(32): train", "enumerate(DataLoader)#__next__"
    assert find_parts(ANSWER, ["32, enumerate"]) == [line, loading]
    answer = QueryResult(COLUMNS, [*ANSWER.rows, ["load, then resize", None, 0.1, None, None]])
    assert find_parts(answer, ["load, then", "32"]) == ["load, then resize", line]


def test_a_number_that_two_files_have_is_refused_with_both():
    with pytest.raises(UsageError, match=r"On line 31, train\.py and recipe\.py each") as refused:
        find_parts(ANSWER, ["31"])
    assert "`--without train.py:31` or `--without recipe.py:31`" in refused.value.remedy
    with pytest.raises(UsageError, match="On lines 31-32, "):
        find_parts(ANSWER, ["31-32"])


def test_the_slower_side_is_that_of_the_longer_sum():
    assert describe_sides(ANSWER) == (
        "Without waits a step takes as long as its slower side, the host: 4.00 ms, 1.75 times as"
        " fast as now. The device takes 3.00. Only less work on the host saves more."
    )
    parts = [
        ["host", "all but waits", 2.0],
        ["device", "all but idle time", 2.5],
        ["device", "idle", 0.5],
    ]
    step = QueryResult(["side", "part", "ms_a_step"], parts)
    assert describe_sides(step) == (
        "Without waits a step takes as long as its slower side, the device: 2.50 ms, 1.20 times as"
        " fast as now. The host takes 2.00. Only less work on the device saves more."
    )
    assert not describe_sides(QueryResult(step.columns, parts[:1])), "no accelerator"


WITHOUT_WAIT = [ANSWER.rows[0], ["recipe.py(31): forward", 25.0, 1.0, None, 2.0], *ANSWER.rows[2:]]


def with_savings(*percents, rows=ANSWER.rows):
    saved = [*percents, *[None] * (len(rows) - len(percents))]
    return QueryResult(
        [*COLUMNS, "saves_percent"],
        [[*row, each] for row, each in zip(rows, saved, strict=True)],
    )


def test_what_saves_most_is_derived_as_it_is_when_it_is_left_out():
    answer = with_savings(51.4286, 7.0, 14.0)
    text = derive_most_saved(answer)
    assert text == (
        "Without train.py(31) a step takes 7.00 − (1.50 + 2.50) + 0.40 = 3.40 ms, which saves"
        " 51.4%. The 0.40 ms are waits that come to other lines."
    )
    parts = find_parts(answer, ["train.py:31"])
    _, alone, *_ = describe_change(answer, parts, UNCHANGED, 7.0 / 3.4).splitlines()
    assert "7.00 − (1.50 + 2.50) + 0.40 = 3.40 ms" in alone
    # A line that waits for nothing.
    text = derive_most_saved(with_savings(10.0, 12.0, rows=WITHOUT_WAIT))
    assert text.startswith("Without recipe.py(31) a step takes 7.00 − 1.00 + 0.16 = 6.16 ms, which")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ANSWER, id="no savings are known"),
        pytest.param(with_savings(), id="none saves anything"),
        pytest.param(with_savings(60.0), id="less is left than the sums have"),
        pytest.param(with_savings(1.0, 1.0, 1.0, None, 5.0), id="not a line"),
        pytest.param(
            with_savings(51.4, rows=[[*row[:4], None] for row in ANSWER.rows]), id="no device"
        ),
    ],
)
def test_what_does_not_add_up_so_is_not_derived(answer):
    assert derive_most_saved(answer) == ""


def test_launches_are_refused_where_none_has_a_price():
    rows = [[part, None, host, None, None] for part, _, host, *_ in ANSWER.rows]
    with pytest.raises(UsageError, match="no line of this capture launches anything on a device"):
        describe_change(QueryResult(COLUMNS, rows), [], Change(added=["3"]))


def test_a_line_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="'40' is no line") as refused:
        find_parts(ANSWER, ["40"])
    assert "train.py:31, recipe.py:31, train.py:32" in refused.value.remedy
    for line in ("", "32,", "recipe.py:32", "-31", "x", "fixed", "sum", "idle", "a step"):
        with pytest.raises(UsageError, match="is no line that"):
            find_parts(ANSWER, [line])


def test_without_an_accelerator_the_host_s_sum_alone_counts():
    rows = [[*row[:4], None] for row in ANSWER.rows]
    text = describe_change(QueryResult(COLUMNS, rows), [str(ANSWER.rows[0][0])], UNCHANGED)
    assert "2.50 ms instead of 7.00 ms: 2.80 times" in text
    assert "  device" not in text


def test_without_all_of_its_lines_nothing_is_left_of_a_step():
    whole = [ANSWER.rows[0], ["sum", *ANSWER.rows[0][1:]], ANSWER.rows[-1]]
    text = describe_change(QueryResult(COLUMNS, whole), [str(ANSWER.rows[0][0])], UNCHANGED)
    assert text.endswith("Without that, nothing is left of the step.")
