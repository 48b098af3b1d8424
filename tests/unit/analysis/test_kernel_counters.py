"""ncu's counters: read by old and new names, judged, compared with the library's, and the first
thing to attack.
"""

from pathlib import Path

import pytest

from bottleneck_lab.analysis.counters.kernel_counters import (
    RULES,
    compare_kernels,
    find_targets,
    furthest_behind,
    read_kernel,
    stalls,
)
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.declared import read_toml
from bottleneck_lab.trace import load
from bottleneck_lab.trace.counters import KernelCounters

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
H100 = CAPTURES / "h100-80gb-hbm3"
NEW, OLD = "synthetic-fused-attention-ncu.csv", "synthetic-fused-attention-ncu-before-2020.csv"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def kernel(name="mine", **metrics):
    return read_kernel(
        KernelCounters(name, 0, "9.0", (1,), (128,), {"gpu__time_duration.sum": 1000.0, **metrics})
    )


def waiting_for(**reasons):
    return {STALL.format(reason): value for reason, value in {"selected": 1.0, **reasons}.items()}


@pytest.fixture(params=[NEW, OLD])
def pairs(request):
    return compare_kernels(load(CAPTURES / request.param).counters)


def test_both_generations_of_names_are_read_alike(pairs):
    assert [round(pair.ratio, 2) for pair in pairs] == [0.68, 0.69, 0.63]
    worst = furthest_behind(pairs)
    assert worst is pairs[2]
    assert {figure.id for figure in worst.own.figures} == {rule.id for rule in RULES}
    graded = {figure.id: figure.grade for figure in worst.own.figures}
    assert {id_ for id_, grade in graded.items() if grade == "poor"} == {
        "occupancy",
        "memory-stalls",
    }
    assert graded["sm"] == graded["conflicts"] == "fair"
    assert graded["l2"] == graded["memory"] == graded["lanes"] == graded["sectors"] == "good"
    assert graded["dram"] == "", "what the cache answers does not come from DRAM, and need not"
    assert worst.library.figure("conflicts").value < 1


def test_a_made_up_report_says_so_wherever_it_is_read():
    for name in (NEW, OLD):
        assert (
            load(CAPTURES / name).notes[0]
            == "synthetic: these counters were made up to be read; no GPU has measured them"
        )


def test_the_diagnosis_asks_what_the_recorded_report_shows():
    lab = find_lab("fused-attention")
    right = read_toml(lab.solution / "diagnosis.toml")
    recorded = load(H100 / "fused-attention-starter-ncu.csv").counters
    own = furthest_behind(compare_kernels(recorded))
    assert own.targets[0].id == "bank-conflicts"
    assert "bank conflicts" in right["counters_first"]
    assert (own.own.figure("sectors").value, own.library.figure("sectors").value) == (4, 16)
    assert right["request_bytes"] == 4 * 32


def test_stalls_are_shares_of_the_waiting_whatever_is_counted():
    shares = stalls(waiting_for(long_scoreboard=3.0, barrier=1.0))
    assert (shares["global memory"], shares["barriers"]) == (0.75, 0.25)
    assert next(iter(shares)) == "global memory"
    samples = {
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard": 30.0,
        "smsp__pcsamp_warps_issue_stalled_selected": 90.0,
    }
    assert stalls(samples)["global memory"] == 1
    assert stalls({}) == {}


@pytest.mark.parametrize(
    ("metrics", "first"),
    [
        (
            waiting_for(long_scoreboard=9.0)
            | {"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": 32.0},
            "uncoalesced",
        ),
        (
            waiting_for(long_scoreboard=9.0)
            | {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 85.0},
            "dram-bound",
        ),
        (waiting_for(long_scoreboard=9.0), "latency"),
        (waiting_for(mio_throttle=9.0), "shared-traffic"),
        (waiting_for(barrier=9.0, long_scoreboard=1.0), "barriers"),
        (
            waiting_for(wait=9.0) | {"smsp__thread_inst_executed_per_inst_executed.ratio": 9.0},
            "divergence",
        ),
        (waiting_for(math_pipe_throttle=9.0), "arithmetic"),
    ],
)
def test_what_is_waited_for_and_its_proof_choose_the_target(metrics, first):
    target = find_targets(kernel(**metrics))[0]
    assert target.id == first
    assert f"{target.share:.0%}" in target.evidence


def test_what_the_library_waits_for_as_long_is_not_why_a_kernel_is_slower():
    starter, solution = (
        compare_kernels(load(H100 / f"fused-attention-{what}-ncu.csv").counters)
        for what in ("starter", "solution")
    )
    worst = furthest_behind(starter)
    assert round(worst.ratio, 2) == 0.53
    assert worst.targets[0].id == "bank-conflicts"
    assert round(worst.own.figure("conflicts").value) == 42
    # Both wait most for arithmetic, the shipped kernel hardly longer.
    assert next(iter(worst.own.stalls)) == next(iter(worst.library.stalls)) == "arithmetic"
    assert find_targets(worst.own)[0].id == "arithmetic"
    assert [round(pair.ratio, 2) for pair in solution] == [1.37, 1.09, 1.22]
    assert "bank-conflicts" not in {target.id for pair in solution for target in pair.targets}


def test_nothing_is_said_of_what_a_report_does_not_have():
    bare = kernel()
    assert (bare.figures, bare.stalls, find_targets(bare)) == ([], {}, [])
    (alone,) = compare_kernels(
        (KernelCounters("pytorch_flash::flash_fwd_kernel", 0, "9.0", (), (), {}),)
    )
    assert alone.library is None
    assert alone.ratio is None
