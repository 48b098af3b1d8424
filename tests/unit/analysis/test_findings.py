"""Detectors against captures with known bottlenecks: what was put in is found, and nothing else;
nothing on a healthy one.
"""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck_lab import findings, load, merge_ranks, summarise
from bottleneck_lab.analysis.amdahl import ceiling, predicted
from bottleneck_lab.analysis.detectors.work import uneven_steps
from bottleneck_lab.analysis.device.gaps import GapCause
from bottleneck_lab.analysis.evidence import Evidence
from bottleneck_lab.analysis.findings import FINDING_IDS, find_findings
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.report.capture_words import describe_evidence

from .traces import load_trace, summarise_run

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
KINDS = [
    "healthy",
    "healthy-small",
    "input",
    "launch",
    "sync",
    "pageable",
    "communication",
    "elementwise",
    "layout",
    "fp32",
    "fp64",
    "growth",
    "allocator",
    "uneven",
]


@pytest.mark.parametrize("bottleneck", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_put_in_is_found_and_nothing_else(summary_of, make, bottleneck, seed):
    summary = summary_of(bottleneck, seed=seed)
    assert summary.quality.reliable, summary.quality.reasons
    assert {finding.id for finding in summary.findings} == set(make.BOTTLENECKS[bottleneck])
    for use in summary.devices:
        assert (
            sum(part.idle_ns for part in use.gap_causes) == use.idle_ns == use.wall_ns - use.busy_ns
        )
        assert use.compute_ns + use.exposed_communication_ns + use.exposed_copy_ns == use.busy_ns


@pytest.mark.parametrize("bottleneck", ["healthy-cpu", "dominant", "python"])
def test_captures_without_an_accelerator(tmp_path, make, bottleneck):
    (tmp_path / "x.json").write_text(json.dumps(make.on_cpu(bottleneck).trace(bottleneck)))
    assert {finding.id for finding in findings(tmp_path / "x.json")} == set(make.ON_CPU[bottleneck])


@pytest.mark.parametrize("bottleneck", ["healthy-job", "straggler"])
def test_captures_of_several_ranks(tmp_path, make, bottleneck):
    timelines = []
    for run in make.job(bottleneck, seed=2):
        path = tmp_path / f"{run.rank}.json"
        path.write_text(json.dumps(run.trace(bottleneck, world_size=4)))
        timelines.append(load(path))
    found = {finding.id: finding for finding in findings(merge_ranks(timelines))}
    assert set(found) == set(make.JOBS[bottleneck])
    if found:
        assert "Rank 2 " in found["straggler"].evidence


def _copies_the_model(run):
    run.copy(1_200_000_000, pinned=False)


def _allocates(run):
    for _ in range(20):
        run.wait("cudaMalloc")


def _multiplies_in_fp32(run):
    for _ in range(40):
        run.operator("aten::addmm", "ampere_sgemm_128x64_tn", 5_000.0)


@pytest.mark.parametrize("before", [_copies_the_model, _allocates, _multiplies_in_fp32])
def test_what_a_program_does_before_its_first_step_is_not_held_against_the_steps(
    tmp_path, make, before
):
    run = make.Program()
    begin = run.host
    before(run)
    run.wait()
    run.range("start-up", begin)
    for number in range(8):
        begin = run.host
        make._step(run, "healthy", number, 24, 1.0)
        run.range(f"step {number}", begin)
    summary = summarise_run(tmp_path, run)
    assert [finding.id for finding in summary.findings] == []
    assert summary.launches[0].kernels_per_step == 2 * 24 + 2
    ranges = {row.name: row for row in summary.ranges}
    assert ranges["start-up"].total_ns == 0
    assert ranges["backward"].calls == 8


def test_a_cpu_s_first_weights_are_no_dominant_operator_of_its_steps(tmp_path, make):
    run = make.Program()
    make._operator(run, "aten::normal_", 500_000.0)
    events = run.events
    run = make.on_cpu("healthy-cpu")
    for event in events:
        event["ts"] -= 600_000.0
    run.events += events
    (tmp_path / "x.json").write_text(json.dumps(run.trace()))
    assert findings(tmp_path / "x.json") == []


@pytest.mark.parametrize("operator", ["aten::normal_", "aten::sort", "aten::_fft_r2c"])
def test_an_operator_that_computes_much_for_each_element_waits_for_no_memory(
    tmp_path, make, operator
):
    text = json.dumps(make.on_cpu("dominant").trace())
    (tmp_path / "x.json").write_text(text.replace("aten::index_select", operator))
    assert findings(tmp_path / "x.json") == []


def test_a_range_around_all_steps_takes_all_of_the_time_and_no_more(tmp_path, make):
    run = make.training("healthy")
    run.range("epoch", 100_000.0)
    summary = summarise_run(tmp_path, run)
    (epoch,) = [row for row in summary.ranges if row.name == "epoch"]
    assert 0.99 < epoch.share_of_wall <= 1


def test_a_rank_that_starts_late_is_no_straggler(tmp_path, make):
    """The others wait for it in their first broadcast, before their first step."""
    timelines = []
    for run in make.job("healthy-job", seed=2):
        if run.rank != 2:
            args = {"device": 0, "stream": make.COMMUNICATION_STREAM}
            run.add("kernel", "ncclDevKernel_Broadcast_RING_LL", 50_000.0, 900_000.0, **args)
        (tmp_path / f"{run.rank}.json").write_text(json.dumps(run.trace(world_size=4)))
        timelines.append(load(tmp_path / f"{run.rank}.json"))
    summary = summarise(merge_ranks(timelines))
    assert summary.findings == []
    assert all(rank.work_ns > 0 for rank in summary.stragglers)


@pytest.mark.parametrize(
    ("kernel", "unused"),
    [
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", False),
        (
            "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor16x8x8",
            False,
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4",
            True,
        ),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8", True),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", False),
    ],
)
def test_matrix_kernels_on_tensor_cores_are_told_from_those_that_are_not(
    tmp_path, make, kernel, unused
):
    run = make.Program()
    for number in range(4):
        begin = run.host
        for _ in range(20):
            run.operator("aten::addmm", kernel, 250.0)
        run.range(f"ProfilerStep#{number}", begin)
    (tmp_path / "x.json").write_text(json.dumps(run.trace()))
    assert [finding.id for finding in findings(tmp_path / "x.json")] == [
        "tensor-cores-unused"
    ] * unused


@pytest.mark.parametrize(
    ("kernel", "double"),
    [
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_tn_align1", True),
        ("volta_dgemm_128x64_nn", True),
        ("void dgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 34>", True),
        ("void gemv2T_kernel_val<int, int, double, double, double, double, 128, 16>", True),
        ("void implicit_convolve_dgemm<double, double, 1024, 5, 5>", True),
        ("Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1_SN", True),
        ("void cudnn::cnn::dgrad2d_grouped_direct_kernel<float, int, float>", False),
        ("sm80_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc", False),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16>", False),
    ],
)
def test_products_in_double_precision_are_told_by_their_kernels(tmp_path, make, kernel, double):
    summary = summarise(products(tmp_path, make, kernel))
    named = [each for each in summary.findings if each.id == "double-precision"]
    assert len(named) == double
    assert not double or named[0].expected_gain_ratio == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(("kind", "double"), [("double", True), ("float", False)])
def test_products_in_double_precision_are_told_by_the_types_of_operators(
    tmp_path, make, kind, double
):
    args = {
        "Input Dims": [[4096, 4096], [4096, 4096]],
        "Input type": [kind, kind],
        "Concrete Inputs": ["", ""],
    }
    timeline = products(tmp_path, make, "some_vendors_kernel", args)
    named = [each.evidence for each in summarise(timeline).findings]
    assert (
        named
        == ["80 matrix operators on double tensors take 100% of the time, most of all aten::mm."]
        * double
    )


def products(tmp_path, make, kernel, args=None):
    """A capture of matrix products alone."""
    run = make.Program()
    for number in range(4):
        begin = run.host
        for _ in range(20):
            run.operator("aten::mm", kernel, 250.0)
        run.range(f"ProfilerStep#{number}", begin)
    trace = run.trace()
    for name in ("aten::mm", kernel):
        events = [each for each in trace["traceEvents"] if each["name"] == name]
        for number, event in enumerate(events):
            event["args"] = {**event.get("args", {}), "External id": number + 1}
            event["args"] |= (args or {}) if name == "aten::mm" else {}
    return load_trace(tmp_path, trace)


def test_every_kind_is_tested(make):
    assert set(KINDS) == set(make.BOTTLENECKS)


def test_findings_are_ranked_and_complete(summary_of):
    found = summary_of("pageable").findings
    assert [f.share_of_wall for f in found] == sorted(
        (f.share_of_wall for f in found), reverse=True
    )
    for finding in found:
        assert finding.id in FINDING_IDS
        assert finding.evidence.endswith(".")
        assert 1 <= finding.expected_gain_ratio <= 1.05 / (1 - finding.share_of_wall)


def test_committed_captures_are_what_the_manifest_says(make, tmp_path):
    manifest = json.loads((CAPTURES / "manifest.json").read_text())
    assert {row["file"] for row in manifest["captures"]} == {
        path.name for path in CAPTURES.glob("synthetic-*")
    }
    for row in manifest["captures"]:
        path = CAPTURES / row["file"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]
        assert {finding.id for finding in findings(path)} == set(row["findings"])
        assert b"synthetic" in path.name.encode()


def test_a_long_capture_is_no_other(timeline_of):
    assert load(timeline_of("sync").source).events == timeline_of("sync").events


@given(st.floats(0, 1), st.floats(0.01, 1e6))
@settings(max_examples=100)
def test_amdahl(share, ratio):
    assert predicted(share, ratio) == pytest.approx(
        min(1 / max(1 - share + share / ratio, 1e-3), 1000)
    )
    assert ceiling(share) >= predicted(share, max(ratio, 1))


def test_amdahl_refuses_nonsense():
    for share, ratio in ((-0.1, 2), (1.1, 2), (0.5, 0)):
        with pytest.raises(ValueError, match="a share lies in"):
            predicted(share, ratio)


def test_steps_that_all_scatter_are_not_called_uneven():
    def found(step_ms):
        step_ns = [int(1e6 * ms) for ms in step_ms]
        seen = Evidence([], step_ns=step_ns, settled_ns=step_ns, steps=len(step_ns), wall_ns=10**9)
        return [finding.id for finding in find_findings(seen)]

    assert found([10, 10.1, 9.9, 10, 10.2, 10, 9.8, 40]) == ["uneven-steps"]
    assert found([10, 15, 9, 11, 14, 8, 16, 10]) == []


LINES = ["train.py(1): main", "train.py(2): main"]


@pytest.mark.parametrize(("first_ms", "of_all"), [(60, True), (95, False)])
@pytest.mark.parametrize("cause", ["synchronisation", "launch", "python", "input"])
def test_a_gain_is_that_of_all_lines_where_others_than_the_one_named_cost_time(
    summary_of, cause, first_ms, of_all
):
    ns = [first_ms * 10**6, (100 - first_ms) * 10**6]
    summary = summary_of("launch", seed=1)
    idle = GapCause(cause, sum(ns), 0.5, 9, "", line=LINES[0], places=2)
    idle = msgspec.structs.replace(idle, inside=list(zip(LINES, ns, strict=True)))
    use = msgspec.structs.replace(
        summary.devices[0],
        wall_ns=2 * sum(ns),
        launching_ns=sum(ns),
        busy_ns=1,
        gap_causes=[idle],
    )
    syncs = [
        SyncRow("cudaStreamSynchronize", "", 9, 1.0, each, line=line)
        for line, each in zip(LINES, ns, strict=True)
    ]
    seen = Evidence([use], syncs=syncs, launches=summary.launches, wall_ns=2 * sum(ns))
    (finding,) = find_findings(seen)
    assert f"{LINES[0]}." in finding.evidence
    assert finding.of_all is of_all
    assert ("of all such places together" in describe_evidence(finding)) is of_all


def test_a_device_that_always_works_has_no_slow_steps_where_nothing_says_what_is_whose(timeline_of):
    """Without launches, a step ends wherever the device's queue happens to stand."""
    timeline = timeline_of("healthy", steps=8)
    summary = summarise(timeline)
    (use,), (launches,) = summary.devices, summary.launches
    step_ns = [10**7] * 7 + [4 * 10**7]
    seen = Evidence(
        [msgspec.structs.replace(use, idle_ns=3)],
        launches=[msgspec.structs.replace(launches, launch_call_ns=0)],
        step_ns=step_ns,
        settled_ns=step_ns,
        steps=8,
        wall_ns=11 * 10**7,
    )
    assert uneven_steps(seen) == []
    waiting = msgspec.structs.replace(seen.devices[0], idle_ns=3 * 10**7)
    assert uneven_steps(msgspec.structs.replace(seen, devices=[waiting]))
    assert uneven_steps(msgspec.structs.replace(seen, launches=[launches]))


def _without_kernels(make, bottleneck: str, share: float):
    """A capture of which a share of the kernels was dropped, one after another."""
    run = make.training(bottleneck, seed=3)
    kernels = [event for event in run.events if event["cat"] == "kernel"]
    lost = {
        id(event)
        for event in kernels[len(kernels) // 4 : len(kernels) // 4 + int(share * len(kernels))]
    }
    run.events = [event for event in run.events if id(event) not in lost]
    return run.trace(bottleneck)


@pytest.mark.parametrize(
    ("bottleneck", "share", "found", "withheld"),
    [
        ("launch", 0.9, set(), {"host-stalls", "host-operators", "launch-bound"}),
        ("healthy", 0.5, set(), {"launch-bound"}),
        ("input", 0.2, {"input-starved"}, set()),
        ("elementwise", 0.2, {"unfused-elementwise"}, set()),
    ],
)
def test_what_rests_on_lost_kernels_is_withheld_or_marked(
    tmp_path, make, bottleneck, share, found, withheld
):
    summary = summarise(load_trace(tmp_path, _without_kernels(make, bottleneck, share)))
    assert not summary.quality.reliable
    missing = summary.quality.missing[0]
    assert "kernel launches have no kernel" in missing.what
    assert missing.share_of_wall == pytest.approx(share, rel=0.2)
    assert {finding.id for finding in summary.findings} == found
    assert {finding.id for finding in summary.withheld} <= withheld
    assert all(missing.what in finding.doubt for finding in [*summary.findings, *summary.withheld])


def test_graph_kernels_that_were_not_recorded_are_said_with_what_falls(tmp_path, make):
    """Each step launches a graph whose first nodes, 20 ms of them, are not in the capture, and
    waits for it.
    """
    run = make.Program()
    for number in range(6):
        begin = run.host
        run.launch("last node", 500.0, after=run.host + 20_000.0)
        run.wait()
        run.range(f"step {number}", begin)
    for event in run.events:
        if event["name"] == "cudaLaunchKernel":
            event["name"] = "cudaGraphLaunch"
    summary = summarise_run(tmp_path, run)
    (missing,) = summary.quality.missing
    assert "CUDA graphs" in missing.what
    assert missing.share_of_wall > 0.9
    assert set(missing.grounds) == {"idle", "host", "kernels"}
    assert summary.findings == []


@pytest.mark.parametrize(
    ("kept", "first"), [(64 << 20, "memory-growth"), (2 << 20, "launch-bound")]
)
def test_what_ends_the_run_stands_before_what_slows_it(tmp_path, make, kept, first):
    run = make.training("launch")
    for step in [event for event in run.events if event["name"].startswith("ProfilerStep#")]:
        run.host = step["ts"] + step["dur"] - 1
        run.memory(kept)
    ids = [finding.id for finding in summarise_run(tmp_path, run).findings]
    assert ids[0] == first
    assert {"memory-growth", "launch-bound"} <= set(ids)


def test_memory_that_grows_is_of_its_own_kind_and_has_no_gain_in_time():
    summary = summarise(load(CAPTURES.parent / "cases" / "bird-choirs" / "trace.json.gz"))
    (growth,) = [each for each in summary.findings if each.id == "memory-growth"]
    assert (growth.cause, growth.expected_gain_ratio) == ("memory-growth", 0.0)
    assert figures_of(summary)["largest_gain_ratio"] >= 1


@pytest.mark.parametrize("case", ["face-search", "bird-calls"])
def test_results_that_are_copied_back_are_not_answered_with_the_loader(case: str):
    summary = summarise(load(CAPTURES.parent / "cases" / case / "trace.json.gz"))
    (copies,) = [each for each in summary.findings if each.id == "pageable-copies"]
    assert "copy only that" in copies.advice
    assert "DataLoader" not in copies.advice


def test_advice_on_pageable_batches_is_to_pin_them(summary_of):
    (copies,) = [
        each for each in summary_of("pageable", seed=1).findings if each.id == "pageable-copies"
    ]
    assert "pin_memory=True in the DataLoader" in copies.advice
