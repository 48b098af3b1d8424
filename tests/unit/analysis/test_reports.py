"""Public reports of tools that drew the wrong conclusion from a capture, each with the right one.

The captures are small reconstructions: one of each kind.
"""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bottleneck_lab import load, summarise
from bottleneck_lab.report.console.summary import render_summary

from .traces import summarise_run

CAPTURES = Path(__file__).parent / "captures"


def summary_of(name: str):
    folder = CAPTURES / name
    return summarise(load(folder if folder.is_dir() else CAPTURES / f"{name}.json.gz"))


def text_of(summary) -> str:
    out = StringIO()
    render_summary(summary, Console(file=out, width=150))
    return " ".join(out.getvalue().split())


def idle_shares(summary) -> dict[str, float]:
    wall = sum(use.wall_ns for use in summary.devices)
    shares: dict[str, float] = {}
    for use in summary.devices:
        for part in use.gap_causes:
            shares[part.cause] = shares.get(part.cause, 0.0) + part.idle_ns / wall
    return shares


def finding(summary, id_: str):
    (one,) = (each for each in summary.findings if each.id == id_)
    return one


def test_a_removed_wait_gains_no_more_than_the_host_s_own_time_allows():
    """The host is busy 97% of the time and waits 12 µs a token: .item() costs 3%."""
    summary = summary_of("sync_gain_ignores_host_time")
    assert summary.gains["idle-synchronisation"] == pytest.approx(1.03, abs=0.01)
    assert summary.findings[0].id == "host-stalls"
    assert "sync-stalls" not in {each.id for each in summary.findings}
    assert all(each.expected_gain_ratio < 4.5 for each in summary.findings)


@pytest.mark.parametrize(
    "name",
    [
        "sync_outlasts_all_recorded_work",
        "dropped_kernels_headlined_as_synchronisation",
        "graph_kernels_stamped_in_one_late_burst",
        "xpu_launches_without_kernels",
    ],
)
def test_of_what_was_not_recorded_no_cause_and_no_gain_is_told(name):
    summary = summary_of(name)
    assert not summary.quality.reliable
    shares = idle_shares(summary)
    assert shares["unrecorded"] > 0.9 * sum(shares.values())
    assert summary.gains == {}
    assert {each.id for each in summary.findings} <= {"tensor-cores-unused"}
    text = text_of(summary)
    assert "Where most time is lost: idle: not recorded" in text
    assert "Without that time" not in text


def test_waits_that_outlast_all_recorded_work_are_the_reason():
    summary = summary_of("sync_outlasts_all_recorded_work")
    (reason,) = summary.quality.reasons
    assert reason.startswith("8 of 8 waits of the host go on after all recorded work has ended")
    assert idle_shares(summary)["unrecorded"] == pytest.approx(8 * 8.7 / 73.8, abs=0.03)


def test_work_that_ends_after_the_wait_for_it_has_a_wrong_time():
    """The kernels' own lengths still hold; steps, idle time and causes don't."""
    summary = summary_of("graph_kernels_stamped_in_one_late_burst")
    (missing,) = summary.quality.missing
    assert missing.what.startswith("11 of 11 waits of the host return before the work")
    assert set(missing.grounds) == {"idle", "host", "steps"}
    assert [each.id for each in summary.withheld] == ["uneven-steps"]
    text = text_of(summary)
    again = f"missing: {summary.withheld[0].title}. Record all devices again, and fewer steps"
    assert again in text
    assert "Nothing stands out" not in text


def test_intel_s_launches_without_kernels_are_no_program_for_the_cpu():
    summary = summary_of("xpu_launches_without_kernels")
    assert not summary.cpu_only
    (reason,) = summary.quality.reasons
    assert reason.startswith("120 kernel launches were recorded but no kernel")
    assert [row.name for row in summary.syncs] == ["urQueueFinish"]


def test_a_rank_that_begins_late_is_named_and_transfer_is_only_the_rest():
    summary = summary_of("late_rank_not_named")
    waits = summary.collective_waits
    by_rank = dict.fromkeys(summary.ranks, 0.0)
    for row in waits.late:
        by_rank[row.rank] += row.waiting_ns / 1e6
    assert by_rank == pytest.approx({0: 0.0, 1: 0.7, 2: 13.3}, abs=0.01)
    assert waits.transfer_ns == pytest.approx(900_000, abs=1000)
    late = finding(summary, "straggler")
    assert "13.30 ms for rank 2, 0.70 ms for rank 1" in late.evidence
    assert "began its step later" in late.evidence
    assert "communication-exposed" not in {each.id for each in summary.findings}
    assert "13.3" in text_of(summary)


def test_ranks_that_are_late_in_turn_wait_for_input():
    """72 of 77 ms of communication is waiting for whichever rank loads data."""
    summary = summary_of("late_rank_rotates")
    waits = summary.collective_waits
    assert waits.waiting_ns / 1e6 == pytest.approx(72, abs=0.5)
    assert waits.transfer_ns / 1e6 == pytest.approx(5.28, abs=0.5)
    for_input = sum(row.waiting_ns for row in waits.late if row.doing == "input")
    assert for_input > 0.98 * waits.waiting_ns
    (only,) = summary.findings
    assert only.id == "input-starved"
    assert only.expected_gain_ratio == pytest.approx(2.84, abs=0.02)
    assert "communication is the symptom" in only.evidence


def test_an_optimizer_s_steps_are_steps_and_the_driver_s_start_is_none():
    summary = summary_of("per_step_figures_without_steps")
    assert len(summary.steps) == 12
    assert summary.launches[0].kernels_per_step == 40
    assert "40 kernels per step" in finding(summary, "launch-bound").evidence
    assert (summary.startup.call, summary.startup.call_ns) == ("cudaFree", 40_000_000)


def test_nothing_is_per_step_without_steps(tmp_path, make):

    run = make.Program()
    for _ in range(60):
        run.operator("aten::add_", "elementwise_kernel", 3.0, host_us=60.0)
    summary = summarise_run(tmp_path, run)
    assert not summary.steps
    assert [each.id for each in summary.findings] == ["launch-bound"]
    assert "per step" not in text_of(summary)


def test_cycles_of_one_process_are_one_rank():
    summary = summary_of("repeat_cycles_read_as_ranks")
    assert summary.ranks == [0]
    assert len(summary.steps) == 9
    assert summary.stragglers == []
    assert len(summary.devices) == 1
    assert summary.devices[0].busy_share > 0.97  # the seconds between the cycles are none of it
    assert summary.launches[0].kernels == 135


def test_processes_in_one_file_are_ranks_with_steps_of_their_own():
    summary = summary_of("two_processes_in_one_file")
    assert summary.quality.reliable, summary.quality.reasons
    costs = {rank: [s.cost_ns for s in summary.steps if s.rank == rank] for rank in summary.ranks}
    assert {rank: len(each) for rank, each in costs.items()} == {0: 4, 1: 4}
    assert costs[0] == pytest.approx([4_060_000] * 4, rel=0.02)
    assert costs[1] == pytest.approx([6_060_000] * 4, rel=0.02)
    assert "sync-stalls" not in {each.id for each in summary.findings}
    assert summary.stragglers == []


def test_no_tensor_cores_are_advised_where_there_are_none():
    assert summary_of("tensor_cores_advised_on_p100").findings == []


def test_tensor_cores_that_take_only_fp16_are_advised_with_fp16_and_gain_what_the_sheet_allows():
    (only,) = summary_of("tf32_and_bf16_advised_on_t4").findings
    assert only.id == "tensor-cores-unused"
    assert "GradScaler" in only.advice
    assert "set_float32_matmul_precision" not in only.advice
    assert 7 < only.expected_gain_ratio <= 65 / 8.1


def test_a_capture_with_frames_is_not_told_to_record_them_and_names_the_line(tmp_path, make):

    run = make.Program()
    for _ in run.steps(6):
        run.launch("kernel", 500.0)
        called = run.host
        run.python(4_000)
        run.add("python_function", "decode.py(23): legal", called, run.host - called)
    summary = summarise_run(tmp_path, run)
    stalls = finding(summary, "host-stalls")
    assert "--stack" not in stalls.advice
    assert "decode.py" in stalls.evidence
    assert "Python's frames were recorded, which makes Python slower" in stalls.doubt


def test_a_slow_growth_that_adds_up_is_a_finding(tmp_path, make):
    """40 KiB a step of 4 MiB, as losses leave that are detached from a graph in a circle."""

    run = make.Program()
    run.memory((2 << 20) - (1 << 28))  # a program begins with 256 MiB
    for _ in run.steps(40):
        run.operator("aten::mm", "gemm_tensorop", 300.0)
        run.memory(40 << 10)
        run.wait()
    summary = summarise_run(tmp_path, run)
    (use,) = summary.memory
    assert use.growth_bytes_per_step == 40 << 10
    assert summary.findings[0].id == "memory-growth"
