"""One warp followed through PTX written for the purpose: who is who, branches, what is unknown, and
what addresses cost.
"""

import numpy as np
import pytest

from bottleneck_lab.analysis.machine_code.compiled import sum_up
from bottleneck_lab.analysis.machine_code.ptx import read_ptx
from bottleneck_lab.analysis.machine_code.sass import read_reports
from bottleneck_lab.analysis.machine_code.transactions import passes, sectors
from bottleneck_lab.analysis.machine_code.warp import (
    SHARED_WINDOW,
    Launch,
    WarpAccesses,
    follow,
)

LANE = np.arange(32, dtype=np.int64)

HEAD = """
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 tile[];
.visible .entry kernel(
.param .u64 kernel_param_0,
.param .u32 kernel_param_1
)
.maxntid 256, 1, 1
{
.reg .pred %p<9>;
.reg .b32 %r<99>;
.reg .b64 %rd<99>;
.loc	1 7 0
ld.param.u64 %rd1, [kernel_param_0];
ld.param.u32 %r1, [kernel_param_1];
cvta.to.global.u64 %rd2, %rd1;
mov.u32 %r2, %tid.x;
"""


def run(body: str, *, threads: int = 64, number: int = 4) -> WarpAccesses:
    kernel = read_ptx(f"{HEAD}{body}\nret;\n}}\n")["kernel"]
    arguments = [(1 << 32).to_bytes(8, "little"), number.to_bytes(4, "little")]
    return follow(kernel, Launch("kernel", (8, 1, 1), (threads, 1, 1), 1024, arguments))


def rates(found: WarpAccesses) -> list[tuple[int, str, str, int, float, float]]:
    return [
        (
            access.line,
            access.space,
            access.what,
            access.requests,
            access.cost / access.requests,
            access.least / access.requests,
        )
        for access in found.accesses
    ]


@pytest.mark.parametrize(
    ("addresses", "size", "touched", "least"),
    [
        (4 * LANE, 4, 4, 4),
        (128 * LANE, 4, 32, 4),
        (16 * LANE, 16, 16, 16),
        (0 * LANE, 4, 1, 1),
        (4 * LANE + 16, 4, 5, 4),
        (2 * LANE, 2, 2, 2),
    ],
    ids=["in a row", "a row a lane", "16 bytes each", "one for all", "not aligned", "halves"],
)
def test_sectors_of_a_request(addresses, size, touched, least):
    assert sectors(addresses, size) == (touched, least)


@pytest.mark.parametrize(
    ("addresses", "size", "needed", "least"),
    [
        (4 * LANE, 4, 1, 1),
        (128 * LANE, 4, 32, 1),
        (132 * LANE, 4, 1, 1),
        (8 * LANE, 4, 2, 1),
        (0 * LANE, 4, 1, 1),
        (16 * LANE, 16, 4, 4),
        (8 * LANE, 8, 2, 2),
        (128 * LANE, 16, 32, 4),
    ],
    ids=[
        "in a row",
        "a bank for all",
        "padded",
        "every other",
        "one word",
        "16 in a row",
        "8 in a row",
        "16, a bank for all",
    ],
)
def test_passes_through_the_banks(addresses, size, needed, least):
    assert passes(LANE, addresses, size) == (needed, least)


def test_a_stride_is_followed_from_the_thread_to_the_address():
    found = run(
        ".loc\t1 9 5\nmul.wide.s32 %rd3, %r2, 256;\nadd.s64 %rd4, %rd2, %rd3;\nld.global.u32 %r3,"
        " [%rd4+8];"
    )
    assert rates(found) == [(9, "global", "loads", 1, 32, 4)]
    assert found.whole


def test_a_loop_ends_where_the_argument_says():
    body = """
mov.u32 %r3, 0;
$L__BB0_1:
.loc	1 12 5
shl.b32 %r4, %r2, 7;
mov.u32 %r5, tile;
add.s32 %r6, %r5, %r4;
st.shared.u32 [%r6], %r3;
add.s32 %r3, %r3, 1;
setp.lt.s32 %p1, %r3, %r1;
@%p1 bra $L__BB0_1;
"""
    assert rates(run(body, number=5)) == [(12, "shared", "stores", 5, 32, 1)]


def test_lanes_part_at_a_branch_and_meet_again():
    body = """
setp.gt.u32 %p1, %r2, 7;
@%p1 bra $L__BB0_1;
.loc	1 20 5
mul.wide.u32 %rd3, %r2, 32;
add.s64 %rd4, %rd2, %rd3;
ld.global.u32 %r3, [%rd4];
$L__BB0_1:
.loc	1 30 5
mul.wide.u32 %rd5, %r2, 4;
add.s64 %rd6, %rd2, %rd5;
st.global.u32 [%rd6], %r2;
"""
    assert rates(run(body)) == [(20, "global", "loads", 1, 8, 1), (30, "global", "stores", 1, 4, 4)]


def test_a_block_smaller_than_a_warp_counts_only_its_own_lanes():
    body = (
        ".loc\t1 9 5\nmul.wide.u32 %rd3, %r2, 4;\nadd.s64 %rd4, %rd2, %rd3;\nld.global.u32 %r3,"
        " [%rd4];"
    )
    assert rates(run(body, threads=8)) == [(9, "global", "loads", 1, 1, 1)]


def test_what_hangs_on_data_is_not_counted_and_said_to_be_missing():
    body = """
ld.global.u32 %r3, [%rd2];
mul.wide.s32 %rd3, %r3, 4;
add.s64 %rd4, %rd2, %rd3;
.loc	1 9 5
ld.global.u32 %r4, [%rd4];
"""
    found = run(body)
    assert [access.line for access in found.accesses] == [7]
    assert not found.whole


def test_a_branch_on_data_over_mere_arithmetic_changes_nothing():
    found = run(
        "ld.global.f32 %r3, [%rd2];\nsetp.leu.f32 %p1, %r3, 0f00000000;\n@%p1 bra"
        " $L__BB0_1;\nrcp.rn.f32 %r3, %r3;\n$L__BB0_1:"
    )
    assert found.whole


def test_an_endless_loop_is_left():
    found = run("$L__BB0_1:\nbra.uni $L__BB0_1;")
    assert not found.whole


def test_generic_addresses_and_helpers_called_from_two_lines():
    body = """
mov.u64 %rd3, tile;
cvta.shared.u64 %rd4, %rd3;
shl.b32 %r3, %r2, 4;
cvt.u64.u32 %rd5, %r3;
add.s64 %rd6, %rd4, %rd5;
.loc	1 3 5, function_name $L__info_string0, inlined_at 1 50 9
st.v4.u32 [%rd6], {%r1, %r1, %r1, %r1};
.loc	1 3 5, function_name $L__info_string0, inlined_at 1 60 9
st.v4.u32 [%rd6], {%r1, %r1, %r1, %r1};
"""
    found = run(body)
    assert [(access.line, access.caller, access.bytes) for access in found.accesses] == [
        (3, 50, 16),
        (3, 60, 16),
    ]
    assert {access.cost for access in found.accesses} == {4}
    assert SHARED_WINDOW > 1 << 33, "global addresses of the tests lie below"


@pytest.mark.parametrize(
    ("row", "cost"), [(256, 32), (272, 4)], ids=["rows in the same banks", "padded rows"]
)
def test_matrices_meet_conflicts_by_their_rows(row, cost):
    address = f"mul.lo.s32 %r3, %r2, {row};\nmov.u32 %r4, tile;\nadd.s32 %r5, %r4, %r3;"
    body = (
        f"{address}\n.loc\t1 9 5\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r6,%r7,%r8,%r9}},"
        " [%r5];"
    )
    assert rates(run(body)) == [(9, "shared", "ldmatrix", 1, cost, 4)]


def test_near_identical_kernels_are_one_and_what_is_reached_stays():
    function = " Function {}:\n  REG:40 STACK:0 SHARED:1024\n"
    code = (
        "\t\tFunction : {}\n        /*0000*/  LDG.E.128 R4, [R2.64] ;\n        /*0010*/ "
        " HMMA.16816.F32 R4, R2, R6 ;\n"
    )
    names = ("one", "two")
    resources = "Resource usage:\n" + "".join(function.format(name) for name in names)
    reports = read_reports(
        resources, "code for sm_90a\n" + "".join(code.format(name) for name in names)
    )
    launches = [
        (Launch(name, (1, 1, 1), (128, 1, 1), 32768, []), WarpAccesses([], True)) for name in names
    ]
    found = sum_up("kernel.cu", {"90a": reports}, launches, str)
    (group,) = found.groups
    assert group.kernels == ["one", "two"]
    assert (group.figures.threads, group.figures.shared_bytes, group.figures.blocks) == (
        128,
        32768,
        6,
    )
    assert (found.judged[0].judged.good, found.judged[0].of) == (False, []), "no asynchronous copy"
    assert any(one.judged.good and "16 bytes wide" in one.judged.sentence for one in found.judged)


def test_a_launch_that_nobody_saw_is_a_guess():
    report = read_reports(
        "Resource usage:\n Function one:\n  REG:40 STACK:0 SHARED:1024\n",
        "code for sm_90a\n\t\tFunction : one\n",
    )
    (group,) = sum_up("kernel.cu", {"90a": report}, [], str).groups
    assert not group.figures.launched
    assert group.figures.threads == 256
