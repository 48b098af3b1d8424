"""More variants of the public reports: whole programs whose right answer follows from how they were
built, by stepping them again without what slows them.
"""

import msgspec
import pytest

from bottleneck_lab import compare, load, summarise
from bottleneck_lab.analysis.detectors.work import uneven_steps
from bottleneck_lab.analysis.evidence import Evidence
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.report.breakdown import describe_side_by_side
from bottleneck_lab.report.comparison_words import describe_samples
from bottleneck_lab.trace.names import MODELLED_HOST
from bottleneck_lab.wording import list_numbers

from .test_report_variants import (
    end_step,
    job_of,
    joined,
    loop,
    summary_of_ranks,
    write,
)
from .test_reports import finding, idle_shares, text_of
from .traces import summarise_run


def test_python_in_short_pieces_between_launches_is_named(make, tmp_path):
    """80 µs of Python before each of 60 kernels, none of them a long stretch; the device works on
    the last kernel in part of it.
    """
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        for _ in range(60):
            run.python(80.0)
            run.operator("aten::mul", "vectorized_elementwise_kernel", 10.0, host_us=5.0)
    first = summarise_run(tmp_path, run).findings[0]
    assert first.id == "launch-bound"
    assert first.title == "Python between launches holds up the device"
    assert "75 µs for each kernel" in first.evidence
    assert "Launch less" not in first.advice


def test_operators_one_after_another_are_no_python_between_them(make, tmp_path):
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        for _ in range(100):
            run.operator("aten::mul", "vectorized_elementwise_kernel", 2.0)
            run.python(4.0)
    first = summarise_run(tmp_path, run).findings[0]
    assert first.title == "The host cannot launch work fast enough"


@pytest.mark.parametrize("read_us", [8_000.0, 2.0])
def test_reading_a_value_for_long_proves_that_a_device_was_not_recorded(make, tmp_path, read_us):
    """Only the CPU's activities were recorded of a program on a GPU."""
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        for name, us in [("aten::mm", 40.0)] * 20 + [("aten::_local_scalar_dense", read_us)]:
            start = run.host
            run.python(us)
            run.add("cpu_op", name, start, us)
    summary = summarise_run(tmp_path, run)
    assert summary.quality.reliable == (read_us < 10)
    if not summary.quality.reliable:
        (reason,) = summary.quality.reasons
        assert "6 reads of a value (.item()) take 8.0 ms each" in reason
        assert not summary.findings


def in_stages(make, tmp_path, ranks: int = 4, parts: int = 4, steps: int = 5):
    """A batch in `parts` passes through all ranks and back, with 1 and 2 ms of work in each."""
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(ranks)]
    chain = [*range(ranks - 1)]
    for number in range(steps):
        begins = [run.host for run in runs]
        for way, us in ((chain, 100.0), (chain[::-1], 200.0)):
            for _ in range(parts):
                for at in way:
                    sender, receiver = (at, at + 1) if way is chain else (at + 1, at)
                    if sender in (0, ranks - 1):
                        work(runs[sender], us)
                    joined([runs[at], runs[at + 1]], 20.0, f"pp{at}", "ncclDevKernel_SendRecv")
                    work(runs[receiver], us)
        end_step(runs, begins, number)
    for run in runs:
        write(tmp_path / "job", f"rank{run.rank}", run.trace(world_size=ranks))
    return summarise(load(tmp_path / "job"))


def work(run, us: float) -> None:
    for _ in range(10):
        run.operator("aten::mm", "gemm_tensorop", us, host_us=6.0)


def test_stages_of_a_pipeline_are_no_stragglers(make, tmp_path):
    summary = in_stages(make, tmp_path)
    (only,) = summary.findings
    assert only.title == "Stages of the pipeline wait for one another"
    assert "micro-batches" in only.advice
    busiest = max(use.busy_ns - use.exposed_communication_ns for use in summary.devices)
    assert only.expected_gain_ratio <= 1.01 * summary.wall_ns / busiest


def test_a_rank_that_is_late_a_little_more_often_is_not_the_one_to_look_at(make, tmp_path):
    """Of ten steps, rank 2 is late in five and rank 0 in four."""
    late = [2, 0, 2, 0, 2, 0, 2, 0, 2, 1]

    def uneven(run, number):
        for _ in range(10):
            slow = late[number] == run.rank
            run.operator("aten::mm", "gemm_tensorop", 400.0 if slow else 200.0)

    only = finding(job_of(make, tmp_path, 3, 10, uneven), "straggler")
    assert only.title == "Ranks take turns in keeping the others waiting"


def test_gathered_parameters_are_not_advised_as_gradients_are(make, tmp_path):
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(2)]
    for number in range(5):
        begins = [run.host for run in runs]
        for kind in ("AllGather_RING_LL", "ReduceScatter_Sum_bf16_RING_LL"):
            for run in runs:
                work(run, 100.0)
            joined(runs, 900.0, "0", f"ncclDevKernel_{kind}")
        end_step(runs, begins, number)
    for run in runs:
        write(tmp_path / "job", f"rank{run.rank}", run.trace(world_size=2))
    only = finding(summarise(load(tmp_path / "job")), "communication-exposed")
    assert "forward_prefetch" in only.advice
    assert "bucket_cap_mb" not in only.advice


def test_what_saves_most_comes_first(make, tmp_path):
    """fp32 kernels take 18 ms of a step, but the host waits 20 ms for its data beside them."""
    run = make.Program(jitter=0.0)
    for number in range(9):
        begin = run.host
        run.python(20_000.0)
        run.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin)
        for _ in range(36):
            run.operator("aten::cudnn_convolution", "volta_scudnn_128x64_relu", 500.0)
        run.range(f"ProfilerStep#{number}", begin)
    run.wait()
    card = {"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0}
    summary = summarise_run(tmp_path, run, deviceProperties=[card])
    assert [each.id for each in summary.findings] == ["input-starved", "tensor-cores-unused"]
    gains = [each.expected_gain_ratio for each in summary.findings]
    assert gains == sorted(gains, reverse=True)
    assert "Costliest of 2 findings: The device waits for data" in " ".join(
        text_of(summary).split()
    )


def test_numbers_in_a_row_are_a_range():
    assert list_numbers([0, 2, 3, 4, 5, 7, 8]) == "0, 2-5, 7, 8"
    assert list_numbers([0, 1]) == "0, 1"


def test_small_operators_on_a_cpu_have_a_share_of_the_time_and_no_gain(make, tmp_path):
    """A growing `torch.cat` copies all that it has in every call, which a fix leaves out, and a
    loop over cells computes what one operator would: no recording tells them apart.
    """
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        for _ in range(300):
            start = run.host
            run.python(8.0)
            run.add("cpu_op", "aten::cat", start, 8.0)
            run.python(1.0)
    summary = summarise_run(tmp_path, run)
    (only,) = summary.findings
    assert only.id == "python-overhead"
    assert only.expected_gain_ratio == 0
    assert "aten::cat" in only.evidence
    assert "overhead" not in only.evidence
    text = text_of(summary)
    assert "No gain is given" in text
    assert "Many small operators take the time (100% of the time)" in text
    assert "largest_gain_ratio" not in figures_of(summary)


def step_of(run, number: int, kernels: int = 20, us: float = 250.0, streams: int = 1) -> None:
    begin = run.host
    for index in range(kernels):
        run.launch("gemm_tensorop", us, stream=7 + index % streams)
    run.wait()
    run.range(f"ProfilerStep#{number}", begin)


def test_a_start_up_in_the_first_step_is_no_finding(make, tmp_path):
    run = make.Program(jitter=0.0)
    for number in range(30):
        if number == 0:
            start = run.host
            run.python(900_000.0)
            run.add("cuda_driver", "cuLibraryLoadData", start, 900_000.0)
            run.python(300_000.0)
            begin = start
            step_of(run, number)
            run.events = [e for e in run.events if e["name"] != "ProfilerStep#0"]
            run.range("ProfilerStep#0", begin)
        else:
            step_of(run, number)
    summary = summarise_run(tmp_path, run)
    assert summary.findings == []
    assert summary.startup is not None
    assert summary.startup.call == "cuLibraryLoadData"
    assert idle_shares(summary)["startup"] == pytest.approx(1_200 / (1_200 + 30 * 5.0), abs=0.02)
    assert summary.step_mean_ns == pytest.approx(5e6, rel=0.02)
    text = " ".join(text_of(summary).split())
    assert "30 steps of 5.01 ms on average" in text
    assert "without 1.20 s of start-up in the first" in text


def test_start_up_is_in_no_step_of_a_comparison(make, tmp_path):
    """Steps of 5 and of 6 ms; the first program starts up for 1.2 s in its first one."""
    sides = []
    for name, startup_us, us in (("before", 1_200_000.0, 250.0), ("after", 0.0, 300.0)):
        run = make.Program(jitter=0.0)
        start = run.host
        if startup_us:
            run.python(startup_us)
            run.add("cuda_driver", "cuLibraryLoadData", start, startup_us)
        step_of(run, 0, us=us)
        run.events = [e for e in run.events if e["name"] != "ProfilerStep#0"]
        run.range("ProfilerStep#0", start)
        for number in range(1, 12):
            step_of(run, number, us=us)
        write(tmp_path, name, run.trace())
        sides.append(load(tmp_path / f"{name}.json"))
    comparison = compare(*sides)
    step = comparison.changes[[each.group for each in comparison.changes].index("step")]
    assert (step.before, step.after) == pytest.approx((5e6, 6e6), rel=0.02)
    assert comparison.speedup == pytest.approx(5 / 6, rel=0.01)
    assert comparison.outcome == "worse"
    assert "startup" not in {each.what for each in comparison.changes}
    text = " ".join(describe_samples(comparison))
    assert "Start-up in the first step is left out: 1.20 s before, 0 ns after." in text


def test_work_from_before_the_recording_is_neither_lost_nor_a_slow_step(make, tmp_path):
    """40 kernels were in the queue when the recording began: 8 ms before four steps of 5."""
    run = make.Program(jitter=0.0)
    for _ in range(40):
        run.operator("aten::mm", "gemm_tensorop", 200.0)
    queued = [event for event in run.events if event["cat"] == "kernel"]
    run.host = queued[0]["ts"]
    run.events = queued
    for number in range(13, 17):
        step_of(run, number)
    summary = summarise_run(tmp_path, run)
    assert summary.quality.reliable
    assert summary.findings == []


def test_kernels_side_by_side_have_shares_of_their_summed_time(make, tmp_path):
    run = make.Program(jitter=0.0)
    for number in range(6):
        step_of(run, number, streams=2)
    summary = summarise_run(tmp_path, run)
    assert summary.kernels[0].total_ns > 1.5 * summary.wall_ns
    text = text_of(summary)
    assert "100.0%" in text
    assert "Kernels ran side by side" in text


def test_kernels_of_one_stream_that_overlap_by_rounding_are_not_side_by_side(make, tmp_path):
    run = make.Program(jitter=0.0)
    for number in range(6):
        step_of(run, number, streams=2)
    summary = summarise_run(tmp_path, run)
    one = [msgspec.structs.replace(use, streams=1) for use in summary.devices]
    assert describe_side_by_side(msgspec.structs.replace(summary, devices=one)) == ""
    assert describe_side_by_side(summary)


def in_halves(events: list[dict], named: bool = True) -> list[dict]:
    """Events of a host as a beginning (B) and an end (E) each, in the order of a file."""
    halves = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if event["cat"] in ("cpu_op", "user_annotation", "cuda_runtime"):
            end_us = event["ts"] + event["dur"]
            begin = {key: value for key, value in event.items() if key != "dur"}
            end = {"ph": "E", "ts": end_us, "pid": event["pid"], "tid": event["tid"]}
            if named:
                end |= {"name": event["name"], "cat": event["cat"]}
            # Of what ends at once, the inner event ends first; an end comes before a beginning.
            halves.append((event["ts"], 1, -event["dur"], begin | {"ph": "B"}))
            halves.append((end_us, 0, event["dur"], end))
        else:
            halves.append((event["ts"], 2, 0, event))
    return [event for *_, event in sorted(halves, key=lambda half: half[:3])]


@pytest.mark.parametrize("named", [True, False])
def test_events_in_two_halves_are_read_as_whole_ones(make, tmp_path, named):
    run = loop(make)
    whole = summarise_run(tmp_path, run)
    halves = in_halves(run.events, named)
    write(tmp_path, "halves", run.trace() | {"traceEvents": halves})
    summary = summarise(load(tmp_path / "halves.json"))
    assert summary.quality.reliable
    assert summary.quality.notes == whole.quality.notes
    assert len(summary.steps) == 6
    assert summary.events == whole.events
    assert summary.wall_ns == pytest.approx(whole.wall_ns, rel=1e-6)


def test_halves_of_events_are_counted(make, tmp_path):
    """Of 66 host events, a recording that begins late and ends early cuts some in two."""
    run = loop(make)
    halves = in_halves(run.events)
    ends = [event for event in halves if event["ph"] == "E"]
    lacking = [event for event in halves if event is not ends[0] and event is not ends[1]]
    write(tmp_path, "cut", run.trace() | {"traceEvents": lacking})
    (reason,) = summarise(load(tmp_path / "cut.json")).quality.reasons
    assert reason.startswith("malformed: 2 events without an end (B without E) and 0 ends without")

    run = loop(make, steps=30)
    halves = in_halves(run.events)
    write(tmp_path, "early", run.trace() | {"traceEvents": halves[1:]})
    quality = summarise(load(tmp_path / "early.json")).quality
    assert quality.reliable
    assert any(
        "0 events without an end (B without E) and 1 end without" in n for n in quality.notes
    )


def test_times_in_nanoseconds_are_pointed_out(make, tmp_path):
    run = loop(make)
    assert summarise_run(tmp_path, run).quality.notes == []
    for event in run.events:
        event["dur"] *= 1000
        event["ts"] *= 1000
    notes = summarise_run(tmp_path, run).quality.notes
    assert any("1000 times too long" in each for each in notes)


def test_calls_that_allocate_from_the_driver_are_named(make, tmp_path):
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        for _ in range(10):
            run.operator("aten::mm", "gemm_tensorop", 300.0)
        run.wait("cudaFree")
        for _ in range(3):
            start = run.host
            run.python(900.0)
            run.add("cuda_runtime", "cudaMalloc", start, 900.0)
    churn = finding(summarise_run(tmp_path, run), "allocator-churn")
    assert "18 calls of cudaMalloc, 6 calls of cudaFree" in churn.evidence


def test_a_step_with_an_evaluation_in_it_does_other_work(make, tmp_path):
    run = make.Program(jitter=0.0)
    for number in range(20):
        step_of(run, number, kernels=20 if number != 9 else 600)
    only = finding(summarise_run(tmp_path, run), "uneven-steps")
    assert only.title == "Some steps do other work than the rest"
    assert "launches 600 kernels, and a typical step 20" in only.evidence


def test_slow_steps_with_the_same_work_are_not_said_to_do_other():
    times = [10**7] * 19 + [15 * 10**7]
    seen = Evidence([], step_ns=times, settled_ns=times, wall_ns=sum(times))
    for launches, title in (
        ([20] * 20, ""),
        ([20] * 19 + [40], "Some steps do other work than the rest"),
        ([], ""),
    ):
        (only,) = uneven_steps(msgspec.structs.replace(seen, step_launches=launches))
        assert only.title == title


def test_what_the_host_works_on_is_not_copied_back_where_the_device_does(make, tmp_path):
    """A step is 5 ms of kernels, a copy back of 2 ms and 13 ms of an operator on the host."""
    run = make.Program(jitter=0.0)
    for number in range(6):
        begin = run.host
        for _ in range(20):
            run.operator("aten::mm", "gemm_tensorop", 250.0)
        start, at = run.host, max(run.host + 4.0, *run.tail.values())
        args = {"device": 0, "stream": 7, "correlation": 10_000 + number, "bytes": 20 << 20}
        run.add("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", at, 2_000.0, **args)
        run.tail[7] = run.host = at + 2_000.0
        call = args["correlation"]
        run.add("cuda_runtime", "cudaMemcpyAsync", start, run.host - start, correlation=call)
        start = run.host
        run.python(13_000.0)
        run.add("cpu_op", "aten::sort", start, 13_000.0)
        run.range(f"ProfilerStep#{number}", begin)
    first = finding(summarise_run(tmp_path, run), "host-operators")
    assert first.expected_gain_ratio == pytest.approx(20 / 5, rel=0.05)


def test_attention_in_fp32_is_faster_in_half_precision_too(make, tmp_path):
    """On an H100, 8 ms of fp32 products and 2 of attention take 1 / 14.8 of the time in bf16."""
    run = make.Program(jitter=0.0)
    for number in range(6):
        begin = run.host
        for _ in range(10):
            run.operator("aten::addmm", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_ffma", 800.0)
            run.operator("aten::_efficient", "fmha_cutlassF_f32_aligned_64x64_rf_sm80", 200.0)
            run.operator("aten::mul", "vectorized_elementwise_kernel", 100.0)
        run.wait()
        run.range(f"ProfilerStep#{number}", begin)
    card = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
    only = finding(summarise_run(tmp_path, run, deviceProperties=[card]), "tensor-cores-unused")
    assert "60 fp32 matrix kernels take 73% of the time" in only.evidence
    assert only.expected_gain_ratio == pytest.approx(11 / (1 + 10 / 14.8), rel=0.03)


def test_the_start_up_of_another_rank_is_in_no_step(make, tmp_path):
    """Ranks start up for 1 and for 2 s, and meet in every step of 5 ms from then on."""
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(2)]
    for number in range(20):
        begins = [run.host for run in runs]
        for run, startup_us in zip(runs, (1e6, 2e6), strict=True):
            if number == 0:
                run.python(startup_us)
                run.add("cuda_runtime", "cudaFree", run.host - startup_us, startup_us)
            work(run, 480.0)
        joined(runs, 200.0, "0")
        end_step(runs, begins, number)
    summary = summary_of_ranks(tmp_path, runs)
    assert summary.findings == []
    assert summary.step_mean_ns == pytest.approx(5e6, rel=0.02)
    assert summary.startup_in_step_ns == pytest.approx(2e9, rel=0.01)


@pytest.mark.parametrize(("late_us", "cause"), [(5_000.0, "unrecorded"), (400.0, "copy")])
def test_a_copy_that_is_slow_to_begin_waits_and_does_not_copy(make, tmp_path, late_us, cause):
    """A megabyte is staged in a millisecond at most; what else keeps it is in no row."""
    run = make.Program(jitter=0.0)
    for number in range(6):
        begin = run.host
        for _ in range(20):
            run.operator("aten::mm", "gemm_tensorop", 250.0)
        run.wait()
        start, at = run.host, run.host + late_us
        args = {"device": 0, "stream": 7, "correlation": 10_000 + number, "bytes": 1_000_000}
        run.add("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at, 200.0, **args)
        run.tail[7] = run.host = at + 202.0
        call = args["correlation"]
        run.add("cuda_runtime", "cudaMemcpyAsync", start, run.host - start, correlation=call)
        run.range(f"ProfilerStep#{number}", begin)
    summary = summarise_run(tmp_path, run)
    step_us = 5_000.0 + late_us + 200.0
    staged_us = 1_000.0 if cause == "unrecorded" else 0.0
    shares = idle_shares(summary)
    assert shares[cause] == pytest.approx((late_us - staged_us) / step_us, abs=0.02)
    assert summary.quality.reliable == (cause == "copy")


def test_a_batch_that_is_pinned_in_the_loop_is_to_be_pinned_ahead(make, tmp_path):
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        run.operator("aten::mm", "gemm_tensorop", 300.0)
        for _ in range(2):
            start = run.host
            run.python(900.0)
            run.add("cuda_runtime", "cudaHostAlloc", start, 900.0)
    churn = finding(summarise_run(tmp_path, run), "allocator-churn")
    assert "12 calls of cudaHostAlloc" in churn.evidence
    assert "pin batches ahead" in churn.advice
    assert "empty_cache" not in churn.advice


@pytest.mark.parametrize("facts", [{}, {MODELLED_HOST: 1}], ids=["measured", "modelled"])
def test_what_loading_costs_on_a_modelled_host_is_in_its_lab_s_readme(make, tmp_path, facts):
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        start = run.host
        run.python(2000.0)
        run.range("enumerate(DataLoader)#__next__", start)
        run.operator("aten::mm", "gemm_tensorop", 300.0)
    advice = finding(summarise_run(tmp_path, run, **facts), "input-starved").advice
    assert ("the lab's README lists them" in advice) is bool(facts)
