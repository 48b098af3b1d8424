"""Variants of the public reports in `test_reports`: the same mistakes to make, in other clothes.

Each capture is stepped by hand, so that its right answer is known from how it was built.
"""

import json
import random

import pytest

from bottleneck_lab import compare, load, summarise
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.report.breakdown import (
    describe_capture,
    describe_finding_gain,
    describe_scope,
)
from bottleneck_lab.report.words import format_duration

from .test_reports import finding, idle_shares, text_of
from .traces import summarise_run


def write(folder, name: str, trace: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(trace))


def loop(make, steps: int = 6, kernels: int = 10, us: float = 300.0, **settings):
    """Training whose host waits for the device at the end of each step."""
    run = make.Program(jitter=0.0, **settings)
    for _ in run.steps(steps):
        for _ in range(kernels):
            run.operator("aten::mm", "gemm_tensorop", us)
        run.wait()
    return run


def moved(trace: dict, us: float = 0.0, pid: int | None = None, device: int | None = None) -> dict:
    """The trace with its clock set ahead, of another process, or on another device."""
    for event in trace["traceEvents"]:
        event["ts"] += us
        if "stream" in event["args"]:
            if device is not None:
                event["pid"] = event["args"]["device"] = device
        elif pid is not None:
            event["pid"] = pid
    return trace


# what was not recorded


def waiting(make, wait, steps: int = 8):
    """Each step's wait goes on for 6 ms after 1.5 ms of recorded work."""
    run = make.Program(jitter=0.0)
    for _ in run.steps(steps):
        for _ in range(5):
            run.operator("aten::mm", "gemm_tensorop", 300.0)
        wait(run, max(run.tail.values()) + 6_000.0)
    return run


def for_event(run, until: float) -> None:
    run.tail[99] = until
    run.wait("cudaEventSynchronize")


def for_value(run, until: float) -> None:
    """`.item()` whose copy call blocks until the copy has come."""
    run.tail[7] = until
    begin, run.host = run.host, until + 6.0
    run.add("cuda_runtime", "cudaMemcpyAsync", begin, run.host - begin, correlation=10_000 + begin)
    args = {"device": 0, "stream": 7, "correlation": 10_000 + begin, "bytes": 4}
    run.add("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", until, 1.5, **args)


@pytest.mark.parametrize("wait", [for_event, for_value])
def test_waits_of_other_names_prove_missing_work_too(make, tmp_path, wait):
    summary = summarise_run(tmp_path, waiting(make, wait))
    assert not summary.quality.reliable
    assert idle_shares(summary)["unrecorded"] == pytest.approx(0.78, abs=0.03)
    assert summary.gains == {}
    assert summary.findings == []


def late_graphs(make, us: float, *, copies: bool, steps: int = 8):
    """Graphs whose kernels all carry a time that is off by `us`."""
    run = make.Program(jitter=0.0)
    for _ in run.steps(steps):
        if copies:
            run.copy(1 << 20, pinned=True, stream=20)
        for _ in range(10):
            run.operator("aten::mm", "gemm_tensorop", 300.0)
        run.wait()
        run.python(300)
    for event in run.events:
        if event["cat"] == "kernel":
            event["ts"] += us
    return run


def test_a_stream_s_wait_contradicts_work_where_nothing_else_ran_meanwhile(make, tmp_path):
    summary = summarise_run(tmp_path, late_graphs(make, 30_000.0, copies=True))
    (missing,) = summary.quality.missing
    assert missing.what.startswith("8 of 8 waits of the host return before the work")
    assert summary.findings == []
    assert [each.id for each in summary.withheld] == ["uneven-steps"]


def test_work_that_starts_before_its_launch_has_a_wrong_time(make, tmp_path):
    summary = summarise_run(tmp_path, late_graphs(make, -700.0, copies=False))
    (missing,) = summary.quality.missing
    assert "start before the call that launched them" in missing.what
    assert summary.gains == {}


# waits and the host's own time


def test_a_wait_that_keeps_python_from_running_beside_the_device_is_named(make, tmp_path):
    """3 ms of kernels, a wait, 1.5 ms of Python: without either, the other is hidden."""
    run = make.Program(jitter=0.0)
    for _ in run.steps(12):
        for _ in range(10):
            run.operator("aten::mm", "gemm_tensorop", 300.0)
        run.item()
        run.python(1_500)
    (only,) = summarise_run(tmp_path, run).findings
    assert only.id == "host-stalls"
    assert only.expected_gain_ratio == pytest.approx(1.5, abs=0.02)
    assert "Not waiting for the device would do as well (at most 1.50x)" in only.evidence


def copying(make, *, copy: bool = True, item: bool = True):
    """Each step copies 200 µs from pageable memory, launches 3 small kernels and asks for one."""
    run = make.Program(jitter=0.0)
    for _ in run.steps(12):
        if copy:
            run.copy(1_200_000, pinned=False)
        for _ in range(3):
            run.operator("aten::mm", "gemm_tensorop", 30.0, host_us=60.0)
        if item:
            run.item()
    return run


def test_a_copy_right_behind_a_wait_is_waited_for_and_stays_without_the_wait(make, tmp_path):
    whole = copying(make).host - 1e6
    gains = summarise_run(tmp_path, copying(make)).gains
    without_copies = whole / (copying(make, copy=False).host - 1e6)
    without_waits = whole / (copying(make, item=False).host - 1e6)
    assert without_copies * 0.99 < gains["copy"] < 1.1 * without_copies
    assert without_waits * 0.97 < gains["idle-synchronisation"] < 1.1 * without_waits


def test_waits_that_follow_one_another_closely_are_several(make, tmp_path):
    """Each of 30 short kernels in a step is waited for; the operators between take 12 µs."""

    def asking(*, waits: bool):
        run = make.Program(jitter=0.0)
        for _ in run.steps(6):
            for _ in range(30):
                run.operator("aten::mul", "vectorized_elementwise_kernel", 20.0)
                run.item(waits=waits)
        run.wait()
        return run

    summary = summarise_run(tmp_path, asking(waits=True))
    gain = (asking(waits=True).host - 1e6) / (asking(waits=False).host - 1e6)
    assert finding(summary, "sync-stalls").expected_gain_ratio == pytest.approx(gain, rel=0.05)
    shares = idle_shares(summary)
    assert shares["synchronisation"] > 0.9 * sum(shares.values())


# ranks


def ranks_of(make, tmp_path, count: int = 2, ahead: float = 0.0):
    """Rank 1 computes for 40% longer; its clock is ahead by so many µs."""
    for run in make.job("straggler", ranks=count, jitter=0.0):
        trace = run.trace(world_size=count)
        write(tmp_path / "job", f"rank{run.rank}", moved(trace, ahead * (run.rank == 1)))
    return summarise(load(tmp_path / "job"))


@pytest.mark.parametrize("ahead", [-5_000.0, 800.0, 3_000_000.0])
def test_clocks_that_disagree_are_set_by_the_collectives(make, tmp_path, ahead):
    right = ranks_of(make, tmp_path).collective_waits
    summary = ranks_of(make, tmp_path, ahead=ahead)
    assert summary.collective_waits.waiting_ns == pytest.approx(right.waiting_ns, rel=0.02)
    assert {row.rank for row in summary.collective_waits.late[:1]} == {1}
    direction = "ahead" if ahead > 0 else "behind"
    assert f"rank 1's was {abs(ahead) / 1e3:.2f} ms {direction}" in " ".join(summary.quality.notes)
    assert finding(summary, "straggler").title == "Rank 1 keeps the others waiting"


def on_hosts(make, tmp_path, name: str, *, ahead: float, step="ProfilerStep#{}", waits=True):
    """Two ranks on CPUs; rank 1 comes 4 ms later to each collective of this name and its clock is
    ahead by so many µs. Processes wake up to 2 ms late. Without `waits` the range only launches it.
    """
    rng, runs = random.Random(5), [make.Program(rank=rank, jitter=0.0) for rank in range(2)]
    for number in range(8):
        begins = [run.host for run in runs]
        for run in runs:
            run.python(6_000.0 if run.rank else 2_000.0)
            run.add("cpu_op", "aten::mm", begins[run.rank], run.host - begins[run.rank])
        joined = [run.host for run in runs]
        for run in runs:
            done = max(joined) if waits else run.host
            run.host = round(done + rng.uniform(100.0, 2_000.0), 3)
            run.range(name, joined[run.rank])
            run.range(step.format(number), begins[run.rank])
            run.host = max(run.host, max(joined) + 2_000.0)
    for run in runs:
        trace = moved(run.trace(world_size=2), ahead * run.rank)
        write(tmp_path / "job", f"rank{run.rank}", trace)
    return " ".join(load(tmp_path / "job").notes)


@pytest.mark.parametrize(
    ("name", "step"), [("gloo:all_reduce", "ProfilerStep#{}"), ("barrier", "step {}")]
)
def test_clocks_are_set_by_collectives_of_the_host(make, tmp_path, name, step):
    note = on_hosts(make, tmp_path, name, ahead=9_000.0, step=step)
    ahead = float(note.partition("rank 1's was ")[2].partition(" ms ahead")[0])
    assert ahead == pytest.approx(9.0, abs=1.0)
    assert on_hosts(make, tmp_path, name, ahead=0.0, step=step) == ""


def test_a_range_that_only_launches_a_collective_sets_no_clock(make, tmp_path):
    """Rank 1 is 4 ms late in every step, whatever its clock says."""
    assert on_hosts(make, tmp_path, "all_reduce", ahead=0.0, waits=False) == ""
    assert on_hosts(make, tmp_path, "gloo:broadcast", ahead=9_000.0) == ""


def test_on_hosts_too_the_late_rank_is_the_one_that_comes_last(make, tmp_path):
    """Rank 1 reads for 6 ms; both ranks then have two all-reduces in flight at once."""
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(2)]
    for number in range(8):
        begins = [run.host for run in runs]
        for run in runs:
            run.python(6_000.0 * run.rank)
            run.range("next batch", run.host - 6_000.0 * run.rank)
            start = run.host
            run.python(2_000.0)
            run.add("cpu_op", "aten::mm", start, 2_000.0)
        joined = [run.host for run in runs]
        for run, begin in zip(runs, begins, strict=True):
            for delay in (0.0, 100.0):
                start = joined[run.rank] + delay - 200.0
                length = max(joined) + delay + 300.0 - start
                run.add("user_annotation", "gloo:all_reduce", start, length, make.WORKER)
            run.host = max(joined) + 400.0
            run.range(f"ProfilerStep#{number}", begin)
    summary = summary_of_ranks(tmp_path, runs)
    late = summary.collective_waits.late[0]
    assert (late.rank, late.doing) == (1, "input")
    assert late.waiting_ns == pytest.approx(8 * 6_000_000, rel=0.05)
    assert summary.findings[0].title == "The model waits for data, on rank 1"
    assert not any(each.id == "straggler" for each in summary.findings)


def test_clocks_that_agree_stay_as_they_are(make, tmp_path):
    assert not any("clocks" in note for note in ranks_of(make, tmp_path).quality.notes)


def test_of_two_ranks_the_slower_is_set_against_the_other(make, tmp_path):
    """Not against the mean of both, which halves the difference."""
    stragglers = ranks_of(make, tmp_path).stragglers
    assert stragglers[1].excess_ns == stragglers[1].work_ns - stragglers[0].work_ns > 0


def test_one_rank_of_several_does_not_tell_waiting_from_transfer(make, tmp_path):
    run = make.job("straggler", ranks=4)[0]
    write(tmp_path, "x", run.trace(world_size=4))
    only = finding(summarise(load(tmp_path / "x.json")), "communication-exposed")
    assert only.title == "The device communicates, or waits for other ranks"
    assert "Only 1 of 4 ranks was recorded" in only.evidence
    assert only.advice.startswith("Put the captures of all ranks into one folder")


def test_two_ranks_may_wait_for_one_that_was_not_recorded(make, tmp_path):
    """Ranks 0 and 2 of 4 join at the same moment, and both wait for rank 1."""
    for run in make.job("straggler", ranks=4, jitter=0.0)[::2]:
        write(tmp_path / "job", f"rank{run.rank}", run.trace(world_size=4))
    summary = summarise(load(tmp_path / "job"))
    assert summary.collective_waits.waiting_ns < 1_000
    only = finding(summary, "communication-exposed")
    assert "Only 2 of 4 ranks were recorded" in only.evidence
    assert only.title == "The device communicates, or waits for other ranks"


def test_a_rank_that_is_late_for_a_reported_cause_hides_no_other(make, tmp_path):
    """Rank 0 waits for input in even steps; rank 1 computes for 3 ms longer in odd ones."""
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(3)]
    for number in range(10):
        begins, ready = [run.host for run in runs], []
        for run in runs:
            if run.rank == 0 and number % 2 == 0:
                run.python(4_000)
                run.range("next batch", begins[0])
            for _ in range(20):
                slow = run.rank == 1 and number % 2
                run.operator("aten::mm", "gemm_tensorop", 250.0 if slow else 100.0, host_us=6.0)
            ready.append(max(run.tail.values()))
        for run, begin, joined in zip(runs, begins, ready, strict=True):
            length = max(ready) + 300.0 - joined
            run.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", length, stream=24, after=joined)
            run.wait()
            run.range(f"ProfilerStep#{number}", begin)
    summary = summary_of_ranks(tmp_path, runs)
    assert [each.id for each in summary.findings] == ["input-starved", "straggler"]
    assert summary.findings[0].title == "The device waits for data, on rank 0"
    assert summary.findings[0].expected_gain_ratio == pytest.approx(1.5, abs=0.05)
    assert finding(summary, "straggler").title == "Rank 1 keeps the others waiting"


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def joined(runs, us: float, group: str, name: str = ALL_REDUCE) -> None:
    """All of these ranks join a collective of a process group, and go on when it is done."""
    ready = [max(run.tail.values(), default=run.host) for run in runs]
    for run, since in zip(runs, ready, strict=True):
        length = max(ready) + us - since
        run.launch(name, length, stream=24, after=since)
        run.events[-1]["args"] |= {"Process Group Name": group, "In msg nelems": 1024}
        run.tail = dict.fromkeys(run.tail, since + length)


def end_step(runs, begins, number: int) -> None:
    """All ranks wait for their devices, and end a step that began at these times."""
    for run, begin in zip(runs, begins, strict=True):
        run.wait()
        run.range(f"ProfilerStep#{number}", begin)


def summary_of_ranks(folder, runs):
    """The summary of a job, of which each rank wrote a file."""
    for run in runs:
        write(folder / "job", f"rank{run.rank}", run.trace(world_size=len(runs)))
    return summarise(load(folder / "job"))


def job_of(make, tmp_path, ranks: int, steps: int, work, *, step="ProfilerStep#{}", late=None):
    """Ranks that meet in an all-reduce of 150 µs at the end of each step; `work(run, number)` is
    what each does before, and some begin `late`, by so many µs.
    """
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(ranks)]
    for rank, us in (late or {}).items():
        runs[rank].host += us
    for number in range(steps):
        begins = [run.host for run in runs]
        for run in runs:
            work(run, number)
        joined(runs, 150.0, "0")
        for run, begin in zip(runs, begins, strict=True):
            run.wait()
            run.range(step.format(number), begin)
    for run in runs:
        write(tmp_path / "job", f"rank{run.rank}", run.trace(world_size=ranks))
    return summarise(load(tmp_path / "job"))


def operators(run, number: int) -> None:
    for _ in range(20):
        run.operator("aten::mm", "gemm_tensorop", 40.0)


@pytest.mark.parametrize(
    ("ranks", "steps", "late_us"), [(2, 1, 5_000), (5, 1, 9_000), (4, 3, 6_000)]
)
def test_a_rank_that_begins_late_costs_what_the_others_wait_of_the_whole_time(
    make, tmp_path, ranks, steps, late_us
):
    """Nobody is done before the last rank is, and its own work stays."""
    summary = job_of(make, tmp_path, ranks, steps, operators, late={1: late_us})
    on_time = job_of(make, tmp_path / "on_time", ranks, steps, operators)
    whole_ns, left_ns = summary.wall_ns, on_time.wall_ns
    assert whole_ns == pytest.approx(left_ns + late_us * 1000, rel=0.01)
    (only,) = summary.findings
    assert only.title == "Rank 1 keeps the others waiting"
    assert only.expected_gain_ratio == pytest.approx(whole_ns / left_ns, rel=0.01)
    assert only.share_of_wall == pytest.approx(late_us * 1000 / whole_ns, rel=0.01)
    assert "warm-up" in only.advice
    remaining = describe_finding_gain(summary, only)
    each = format_duration(left_ns / steps)
    assert remaining.startswith(f"{each} a step would remain: {whole_ns / steps / 1e6:.2f}")
    assert "from the first rank's start to the last one's end" in describe_capture(summary)


def test_ranks_that_are_apart_in_all_steps_lose_no_time_at_their_start(make, tmp_path):
    """Rank 0 computes 2 ms after each all-reduce: its steps begin and end that much later."""
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(2)]
    runs[0].host += 2_000.0
    for number in range(10):
        begins = [run.host for run in runs]
        for run in runs:
            operators(run, number)
        joined(runs, 150.0, "0")
        runs[0].operator("aten::mm", "gemm_tensorop", 2_000.0)
        end_step(runs, begins, number)
    for run in runs:
        write(tmp_path / "job", f"rank{run.rank}", run.trace(world_size=2))
    (only,) = summarise(load(tmp_path / "job")).findings
    assert only.title == "Rank 0 keeps the others waiting"
    assert only.expected_gain_ratio == pytest.approx((950 + 2_000) / 950, rel=0.03)


def test_without_the_late_rank_s_excess_the_next_one_s_work_stays(make, tmp_path):
    """Rank 0 computes for 10 ms, rank 1 for 9 ms, ranks 2 and 3 for 1 ms."""

    def work(run, number):
        for _ in range(10):
            run.operator("aten::mm", "gemm_tensorop", (1_000.0, 900.0, 100.0, 100.0)[run.rank])

    summary = job_of(make, tmp_path, 4, 6, work)
    waits = summary.collective_waits
    assert waits.least_ns == pytest.approx(6 * 9_150_000, rel=0.01)
    (only,) = summary.findings
    # With all work spread evenly, a step takes 5.25 ms and the transfer: no fix gains more.
    assert only.shared_gain_ratio == 0.0
    assert only.expected_gain_ratio == pytest.approx(10_150 / 5_400, rel=0.02)


def test_a_rank_that_begins_late_is_named_without_steps_too(make, tmp_path):
    summary = job_of(make, tmp_path, 5, 1, operators, step="iteration", late={3: 9_000.0})
    assert not summary.steps
    (only,) = summary.findings
    assert only.title == "Rank 3 keeps the others waiting"
    assert only.expected_gain_ratio == pytest.approx(9_950 / 950, rel=0.01)
    assert "1 time on each of 5 ranks" in text_of(summary)


def test_a_rank_whose_host_is_slow_launches_too_late_for_all(make, tmp_path):
    """70 µs for an operator instead of 20: the others would have been done long before."""

    def work(slow_us):
        def one(run, number):
            for _ in range(40):
                host_us = slow_us if run.rank == 2 else 20.0
                run.operator("aten::mm", "gemm_tensorop", 15.0, host_us=host_us - 5.0)

        return one

    summary = job_of(make, tmp_path, 4, 4, work(70.0))
    alike = job_of(make, tmp_path / "alike", 4, 4, work(20.0))
    first = summary.findings[0]
    assert (first.id, first.title) == (
        "launch-bound",
        "The host cannot launch work fast enough, on rank 2",
    )
    assert first.expected_gain_ratio == pytest.approx(summary.wall_ns / alike.wall_ns, rel=0.03)
    assert "68 µs each, where the others take 20 µs" in first.evidence
    assert "Communication is the symptom" in first.evidence
    assert "cores" in first.advice
    assert not {"straggler", "communication-exposed"} & {each.id for each in summary.findings}


def test_of_two_ranks_the_one_with_the_slow_host_is_named(make, tmp_path):
    """It is idle itself for as long as the other waits for it."""

    def work(run, number):
        for _ in range(40):
            host_us = 55.0 if run.rank else 15.0
            run.operator("aten::mm", "gemm_tensorop", 15.0, host_us=host_us)

    first = job_of(make, tmp_path, 2, 4, work, step="iteration").findings[0]
    assert first.title == "The host cannot launch work fast enough, on rank 1"
    assert first.expected_gain_ratio == pytest.approx((40 * 60 + 150) / (40 * 20 + 150), rel=0.05)


def test_what_a_list_of_late_ranks_leaves_out_is_summed(make, tmp_path):
    def work(run, number):
        for _ in range(10):
            slow = number % 8 == run.rank
            run.operator("aten::mm", "gemm_tensorop", 450.0 if slow else 150.0)

    text = text_of(job_of(make, tmp_path, 8, 8, work))
    assert text.count("computing for longer (1 collective)") == 5
    assert "63.0 ms for 3 more, not listed here" in text
    for rank in range(8):
        assert f"21.00 ms for rank {rank}" in text


def test_uneven_work_in_turn_is_one_finding_that_names_all_ranks(make, tmp_path):
    """In each step another of 4 ranks has kernels that take 3 times as long."""

    def work(run, number):
        for _ in range(10):
            slow = number % 4 == run.rank
            run.operator("aten::mm", "gemm_tensorop", 450.0 if slow else 150.0)

    (only,) = job_of(make, tmp_path, 4, 8, work).findings
    assert only.title == "Ranks take turns in keeping the others waiting"
    assert only.expected_gain_ratio == pytest.approx((4_500 + 150) / (1_500 + 150), rel=0.02)
    assert only.shared_gain_ratio == pytest.approx((4_500 + 150) / (2_250 + 150), rel=0.02)
    for rank in range(4):
        assert f"ms for rank {rank}" in only.evidence
    assert "kernels took more than" not in only.evidence, "a step with more work is not interrupted"
    assert only.advice.startswith("Compare the ranks' batches of one step")


def test_kernels_that_make_ranks_late_in_turn_are_no_second_finding(make, tmp_path):
    """In each step, 4 of the 10 kernels of another of 4 ranks take 6 times as long."""

    def work(run, number):
        for kernel in range(10):
            slow = number % 4 == run.rank and kernel < 4
            run.operator("aten::mm", "gemm_tensorop", 900.0 if slow else 150.0)

    (only,) = job_of(make, tmp_path, 4, 8, work).findings
    assert only.title == "Ranks take turns in keeping the others waiting"
    assert "32 kernels took more than 1.5 times as long" in only.evidence


def test_python_between_launches_in_turn_is_no_wait_of_the_host(make, tmp_path):
    """In each step one of two ranks runs 20 pieces of Python between small kernels, and the other
    waits for it: what it did itself made it late, not that it had waited before.
    """
    busy = [1, 0, 0, 1, 0, 1, 1, 0]

    def work(slow):
        def one(run, number):
            for _ in range(5):
                run.operator("aten::mm", "gemm_tensorop", 50.0)
            for _ in range(20 * (slow and busy[number] == run.rank)):
                run.python(150.0)
                run.operator("aten::add_", "elementwise_kernel", 3.0)

        return one

    summary = job_of(make, tmp_path, 2, 8, work(True))
    without = job_of(make, tmp_path / "without", 2, 8, work(False))
    waits = summary.collective_waits
    after_waits = sum(row.waiting_ns for row in waits.late if row.doing == "synchronisation")
    assert after_waits < 0.15 * waits.waiting_ns
    first = summary.findings[0]
    assert first.id != "sync-stalls"
    assert first.expected_gain_ratio == pytest.approx(summary.wall_ns / without.wall_ns, rel=0.15)
    assert "ranks 0, 1 in turn" in first.evidence
    assert "Python" in first.title + first.evidence + first.advice


def test_who_waits_for_one_that_waits_is_charged_to_the_first(make, tmp_path):
    """Rank 2 computes for 250 µs longer in each of 4 layers, for which its neighbour waits in their
    own group; ranks 0 and 1 wait for both at the end of a step.
    """
    runs = [make.Program(rank=rank, jitter=0.0) for rank in range(4)]
    for number in range(6):
        begins = [run.host for run in runs]
        for _ in range(4):
            for run in runs:
                for _ in range(5):
                    us = 150.0 if run.rank == 2 else 100.0
                    run.operator("aten::mm", "gemm_tensorop", us, host_us=4.0)
            joined(runs[:2], 40.0, "1")
            joined(runs[2:], 40.0, "2")
        joined(runs[::2], 300.0, "3")
        joined(runs[1::2], 300.0, "4")
        end_step(runs, begins, number)
    summary = summary_of_ranks(tmp_path, runs)
    (late,) = [row for row in summary.collective_waits.late if row.waiting_ns > 300_000]
    assert (late.rank, late.doing) == (2, "computing")
    assert late.waiting_ns == pytest.approx(6 * 3 * 1_000_000, rel=0.03)


def test_lightning_s_own_range_around_the_next_batch_is_input(make, tmp_path):
    run = make.Program(jitter=0.0)
    for number in range(8):
        begin = run.host
        run.python(4_000)
        run.range("[pl][profile][_TrainingEpochLoop].train_dataloader_next", begin)
        for _ in range(10):
            run.operator("aten::mm", "gemm_tensorop", 200.0)
        run.wait()
        run.range(f"ProfilerStep#{number}", begin)
    assert [each.id for each in summarise_run(tmp_path, run).findings] == ["input-starved"]


def test_a_recurrent_layer_that_takes_the_time_is_no_finding(make, tmp_path):
    run = make.Program(jitter=0.0)
    for _ in run.steps(8):
        for name, us in (("aten::mkldnn_rnn_layer", 8_000), ("aten::mul", 1_000)):
            start = run.host
            run.python(us)
            run.add("cpu_op", name, start, run.host - start)
    assert summarise_run(tmp_path, run).findings == []


def test_python_s_own_functions_are_not_the_program_s(make, tmp_path):
    run = make.Program(jitter=0.0)
    begin = run.host
    for number in range(8):
        start = run.host
        run.operator("aten::mm", "gemm", 500.0)
        run.wait()
        stall = run.host
        run.python(2_000)
        run.add("python_function", "logging/__init__.py(1720): flush", stall, 1_900.0)
        run.range(f"ProfilerStep#{number}", start)
    run.add("python_function", "train.py(1): <module>", begin, run.host - begin)
    summary = summarise_run(tmp_path, run)
    assert [row.line for row in summary.lines] == ["train.py: <module>"]
    assert "train.py" not in finding(summary, "host-stalls").evidence


def test_on_a_cpu_a_stall_is_told_once(make, tmp_path):
    run = make.Program(jitter=0.0)
    for _ in run.steps(8):
        for _ in range(20):
            start = run.host
            run.python(100)
            run.add("cpu_op", "aten::mm", start, 100.0)
        run.python(6_000)
    (only,) = summarise_run(tmp_path, run).findings
    assert only.evidence.count("no operator") == 1


# what a file is


def test_two_runs_at_different_times_are_no_ranks(make, tmp_path):
    write(tmp_path / "runs", "run0", moved(loop(make).trace(), 0.0, pid=900))
    write(tmp_path / "runs", "run1", moved(loop(make).trace(), 3.6e9, pid=1200))
    summary = summarise(load(tmp_path / "runs"))
    assert (summary.ranks, len(summary.steps), summary.stragglers) == ([0], 12, [])
    assert summary.wall_ns < 60e6
    assert "in different processes (`lab compare`" in " ".join(summary.quality.notes)


def test_cycles_may_overlap_by_a_little(make, tmp_path):
    length = loop(make).host - 1_000_000.0
    for number in range(3):
        ahead = number * (length - 20.0)
        write(tmp_path / "cycles", f"host_42.{number}", moved(loop(make).trace(), ahead))
    summary = summarise(load(tmp_path / "cycles"))
    assert (summary.ranks, len(summary.steps)) == ([0], 18)


def both(first: dict, second: dict) -> dict:
    """One file of what two processes recorded."""
    second["traceEvents"] += first["traceEvents"]
    return second


def test_processes_whose_steps_have_other_numbers_are_two(make, tmp_path):
    later = moved(loop(make, us=450.0).trace(), pid=200, device=1)
    for event in later["traceEvents"]:
        event["name"] = event["name"].replace("ProfilerStep#", "ProfilerStep#1")
    write(tmp_path, "x", both(moved(loop(make).trace(), pid=100), later))
    summary = summarise(load(tmp_path / "x.json"))
    assert summary.quality.reliable, summary.quality.reasons
    costs = {rank: [s.cost_ns for s in summary.steps if s.rank == rank] for rank in summary.ranks}
    assert costs[0] == pytest.approx([3_010_000] * 6, rel=0.02)
    assert costs[1] == pytest.approx([4_510_000] * 6, rel=0.02)


def test_processes_without_steps_are_told_apart_by_what_they_launch(make, tmp_path):
    traces = [moved(loop(make).trace(), pid=pid, device=pid % 10) for pid in (100, 201)]
    trace = both(*traces)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if "Profiler" not in e["name"]]
    write(tmp_path, "x", trace)
    summary = summarise(load(tmp_path / "x.json"))
    assert [(use.rank, use.device) for use in summary.devices] == [(0, 0), (1, 1)]


def test_processes_on_one_device_cannot_be_told_apart(make, tmp_path):
    trace = both(*(moved(loop(make).trace(), pid=pid) for pid in (100, 200)))
    write(tmp_path, "x", trace)
    with pytest.raises(CaptureError, match=r"2 processes \(100, 200\) that used the same device"):
        load(tmp_path / "x.json")


def test_two_processes_of_one_number_have_steps_of_their_own(make, tmp_path):
    """As containers have: process 100 in both, threads 100 and 300, devices 0 and 1."""
    later = moved(loop(make, steps=4, us=450.0).trace(), 40.0, pid=100, device=1)
    for event in later["traceEvents"]:
        if "stream" not in event["args"]:
            event["tid"] = 300
    write(tmp_path, "x", both(moved(loop(make, steps=4).trace(), pid=100), later))
    summary = summarise(load(tmp_path / "x.json"))
    assert summary.quality.reliable, summary.quality.reasons
    costs = {rank: [s.cost_ns for s in summary.steps if s.rank == rank] for rank in summary.ranks}
    assert sorted(sum(each) for each in costs.values()) == pytest.approx(
        [4 * 3_010_000, 4 * 4_510_000], rel=0.02
    )


def test_two_processes_whose_threads_have_one_number_too_cannot_be_told_apart(make, tmp_path):
    later = moved(loop(make, us=450.0).trace(), 40.0, device=1)
    write(tmp_path, "x", both(loop(make).trace(), later))
    with pytest.raises(CaptureError, match=r"two processes of one number \(4000\)"):
        load(tmp_path / "x.json")


def test_the_same_capture_twice_is_one(make, tmp_path):
    for name in ("a", "b"):
        write(tmp_path / "job", name, loop(make).trace())
    summary = summarise(load(tmp_path / "job"))
    assert (summary.ranks, len(summary.steps), len(summary.devices)) == ([0], 6, 1)
    assert "b.json is the same capture as a.json: it is counted once" in summary.quality.notes


def test_of_two_optimizers_the_last_ends_a_step(make, tmp_path):
    """20 kernels for each of two optimizers: 40 a step, in 8 steps."""
    run = make.Program(jitter=0.0)
    for _ in range(8):
        for name in ("Adam", "RMSprop"):
            for _ in range(19):
                run.operator("aten::mm", "gemm_tensorop", 3.0, host_us=25.0)
            begin = run.host
            run.operator("aten::_foreach_add_", "multi_tensor_apply_kernel", 3.0)
            run.range(f"Optimizer.step#{name}.step", begin)
    run.wait()
    summary = summarise_run(tmp_path, run)
    assert len(summary.steps) == 8
    assert summary.launches[0].kernels_per_step == 40


def test_shares_of_the_part_without_start_up_say_so(make, tmp_path):
    run = make.Program(jitter=0.0)
    begin = run.host
    run.python(200_000)
    run.add("cuda_runtime", "hipModuleLoad", begin, 199_000.0, correlation=9_999)
    for _ in range(300):
        run.operator("aten::mm", "gemm_tensorop", 3.0, host_us=40.0)
    run.wait()
    summary = summarise_run(tmp_path, run)
    assert describe_scope(summary).startswith("between the first and the last work, 13")
    text = text_of(summary)
    assert "x between the first and the last work, 13.5 ms of 214 ms)" in text
    assert "Shares and gains are of the time between the first and the last work" in text
    assert describe_scope(summarise_run(tmp_path, loop(make))) == ""


# recording and comparing


def test_frames_that_all_broke_the_file_slowed_the_program_too(make, tmp_path):
    assert summarise_run(tmp_path, loop(make), with_stack=1).quality.slowed
    assert not summarise_run(tmp_path, loop(make), with_stack=0).quality.slowed


def test_lines_do_not_change_what_small_operators_cost(make, tmp_path):
    """Half of the time is in 300 calls of 5 µs a step, the rest in ten long ones, all on a line."""
    shares = []
    for lines in (False, True):
        run = make.Program(jitter=0.0)
        for number in range(8):
            begin = run.host
            for us in [5.0] * 300 + [150.0] * 10:
                start = run.host
                run.python(us)
                run.add("cpu_op", "aten::mul" if us < 10 else "aten::mm", start, us)
            if lines:
                length = run.host - begin
                run.add("python_function", "a.py(9): f", begin, length, tid="lines of 4000")
            run.range(f"ProfilerStep#{number}", begin)
        (only,) = summarise_run(tmp_path, run).findings
        assert only.id == "python-overhead"
        assert ("a.py(9): f calls 310 operators" in only.evidence) == lines
        shares.append(only.share_of_wall)
    assert shares == pytest.approx([0.5, 0.5], rel=0.02)


def test_a_step_is_not_set_against_a_whole_recording(make, tmp_path):
    marked = loop(make).trace()
    bare = loop(make).trace()
    bare["traceEvents"] = [e for e in bare["traceEvents"] if "Profiler" not in e["name"]]
    write(tmp_path, "marked", marked)
    write(tmp_path, "bare", bare)
    comparison = compare(load(tmp_path / "marked.json"), load(tmp_path / "bare.json"))
    (difference,) = comparison.differences
    assert difference.sentence.startswith("steps are marked only before")
    assert comparison.outcome == "cannot tell"


@pytest.mark.parametrize(("ranks", "stated"), [(8, "8"), (0, "none stated")])
def test_one_rank_of_two_and_one_of_more_or_alone_are_not_alike(make, tmp_path, ranks, stated):
    for name, size in (("before", 2), ("after", ranks)):
        write(tmp_path, name, loop(make, steps=8).trace(world_size=size))
    comparison = compare(load(tmp_path / "before.json"), load(tmp_path / "after.json"))
    (difference,) = comparison.differences
    assert f"numbers of ranks differ: 2 before, {stated} after" in difference.sentence
    assert comparison.outcome == "cannot tell"


# several devices of one process


def stages(make, *, parts: int = 1, alone: bool = False):
    """A pipeline of two stages, on devices 0 and 1 of one process: each part of a batch computes
    for 3 ms on the one and then on the other. `alone`: the second needs nothing of the first.
    """
    run = make.Program(jitter=0.0)
    for _ in run.steps(6):
        for _ in range(parts):
            for _ in range(10):
                run.operator("aten::mm", "gemm_tensorop", 300.0)
            done = 0.0 if alone else run.tail[make.COMPUTE_STREAM]
            for _ in range(10):
                run.launch("gemm_tensorop", 300.0, stream=8, after=done)
        run.wait()
    for event in run.events:
        if event["args"].get("stream") == 8:
            event.update(pid=1, args=event["args"] | {"device": 1})
    return run


def test_devices_that_take_turns_wait_for_one_another(make, tmp_path):
    summary = summarise_run(tmp_path, stages(make))
    idle = [{part.cause: part.share_of_wall for part in use.gap_causes} for use in summary.devices]
    assert idle[1]["devices"] == pytest.approx(0.47, abs=0.02)
    turns = finding(summary, "device-turns")
    assert "For 24% of the devices' time" in turns.evidence
    brought = stages(make).host - 1e6, stages(make, alone=True).host - 1e6
    assert turns.expected_gain_ratio == pytest.approx(brought[0] / brought[1], rel=0.05)
    assert (summary.stragglers, summary.collective_waits) == ([], None)
    assert "Where did the wall time go on 2 devices, 72" in text_of(summary)


def test_parts_of_a_batch_let_stages_work_side_by_side(make, tmp_path):
    summary = summarise_run(tmp_path, stages(make, parts=8))
    assert not any(each.id == "device-turns" for each in summary.findings)
    assert not any(
        each.id == "device-turns"
        for each in summarise_run(tmp_path, stages(make, alone=True)).findings
    )
