"""Operators under the roofline, from shapes whose FLOP are known by hand."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec.structs import replace as replace_struct

from bottleneck_lab import load, merge_ranks, summarise
from bottleneck_lab.analysis.counters.roofline import CacheLevel, Machine
from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.report.console.roofline import draw_roofline
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.page.roofline_chart import roofline_chart
from bottleneck_lab.report.words import format_flops
from bottleneck_lab.trace.shapes import work_of

MM = {
    "Input Dims": [[128, 64], [64, 32]],
    "Input type": ["float", "float"],
    "Concrete Inputs": ["", ""],
}


def capture(tmp_path, name="NVIDIA A100-SXM4-80GB", device=True, pid=1, **args):
    mm = {"External id": 7, **MM, **args}
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": pid,
            "tid": 1,
            "ts": 10,
            "dur": 5,
            "args": mm,
        }
    ]
    kernel = {"External id": 7, "device": 0, "stream": 7, "correlation": 3}
    if device:
        events += [
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "pid": 0,
                "tid": 7,
                "ts": at,
                "dur": 1,
                "args": kernel,
            }
            for at in (20, 30)
        ]
    path = tmp_path / "x.json"
    path.write_text(
        json.dumps({"deviceProperties": [{"id": 0, "name": name}], "traceEvents": events})
    )
    return load(path)


def counted(name, dims, kinds, values=()):
    return work_of(name, *(json.dumps(part).encode() for part in (dims, kinds, list(values))))


@pytest.mark.parametrize(
    ("name", "dims", "values", "flop", "elements"),
    [
        ("aten::mm", [[3, 4], [4, 5]], [], 2 * 60, 12 + 20 + 15),
        ("aten::addmm", [[5], [3, 4], [4, 5]], [], 2 * 60, 12 + 20 + 15),
        ("aten::bmm", [[7, 3, 4], [7, 4, 5]], [], 14 * 60, 7 * (12 + 20 + 15)),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 3, 8, 4]] * 3,
            [],
            2 * 6 * 8 * 8 * 8,
            4 * 192,
        ),
        (
            "aten::cudnn_convolution",
            [[1, 2, 6, 6], [4, 2, 3, 3]],
            ["", "", "[1, 1]", "[2, 2]", "[1, 1]"],
            2 * 4 * 9 * 18,
            72 + 72 + 36,
        ),
    ],
)
def test_flop_and_bytes_by_hand(name, dims, values, flop, elements):
    found = counted(name, dims, ["c10::Half"] * 3, values)
    assert (found.flop, found.moved_bytes) == (flop, 2 * elements)


@pytest.mark.parametrize(
    ("name", "dims", "flop", "elements"),
    [
        ("aten::add", [[5, 6], [5, 6], []], 30, 90),
        ("aten::mul_", [[5, 6], []], 30, 61),
        ("aten::div", [[5, 1], [6]], 30, 5 + 6 + 30),
        ("aten::pow", [[7], []], 7, 14),
        ("aten::addcdiv_", [[7], [7], [7], []], 21, 28),
        ("aten::sum", [[4, 5], [], []], 20, 20),
        ("aten::addmv_", [[8], [8, 9], [9], [], []], 2 * 72, 72 + 9 + 8),
        ("aten::native_batch_norm", [[2, 3, 4, 4], [3], [3]], 2 * 96, 2 * 96),
    ],
)
def test_what_is_not_a_matrix_product_is_counted_by_what_comes_out(name, dims, flop, elements):
    found = counted(name, dims, ["float"] * len(dims))
    assert (found.flop, found.moved_bytes) == (flop, 4 * elements)


def test_a_pooling_compares_each_input_of_a_window_and_keeps_its_place():
    values = ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"]
    pooled = counted("aten::max_pool2d_with_indices", [[2, 64, 112, 112]], ["float"], values)
    out = 2 * 64 * 56 * 56
    assert (pooled.flop, pooled.moved_bytes) == (9 * out, 4 * (4 * out) + 12 * out)


@pytest.mark.parametrize(
    ("dims", "kinds"),
    [
        ([], []),
        ([[3]], ["float"]),
        ([[3, 4], [4, 5]], ["int"]),
        ("x", "y"),
        ([[0, 4], [4, 5]], ["float"] * 2),
    ],
)
def test_what_shapes_do_not_tell_is_not_counted(dims, kinds):
    assert counted("aten::mm", dims, kinds) is None


def test_a_kernel_is_placed_under_its_ceiling(tmp_path):
    found = summarise(capture(tmp_path)).roofline
    (row,) = found.rows
    flop, moved = 2 * 128 * 64 * 32, 4 * (128 * 64 + 64 * 32 + 128 * 32)
    assert (row.operator, row.precision, row.calls, row.time_ns) == ("aten::mm", "fp32", 1, 2000)
    assert row.flops_per_s == pytest.approx(flop / 2e-6)
    assert row.intensity == pytest.approx(flop / moved)
    assert row.bound == "overhead-bound", "2 us, and far below every ceiling"
    assert row.ceiling_share == pytest.approx(flop / 2e-6 / (flop / moved * 2039e9))
    assert "data sheet" in found.note


@pytest.mark.parametrize(
    ("name", "device", "said"), [("RTX 9", True, "none are listed"), ("", False, "a CPU's depend")]
)
def test_without_ceilings_it_says_why(tmp_path, name, device, said):
    found = summarise(capture(tmp_path, name, device)).roofline
    assert said in found.note
    assert [row.ceiling_share for row in found.rows] == [-1]
    assert found.rows[0].time_ns == (2000 if device else 5000)


def test_measured_ceilings_go_before_a_data_sheet_and_before_none(tmp_path):
    measured = Machine("a CPU", {"fp32": 100e9}, 20e9, threads=2, measured="2026-01-02")
    for device in (False, True):
        found = summarise(capture(tmp_path, device=device), measured).roofline
        (row,) = found.rows
        assert found.machine == measured
        assert row.bound == "compute-bound", "9 FLOP per byte, where the machine balances at 5"
        assert row.ceiling_share == pytest.approx(row.flops_per_s / 100e9)
        assert "measured here on 2026-01-02 with 2 threads" in found.note


LAPTOP = Machine("laptop", {"fp32": 1e11}, 1e10, [CacheLevel("L2", 2**20, 8e10)], 2, "2026-01-01")


@pytest.mark.parametrize(
    ("dur_us", "bound", "share"),
    [
        (5.7344, "memory-bound", 1.0),
        (11.0, "memory-bound", 0.521),
        (2.0, "cache-bound", 2.87),
        (40.0, "memory-bound", 0.143),
        (0.1, "cache-bound", 57.3),
    ],
)
def test_what_is_above_memory_is_in_a_cache(tmp_path, dur_us, bound, share):
    """57,344 bytes at 10 GB/s: 5.7 us."""
    timeline = capture(tmp_path, device=False)
    rows = timeline.operators
    timeline = replace(timeline, operators=replace(rows, end=rows.start + int(1000 * dur_us)))
    found = summarise(timeline, LAPTOP).roofline
    assert (found.rows[0].bound, found.rows[0].ceiling_share) == (
        bound,
        pytest.approx(share, rel=0.01),
    )


def test_labels_of_ceilings_that_are_near_each_other_stand_apart(tmp_path):
    near = [
        CacheLevel(name, 1 << 20, 1.01**n * LAPTOP.bytes_per_s) for n, name in enumerate("abc", 1)
    ]
    machine = replace_struct(LAPTOP, caches=near)
    drawn = str(roofline_chart(summarise(capture(tmp_path, device=False), machine).roofline))
    heights = [
        float(re.search(rf'<text[^>]* y="([\d.]+)"[^>]*>{name}</text>', drawn)[1])
        for name in ("memory", "a", "b", "c")
    ]
    assert all(lower - upper >= 13.9 for lower, upper in pairwise(heights)), heights
    assert min(heights) >= 10


def test_the_terminal_draws_lines_and_letters(tmp_path):
    (row,) = summarise(capture(tmp_path, device=False), LAPTOP).roofline.rows
    places = ((1.0, 5e9), (100.0, 9e10))
    rows = [
        replace_struct(row, intensity=intensity, flops_per_s=rate) for intensity, rate in places
    ]
    drawn = draw_roofline(LAPTOP, rows, 80)
    assert max(map(len, drawn)) <= 80
    first, second = (
        next(place for place, line in enumerate(drawn) if letter in line[15:]) for letter in "AB"
    )
    assert second < first, "the faster one stands higher"
    assert drawn[second].index("B") > drawn[first].index("A")
    level = next(line for line in drawn if "....." in line)
    assert level.rstrip().endswith("."), "arithmetic is level up to the right edge"
    assert format_flops(LAPTOP.flops["fp32"]) in level, "its rate stands beside it"
    ends = drawn[-1].split()
    assert all(re.fullmatch(r"0\.0*[125]|[125]0*", end) for end in (ends[0], ends[-1])), ends


def test_operators_in_one_place_of_a_terminal_stand_side_by_side(tmp_path):
    (row,) = summarise(capture(tmp_path, device=False), LAPTOP).roofline.rows
    same = [replace_struct(row, intensity=1.0, flops_per_s=5e9)] * 3
    drawn = draw_roofline(LAPTOP, same, 80)
    assert any({"CAB", "BAC"} & {line[at : at + 3] for at in range(80)} for line in drawn)


def test_the_page_has_the_letters_in_the_table_and_at_the_dots(tmp_path):
    page = render_html(title="x", capture=analyse(capture(tmp_path, device=False), LAPTOP))
    assert ">A</td>" in page
    assert ">A</text>" in page


def test_ranks_are_joined_each_with_its_own(tmp_path):
    first, second = capture(tmp_path), capture(tmp_path, pid=2)
    assert [row.calls for row in summarise(merge_ranks([first, second])).roofline.rows] == [2]


def test_the_page_draws_it(tmp_path):
    timeline = capture(tmp_path)
    page = render_html(title="x", capture=analyse(timeline))
    assert "Operators under the roofline" in page
    assert "time with all it calls" in page, "the operators above it have their self time"
    assert page.count('class="roof"') == 2, "memory and one precision"
    page = render_html(title="x", capture=analyse(capture(tmp_path, device=False), LAPTOP))
    assert page.count('class="roof"') == 3
    assert ">L2<" in page


def test_a_convolution_that_no_library_took_over_counts_the_same():
    """aten::_slow_conv2d_forward has its arguments in another order: kernel, bias, stride,
    padding.
    """
    dims, types = (
        b"[[4, 64, 56, 56], [256, 64, 1, 1], [], [], [], []]",
        b'["float", "float", "", "", "", ""]',
    )
    slow = work_of(
        "aten::_slow_conv2d_forward", dims, types, b'["", "", "[1, 1]", "", "[2, 2]", "[0, 0]"]'
    )
    fast = work_of(
        "aten::mkldnn_convolution", dims, types, b'["", "", "", "[0, 0]", "[2, 2]", "[1, 1]"]'
    )
    assert slow is not None
    assert slow == fast
    assert slow.flop == 2.0 * 4 * 28 * 28 * 256 * 64
