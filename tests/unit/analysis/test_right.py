"""Small traces whose answer is known by construction, where other analysers are known to be
wrong.
"""

import importlib
import json
import re
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.report.breakdown import describe_earlier_launches
from bottleneck_lab.report.capture_words import describe_wait
from bottleneck_lab.trace import merge_ranks

T0 = 1_000_000_000.0


def event(cat: str, name: str, start: float, dur: float, tid: int = 1, **args) -> dict:
    """Times in µs after T0. With a `stream` the row is a device's."""
    place = {"pid": 0, "tid": args["stream"]} if "stream" in args else {"pid": 1, "tid": tid}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        **place,
        "ts": round(T0 + start, 3),
        "dur": dur,
        "args": {"device": 0, **args},
    }


def kernel(start: float, dur: float, stream: int = 7, name: str = "gemm", **args) -> dict:
    return event("kernel", name, start, dur, stream=stream, **args)


def summed_up(tmp_path: Path, *events: dict, rank: int = 0):
    return summarise(loaded(tmp_path, *events, rank=rank))


def loaded(tmp_path: Path, *events: dict, rank: int = 0):
    path = tmp_path / f"rank{rank}.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": list(events)}))
    return load(path)


def causes(use) -> dict[str, int]:
    return {part.cause: part.idle_ns for part in use.gap_causes}


def test_nanoseconds_are_not_rounded_away(tmp_path):
    """A thousand kernels of 0.6 µs with 0.4 µs between: rounding starts up and ends down to µs sees
    no busy time at all.
    """
    (use,) = summed_up(tmp_path, *(kernel(i + 0.2, 0.6) for i in range(1000))).devices
    assert use.busy_ns == 600_000
    assert use.idle_ns == 399_600


def test_streams_that_overlap_are_not_counted_twice(tmp_path):
    (use,) = summed_up(tmp_path, kernel(0, 100, 7), kernel(50, 100, 8), kernel(200, 50, 9)).devices
    assert (use.busy_ns, use.idle_ns, use.wall_ns) == (200_000, 50_000, 250_000)
    assert use.streams == 3


def waiting(start: float, dur: float) -> dict:
    return event("cuda_runtime", "cudaDeviceSynchronize", start, dur)


def test_a_wait_is_for_what_still_runs_then(tmp_path):
    done = [kernel(5 + i, 1, 8, name="done before") for i in range(3)]
    (row,) = summed_up(tmp_path, kernel(0, 100, name="gemm"), *done, waiting(60, 40)).syncs
    assert row.awaited == "gemm"


def test_a_wait_is_for_work_of_its_own_rank(tmp_path):
    own = loaded(tmp_path, kernel(0, 100, name="gemm"), waiting(10, 90))
    others = [kernel(0, 200, stream, name="another rank's") for stream in (7, 8)]
    (row,) = summarise(merge_ranks([own, loaded(tmp_path, *others, rank=1)])).syncs
    assert row.awaited == "gemm"


def test_a_wait_beside_kernels_of_no_length(tmp_path):
    """As formats in whole microseconds have them: nothing that ran has an end to wait beyond."""
    (use,) = summed_up(tmp_path, kernel(0, 0), kernel(30, 0), waiting(40, 50)).devices
    assert (use.busy_ns, use.idle_ns) == (0, 90_000)


def test_waits_drawn_on_a_stream_are_not_busy(tmp_path):
    (use,) = summed_up(
        tmp_path, kernel(0, 10), event("cuda_sync", "Stream Sync", 10, 80, stream=7), kernel(90, 10)
    ).devices
    assert use.busy_ns == 20_000


def test_runtime_calls_with_a_stream_argument_are_not_busy(tmp_path):
    (use,) = summed_up(
        tmp_path,
        kernel(0, 10),
        event("cuda_runtime", "cudaStreamSynchronize", 10, 80, stream=7),
        kernel(90, 10),
    ).devices
    assert use.busy_ns == 20_000


def test_copies_are_busy_and_exposed_where_nothing_computes(tmp_path):
    copy = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 50, 100, stream=20, bytes=1000)
    (use,) = summed_up(tmp_path, kernel(0, 100), copy).devices
    assert (use.busy_ns, use.copy_ns, use.exposed_copy_ns) == (150_000, 100_000, 50_000)


def test_every_kernel_name_has_its_own_figures(tmp_path):
    """Beyond any number of names: mean, smallest and largest stay what they are."""
    names = [f"k{i}" for i in range(200)]
    rows = summed_up(
        tmp_path,
        *(kernel(i * 100, 1 + i % 3 + (i >= 200), name=names[i % 200]) for i in range(400)),
    ).kernels
    for row in rows:
        number = int(row.name[1:])
        durations = [1000 * (1 + i % 3 + (i >= 200)) for i in (number, number + 200)]
        assert (row.calls, row.min_ns, row.max_ns, row.total_ns) == (
            2,
            min(durations),
            max(durations),
            sum(durations),
        )


def test_the_last_step_counts(tmp_path):
    steps = [event("user_annotation", f"ProfilerStep#{i}", i * 100, 100) for i in range(3)]
    summary = summed_up(tmp_path, *steps, *(kernel(i * 100 + 50, 40) for i in range(3)))
    assert len(summary.steps) == 3
    assert summary.devices[0].busy_ns == 120_000
    assert summary.wall_ns == 300_000


def test_self_time_and_recursion(tmp_path):
    ops = [
        event("cpu_op", "outer", 0, 100),
        event("cpu_op", "inner", 0, 60),
        event("cpu_op", "inner", 10, 20),
        event("cpu_op", "leaf", 70, 30),
        event("cpu_op", "outer", 0, 50, tid=2),
    ]
    rows = {row.name: row for row in summed_up(tmp_path, *ops).operators}
    assert (rows["outer"].self_ns, rows["outer"].total_ns) == (60_000, 150_000)
    assert (rows["inner"].self_ns, rows["inner"].total_ns, rows["inner"].calls) == (
        60_000,
        60_000,
        2,
    )


def test_device_time_goes_to_the_operator_that_launched_it(tmp_path):
    rows = summed_up(
        tmp_path,
        event("cpu_op", "aten::linear", 0, 50),
        event("cpu_op", "aten::addmm", 5, 40),
        event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
        event("cpu_op", "aten::relu", 60, 20),
        event("cuda_runtime", "cudaLaunchKernel", 65, 5, correlation=2),
        kernel(100, 300, correlation=1),
        kernel(400, 100, correlation=2),
    ).operators
    found = {row.name: (row.device_self_ns, row.device_total_ns) for row in rows}
    assert found == {
        "aten::addmm": (300_000, 300_000),
        "aten::relu": (100_000, 100_000),
        "aten::linear": (0, 300_000),
    }


def test_each_gap_has_its_cause(tmp_path):
    """One gap a cause, with what the host did in it; the causes sum to the idle time."""
    (use,) = summed_up(
        tmp_path,
        event("cpu_op", "aten::setup", 0, 1),
        event("cuda_runtime", "cudaLaunchKernel", 5, 5, correlation=1),
        kernel(10, 90, correlation=1),
        event(
            "user_annotation",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            20,
            180,
        ),
        event("cuda_runtime", "cudaLaunchKernel", 200, 5, correlation=2),
        kernel(200, 100, correlation=2),
        event("cuda_runtime", "cudaStreamSynchronize", 210, 95),
        event("cpu_op", "aten::add", 320, 30),
        event("cuda_runtime", "cudaLaunchKernel", 340, 5, correlation=3),
        kernel(350, 50, correlation=3),
        event("cpu_op", "aten::mul", 410, 80),
        event("cuda_runtime", "cudaLaunchKernel", 480, 5, correlation=4),
        kernel(500, 100, correlation=4),
        event("user_annotation", "gloo:all_reduce", 600, 100),
        event("cuda_runtime", "cudaLaunchKernel", 700, 5, correlation=5),
        kernel(700, 100, correlation=5),
    ).devices
    found = causes(use)
    assert found["input"] == 100_000
    # The device worked for 90 µs of the wait: so far ahead the host would be, and the idle time
    # after it is the wait's, besides 5 µs inside it.
    assert found["synchronisation"] == 95_000
    assert found["communication"] == 100_000
    assert found["startup"] == 10_000
    assert found["launch"] == 55_000
    assert sum(found.values()) == use.idle_ns


def test_a_launch_that_loads_its_kernel_is_no_slow_launching(tmp_path):
    (use,) = summed_up(
        tmp_path,
        event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
        kernel(5, 95, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 100, 10_000, correlation=2),
        kernel(10_100, 100, correlation=2),
    ).devices
    assert causes(use)["compilation"] == 10_000_000


def test_a_launch_that_waits_for_room_in_the_queue_bounds_no_gain(tmp_path):
    """The device is busy in all of it: without the copies the host would not wait there."""
    rows = []
    for i in range(20):
        at, number = i * 1_100, 2 * i + 1
        rows += [
            event("cuda_runtime", "cudaMemcpyAsync", at, 5, correlation=number),
            event("cuda_runtime", "cudaLaunchKernel", at + 10, 1_080, correlation=number + 1),
            event("gpu_memcpy", "Memcpy HtoD", at + 5, 1_000, stream=7, correlation=number),
            kernel(at + 1_005, 100, correlation=number + 1),
        ]
    (copies,) = summed_up(tmp_path, *rows).findings
    assert copies.id == "copy-exposed"
    assert copies.expected_gain_ratio == pytest.approx(22_000 / 2_000, rel=0.25)


@pytest.mark.parametrize(("memory", "pins"), [("Pinned", False), ("Pageable", True)])
def test_copies_from_pinned_memory_are_not_told_to_be_pinned(tmp_path, memory, pins):
    rows = []
    for i in range(20):
        at, number = i * 1_100, 2 * i + 1
        name = f"Memcpy HtoD ({memory} -> Device)"
        rows += [
            event("cuda_runtime", "cudaMemcpyAsync", at, 5, correlation=number),
            event("cuda_runtime", "cudaLaunchKernel", at + 10, 5, correlation=number + 1),
            event("gpu_memcpy", name, at + 5, 900, stream=7, correlation=number),
            kernel(at + 905, 195, correlation=number + 1),
        ]
    advice = {each.id: each.advice for each in summed_up(tmp_path, *rows).findings}
    assert ("from pinned memory" in advice["copy-exposed"]) == pins
    assert ("pinned already" in advice["copy-exposed"]) != pins


def test_what_worker_threads_do_is_no_cause(tmp_path):
    (use,) = summed_up(
        tmp_path,
        event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
        kernel(5, 95, correlation=1),
        event("user_annotation", "data", 100, 100, tid=99),
        event("cpu_op", "aten::mul", 100, 90),
        event("cuda_runtime", "cudaLaunchKernel", 195, 5, correlation=2),
        kernel(200, 100, correlation=2),
    ).devices
    assert "input" not in causes(use)
    assert causes(use) == {"startup": 5_000, "launch": 100_000}


def test_without_the_host_the_cause_is_unknown(tmp_path):
    (use,) = summed_up(tmp_path, kernel(0, 10), kernel(100, 10)).devices
    assert causes(use) == {"unknown": 90_000}
    assert [part.sure for part in use.gap_causes] == ["unsure"]


def _stalled(*between: dict, steps: bool = True) -> list[dict]:
    """Two launches 10 ms apart, each of 1 ms of work, with what the host did between them."""
    marked = [
        event("user_annotation", f"step {i}", i * 11_000, 11_000 if i else 5_000) for i in range(2)
    ]
    return [
        *(marked if steps else [event("cpu_op", "aten::rand", 0, 10)]),
        event("cuda_runtime", "cudaLaunchKernel", 100, 10, correlation=1),
        kernel(110, 990, correlation=1),
        *between,
        event("cuda_runtime", "cudaLaunchKernel", 11_090, 10, correlation=2),
        kernel(11_100, 1000, correlation=2),
        event("cpu_op", "aten::add", 12_100, 10_000 - 100),
    ]


@pytest.mark.parametrize(
    ("between", "cause", "sure"),
    [
        ([], "python", "unsure"),
        ([event("python_function", "train.py(3): main", 0, 22_000)], "python", "likely"),
        (
            [event("python_function", "<built-in function sleep>", 1_100, 10_000)],
            "sleep",
            "certain",
        ),
        (
            [
                event(
                    "python_function",
                    "<built-in method write of _io.BufferedWriter object>",
                    1_100,
                    10_000,
                )
            ],
            "files",
            "certain",
        ),
        (
            [event("python_function", "torch/serialization.py(800): save", 1_100, 10_000)],
            "files",
            "certain",
        ),
        (
            [
                event(
                    "python_function",
                    "<frozen importlib._bootstrap>(1165): _find_and_load",
                    1_100,
                    10_000,
                )
            ],
            "imports",
            "certain",
        ),
        (
            [event("cpu_op", "OutputGraph.call_user_compiler (dynamo_timed)", 1_100, 10_000)],
            "compilation",
            "certain",
        ),
        ([event("cuda_runtime", "cuModuleLoadData", 1_100, 10_000)], "compilation", "certain"),
        ([event("cpu_op", "aten::randperm", 1_100, 10_000)], "host", "likely"),
        (
            [event("cpu_op", f"aten::op{i}", 1_100 + i * 20, 18) for i in range(500)],
            "host",
            "likely",
        ),
        ([event("cuda_runtime", "cudaMalloc", 1_100, 10_000)], "allocation", "certain"),
    ],
)
def test_a_host_that_launches_nothing_is_not_called_launch_bound(tmp_path, between, cause, sure):
    whole = event("user_annotation", "step 0", 0, 22_000)
    (use,) = summed_up(tmp_path, whole, *_stalled(*between, steps=False)).devices
    part = max(
        use.gap_causes,
        key=lambda part: part.idle_ns if part.cause != "host" or cause == "host" else 0,
    )
    assert (part.cause, part.sure) == (cause, sure)
    assert causes(use)[cause] >= 9_900_000
    assert "launch" not in causes(use) or causes(use)["launch"] < 500_000
    assert sum(causes(use).values()) == use.idle_ns


def test_time_between_the_steps_is_told_apart(tmp_path):
    (use,) = summed_up(tmp_path, *_stalled()).devices
    assert causes(use)["between_steps"] == 6_000_000


def test_start_up_and_end_are_no_part_of_the_loop(tmp_path):
    """30 s of imports before the first kernel: what is found is about the time between the first
    and the last work.
    """
    summary = summed_up(
        tmp_path,
        event("cpu_op", "aten::empty", -30_000_000, 10),
        event(
            "python_function",
            "<frozen importlib._bootstrap>(1165): _find_and_load",
            -29_000_000,
            9_000_000,
        ),
        event("cuda_runtime", "cudaMalloc", -200_000, 150_000),
        *(
            e
            for i in range(100)
            for e in (
                event("cuda_runtime", "cudaLaunchKernel", i * 100, 5, correlation=i + 1),
                kernel(i * 100 + 6, 50, correlation=i + 1),
            )
        ),
        event("cpu_op", "aten::cpu", 9_990, 2_000_000),
    )
    (use,) = summary.devices
    assert causes(use)["startup"] == 30_000_006_000
    assert causes(use)["ending"] == 2_000_034_000
    assert use.working_ns == 9_950_000
    (finding,) = summary.findings
    assert finding.id == "launch-bound"
    assert finding.share_of_wall == pytest.approx(99 * 50 / 9_950, rel=1e-3)


def test_a_gap_before_work_that_waited_already_is_not_the_host_s(tmp_path):
    """All is launched in the first 30 us; then the host waits. The device's pauses between its
    kernels are no synchronisation.
    """
    (use,) = summed_up(
        tmp_path,
        *(
            event("cuda_runtime", "cudaLaunchKernel", i * 10, 5, correlation=i + 1)
            for i in range(3)
        ),
        event("cuda_runtime", "cudaDeviceSynchronize", 40, 400),
        *(kernel(6 + i * 100, 80, correlation=i + 1) for i in range(3)),
    ).devices
    assert causes(use)["queued"] == 40_000
    assert "synchronisation" not in causes(use)


def test_overlap_of_communication(tmp_path):
    (use,) = summed_up(
        tmp_path, kernel(0, 100), kernel(50, 100, 24, name="ncclDevKernel_AllReduce_Sum_f32")
    ).devices
    assert (use.communication_ns, use.exposed_communication_ns, use.overlap_share) == (
        100_000,
        50_000,
        0.5,
    )


def test_the_cpu_is_the_device_where_there_is_no_other(tmp_path):
    summary = summed_up(
        tmp_path,
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("user_annotation", "data", 0, 40),
        event("cpu_op", "aten::decode", 10, 20),
        event("cpu_op", "aten::mm", 50, 30),
    )
    (use,) = summary.devices
    assert summary.cpu_only
    assert use.is_cpu
    assert use.busy_ns == 30_000
    assert causes(use) == {"input": 40_000, "launch": 30_000}
    assert "DALI" not in summary.findings[0].advice
    assert [finding.id for finding in summary.findings] == ["input-starved", "python-overhead"]
    assert summary.range_shares == {"data": 0.4}


def test_a_rank_that_computes_longer_is_the_straggler(tmp_path):
    """In the collective the slow rank waits least: its communication is the shortest."""
    ranks = []
    for rank, compute in enumerate((60, 60, 95)):
        ranks.append(
            loaded(
                tmp_path,
                event("user_annotation", "ProfilerStep#1", 0, 100),
                kernel(0, compute),
                kernel(compute, 100 - compute, 24, name="ncclDevKernel_AllReduce"),
                rank=rank,
            )
        )
    summary = summarise(merge_ranks(ranks))
    assert [s.excess_ns for s in summary.stragglers] == [0, 0, 35_000]
    assert "straggler" in {f.id for f in summary.findings}


def test_steps_are_timed_by_what_they_cost_and_not_by_the_host(tmp_path):
    """A host that runs ahead finishes its steps early; the device takes as long for each."""
    events = []
    for i in range(4):
        events += [
            event("user_annotation", f"ProfilerStep#{i}", i * 10, 10),
            event("cuda_runtime", "cudaLaunchKernel", i * 10 + 1, 2, correlation=i + 1),
        ]
        events.append(kernel(5 + i * 100, 100, correlation=i + 1))
    summary = summed_up(tmp_path, *events)
    assert [step.duration_ns for step in summary.steps] == [10_000] * 4
    assert [step.cost_ns for step in summary.steps] == [105_000, 100_000, 100_000, 100_000]


def _running_ahead(steps: int) -> list[dict]:
    """Steps of 1 ms on the host that each launch 50 ms of work; the host never waits."""
    events = []
    for i in range(steps):
        call = i * 1000 + 100
        events += [
            event("user_annotation", f"step {i}", i * 1000, 900),
            event("cuda_runtime", "cudaLaunchKernel", call, 5, correlation=i + 1),
            kernel(200 + i * 50_000, 50_000, correlation=i + 1),
        ]
    return events


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_ends_with_the_work_that_it_launched(tmp_path, ranks):
    """The host has finished both steps before the device has finished the first: the device is busy
    all the same, and nothing is wrong.
    """
    summary = summarise(
        merge_ranks([loaded(tmp_path, *_running_ahead(2), rank=rank) for rank in range(ranks)])
    )
    assert summary.quality.reliable
    assert (
        sorted(step.cost_ns for step in summary.steps)
        == [50_000_000] * ranks + [50_200_000] * ranks
    )
    assert summary.wall_ns == 100_200_000
    for use in summary.devices:
        assert (use.busy_ns, use.idle_ns) == (100_000_000, 200_000)
    assert summary.findings == []


def test_work_that_is_launched_after_the_last_step_is_not_the_steps(tmp_path):
    later = [
        event("cuda_runtime", "cudaLaunchKernel", 2500, 5, correlation=9),
        kernel(100_200, 70_000, correlation=9),
    ]
    summary = summed_up(tmp_path, *_running_ahead(2), *later)
    assert summary.wall_ns == 100_200_000
    assert summary.steps[-1].cost_ns == 50_000_000
    assert summary.kernels[0].total_ns == 100_000_000


def test_work_launched_before_the_first_step_is_reported_as_running_in_it(tmp_path):
    earlier = [
        event("cuda_runtime", "cudaLaunchKernel", -50, 5, correlation=9),
        kernel(20, 100, correlation=9),
    ]
    summary = summed_up(tmp_path, *earlier, *_running_ahead(2))
    (use,) = summary.launches
    assert (use.kernels, use.launched_before, use.kernels_per_step) == (3, 1, 1)
    sentence = describe_earlier_launches(summary)
    assert sentence.startswith("Of the kernels that ran in these steps, 1 was launched before")


def test_work_in_the_queue_when_the_recording_began_is_no_launch_of_a_step(tmp_path):
    """The calls of steps that warm up are not recorded; the kernels that they queued are."""
    queued = [kernel(20, 90, correlation=900), kernel(110, 90, correlation=901)]
    summary = summed_up(tmp_path, *queued, *_running_ahead(2))
    (use,) = summary.launches
    assert (use.kernels, use.launched_before, use.kernels_per_step) == (4, 2, 1)


def test_steps_without_any_work_of_the_device_show_no_bottleneck(tmp_path):
    """Nothing ties the kernels to the steps: they began long after them."""
    steps = [event("user_annotation", f"step {i}", i * 1000, 900) for i in range(3)]
    calls = [event("cpu_op", "aten::mm", i * 1000 + 10, 800) for i in range(3)]
    summary = summed_up(
        tmp_path, *steps, *calls, *(kernel(500_000 + i * 100, 90) for i in range(30))
    )
    assert summary.findings == []
    assert any(
        "no device work belongs to the marked steps" in reason for reason in summary.quality.reasons
    )


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (
            [event("cuda_runtime", "cudaLaunchKernel", i, 1, correlation=i + 1) for i in range(30)],
            "no kernel",
        ),
        (
            [
                event("cuda_runtime", "cudaLaunchKernel", i, 0.5, correlation=i + 1)
                for i in range(40)
            ]
            + [kernel(i + 1, 0.5, correlation=i + 1) for i in range(20)],
            "part of the device's activities was dropped",
        ),
        (
            [event("user_annotation", f"ProfilerStep#{i}", i * 10, 10) for i in range(3)]
            + [kernel(1, 5)],
            "2 of 3 steps hold no event",
        ),
        (
            [event("user_annotation", f"ProfilerStep#{i}", i * 10, 10) for i in range(3)],
            "only ranges were recorded",
        ),
        ([kernel(0, 5), kernel(6, -3)], "impossible times"),
        ([kernel(i * 10, 25) for i in range(10)], "overlap another on the same stream"),
    ],
)
def test_captures_that_cannot_be_relied_on_say_so(tmp_path, events, reason):
    quality = summed_up(tmp_path, *events).quality
    assert not quality.reliable
    assert any(reason in said for said in quality.reasons)


def test_the_empty_rest_after_the_last_step_is_no_step(tmp_path):
    """`profiler.step()` after the last pass begins it; its time would lower the mean."""
    passes = [event("user_annotation", f"ProfilerStep#{i}", i * 10, 10) for i in range(3)]
    passes += [event("cpu_op", "aten::mm", i * 10 + 1, 8) for i in range(3)]
    rest = event("user_annotation", "ProfilerStep#3", 30, 1)
    summary = summed_up(tmp_path, *passes, rest)
    assert not any("hold no event" in reason for reason in summary.quality.reasons)
    assert summary.steps == summed_up(tmp_path, *passes).steps
    dropped = event("user_annotation", "ProfilerStep#3", 30, 10)
    reasons = summed_up(tmp_path, *passes, dropped).quality.reasons
    assert any("1 of 4 steps hold no event" in reason for reason in reasons)


def test_importing_the_package_loads_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, bottleneck_lab; assert not {'numpy', 'torch'} & set(sys.modules);"
        " bottleneck_lab.load; bottleneck_lab.compare; bottleneck_lab.findings"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError):
        _ = importlib.import_module("bottleneck_lab").nothing


def test_collectives_carry_bytes_and_type(tmp_path):
    sent = {
        "In msg nelems": 1_000_000,
        "Out msg nelems": 1_000_000,
        "dtype": "BFloat16",
        "Collective name": "allreduce",
    }
    gathered = {"In msg nelems": 1_000, "Out msg nelems": 8_000, "dtype": "Float"}
    summary = summed_up(
        tmp_path,
        *(event("user_annotation", f"step {i}", i * 1000, 1000) for i in range(2)),
        *(
            kernel(i * 500, 400, 24, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", **sent)
            for i in range(4)
        ),
        kernel(450, 10, 24, name="ncclKernel_AllGather_RING_LL_Sum_int8_t", **gathered),
    )
    rows = [
        (r.collective, r.dtype, r.bytes, r.calls, r.calls_per_step) for r in summary.collectives
    ]
    assert rows == [
        ("all-reduce", "bfloat16", 2_000_000, 4, 2.0),
        ("all-gather", "float32", 32_000, 1, 0.5),
    ]
    assert summary.collectives[0].gb_per_s == pytest.approx(2_000_000 / 400_000)


def test_gloo_on_a_cpu_is_communication_whatever_thread_it_runs_on(tmp_path):
    """Half of the all-reduce runs beside the backward; for the other half the main thread waits, in
    no operator.
    """
    summary = summed_up(
        tmp_path,
        event("user_annotation", "step 0", 0, 200),
        event("cpu_op", "aten::mm", 0, 100),
        event("cpu_op", "c10d::allreduce_", 100, 5),
        event("user_annotation", "gloo:all_reduce", 50, 150, tid=77),
    )
    (use,) = summary.devices
    assert (use.compute_ns, use.communication_ns, use.exposed_communication_ns) == (
        100_000,
        150_000,
        100_000,
    )
    assert (use.busy_ns, use.idle_ns) == (200_000, 0)
    assert [finding.id for finding in summary.findings] == ["communication-exposed"]


def test_ranks_on_cpus_have_their_own_operators(tmp_path):
    ranks = [
        loaded(tmp_path, event("cpu_op", "aten::mm", 0, 100 + 100 * rank), rank=rank)
        for rank in range(2)
    ]
    assert [use.compute_ns for use in summarise(merge_ranks(ranks)).devices] == [100_000, 200_000]


def test_work_that_waited_for_milliseconds_on_an_idle_device_is_no_pause(tmp_path):
    """A graph was launched, and its first recorded node starts 64 ms later: what ran before it was
    not recorded.
    """
    (use,) = summed_up(
        tmp_path,
        event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
        kernel(10, 90, correlation=1),
        event("cuda_runtime", "cudaGraphLaunch", 20, 5, correlation=2),
        event("cuda_runtime", "cudaDeviceSynchronize", 30, 64_200),
        kernel(64_100, 100, correlation=2),
    ).devices
    assert causes(use) == {"startup": 10_000, "unrecorded": 64_000_000, "ending": 30_000}


def test_one_device_that_waits_for_another_has_lost_nothing(tmp_path):
    """A pipeline in one process: device 1's work is launched at once and waits for device 0's, 20
    ms of it.
    """
    first, second = summed_up(
        tmp_path,
        event("user_annotation", "step 0", 0, 100),
        event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=2),
        kernel(10, 20_000, correlation=1),
        kernel(20_010, 1_000, correlation=2, device=1),
    ).devices
    assert (first.unseen_ns, second.unseen_ns) == (0, 0)
    assert causes(second)["devices"] == 19_995_000


def trained(tmp_path: Path, sent_at: float):
    """A step whose backward runs on the device from 100 to 900 µs, and launches a message that
    starts at `sent_at`; after it follows the sum of the loss, one number.
    """
    size = {"dtype": "Float", "Collective name": "allreduce"}
    large, small = ({**size, "In msg nelems": n, "Out msg nelems": n} for n in (1 << 20, 1))
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    launches = {1: 20, 2: 40, 3: 2_000}
    return summed_up(
        tmp_path,
        event("user_annotation", "ProfilerStep#1", 0, 2_610),
        event("user_annotation", "backward", 10, 40),
        event("cuda_runtime", "cudaStreamSynchronize", 50, 1_860),
        event("cuda_runtime", "cudaStreamSynchronize", 2_010, 595),
        *(
            event("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=number)
            for number, at in launches.items()
        ),
        kernel(100, 800, correlation=1),
        kernel(sent_at, 1_000, 9, nccl, correlation=2, **large),
        kernel(2_100, 500, 9, nccl, correlation=3, **small),
    )


@pytest.mark.parametrize(
    ("sent_at", "evidence"),
    [
        (900, "Every message to be reduced left only after the backward before it had ended"),
        (300, "Of what was to be reduced, 100% left while the backward before it still ran"),
    ],
)
def test_a_finding_says_when_gradients_left(tmp_path, sent_at, evidence):
    summary = trained(tmp_path, sent_at)
    (exposed,) = [each for each in summary.findings if each.id == "communication-exposed"]
    assert evidence in exposed.evidence
    assert not exposed.at_most, "fewer messages save launches and waits, too"


def test_a_wait_says_what_work_it_was_for_and_how_long_that_ran(tmp_path):
    """Three short kernels, and the longest takes less than half of the wait."""
    rows = [kernel(0, 30, name="a"), kernel(30, 30, name="b"), kernel(60, 40, name="c")]
    (row,) = summed_up(tmp_path, *rows, waiting(0, 100)).syncs
    assert (row.awaited, row.awaited_ns) == ("c", 40_000)
    assert describe_wait(row) == "cudaDeviceSynchronize, for c"
    long = msgspec.structs.replace(row, awaited=f"Cijk_{'MT64x64_' * 100}end", total_ns=40_000)
    assert re.fullmatch(r"cudaDeviceSynchronize, for Cijk_.*….*_end", describe_wait(long))
    assert len(describe_wait(long)) < 90
    (alone,) = summed_up(tmp_path, kernel(0, 100), waiting(0, 100)).syncs
    assert (row.busy_ns, row.total_ns) == (100_000, 100_000)
    assert describe_wait(alone) == "cudaDeviceSynchronize, for gemm"
