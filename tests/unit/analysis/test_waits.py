"""Calls that wait without saying so, and runtimes of other devices than CUDA's."""

import pytest

from .traces import summarise_run

PINNED = "Memcpy DtoH (Device -> Pinned)"


def copy(run, make, call: str, kind: str, start: float, copied: float):
    """Add a call that lasts from `start` until now, and its copy of 4 bytes at `copied`, in µs."""
    run._correlation += 1
    run.add(
        *("gpu_memcpy", kind, copied, 2.0),
        device=0,
        stream=make.COMPUTE_STREAM,
        correlation=run._correlation,
        bytes=4,
    )
    run.add("cuda_runtime", call, start, run.host - start, correlation=run._correlation)


def copies(make, call: str, kind: str):
    """Six steps of 1 ms of kernels, each fetched by a copy that lasts until they are done, and 0.6
    ms of Python.
    """
    run = make.Program(jitter=0)
    for number in range(6):
        begin = run.host
        for _ in range(10):
            run.operator("aten::mm", "gemm_tensorop", 100.0)
        start, copied = run.host, run.tail[make.COMPUTE_STREAM] + 2.0
        run.tail[make.COMPUTE_STREAM] = copied + 2.0
        run.host = copied + 6.0
        copy(run, make, call, kind, start, copied)
        run.add("cpu_op", "aten::item", start, run.host - start)
        run.python(600)
        run.range(f"ProfilerStep#{number}", begin)
    return run


@pytest.mark.parametrize(
    ("call", "kind", "waits"),
    [
        ("cudaMemcpy", "Memcpy DtoH (Device -> Pageable)", True),
        ("hipMemcpyWithStream", "Memcpy DtoH (Device -> Host)", True),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", True),
        ("cuMemcpyDtoHAsync_v2", "Memcpy DtoH (Device -> Pageable)", True),
        ("cudaMemcpyAsync", PINNED, False),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", False),
        ("hipMemcpyWithStream", "Memcpy HtoD (Pageable -> Device)", True),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", True),
    ],
)
def test_a_copy_from_the_device_that_blocks_is_a_wait(make, tmp_path, call, kind, waits):
    summary = summarise_run(tmp_path, copies(make, call, kind))
    assert [row.name for row in summary.syncs] == [call] * waits
    if waits:
        assert summary.syncs[0].caused_by == "aten::item"
        assert summary.syncs[0].total_ns / summary.wall_ns == pytest.approx(0.54, abs=0.02)
    assert [each.id for each in summary.findings] == ["host-stalls"]


def test_a_removed_wait_of_rocm_does_not_hide_python_behind_the_launches(make, tmp_path):
    """Of 1.05 ms, 0.63 are launches, 0.4 Python and 0.02 a wait: they take turns. The copy that is
    waited for comes after 30 kernels, which take 0.12 ms one after another.
    """
    run = make.Program(jitter=0)
    for number in range(12):
        begin = run.host
        for _ in range(30):
            run.operator("aten::addmm", "gemv_kernel", 3.0, host_us=16.0)
        start, run.host = run.host, run.host + 20.0
        copy(run, make, "hipMemcpyWithStream", PINNED, start, start + 15.0)
        run.python(400)
        run.range(f"ProfilerStep#{number}", begin)
    summary = summarise_run(tmp_path, run)
    assert summary.gains["idle-launch"] == pytest.approx(1050 / 520, abs=0.05)
    assert summary.gains["idle-python"] == pytest.approx(1050 / 650, abs=0.05)


@pytest.mark.parametrize(
    ("category", "launch", "wait"),
    [
        ("xpu_driver", "zeCommandListAppendLaunchKernel", "zeEventHostSynchronize"),
        ("xpu_runtime", "urEnqueueKernelLaunchWithArgsExp", "urQueueFinish"),
        ("mtia_runtime", "mtiaLaunchKernel", "mtiaStreamSynchronize"),
        ("hip_runtime", "hipModuleLaunchKernel", "hipEventSynchronize"),
        ("musa_runtime", "musaLaunchKernel", "musaStreamSynchronize"),
        ("privateuse1_runtime", "aclrtLaunchKernel", "aclrtSynchronizeStream"),
        ("new_driver", "newLaunchKernel", "newDeviceSynchronize"),
    ],
)
def test_launches_of_any_device_without_kernels_are_no_program_for_the_cpu(
    make, tmp_path, category, launch, wait
):
    run = make.Program(jitter=0)
    for number in range(5):
        begin = run.host
        for _ in range(20):
            run.operator("aten::mm", "gemm", 80.0)
        run.wait(wait)
        run.range(f"ProfilerStep#{number}", begin)
    run.events = [each for each in run.events if each["cat"] != "kernel"]
    for each in run.events:
        if each["cat"] == "cuda_runtime":
            each["cat"] = category
            if each["name"] == "cudaLaunchKernel":
                each["name"] = launch
    summary = summarise_run(tmp_path, run)
    assert not summary.cpu_only
    (reason,) = summary.quality.reasons
    assert reason.startswith("100 kernel launches were recorded but no kernel")
    assert summary.findings == []
    assert [row.name for row in summary.syncs] == [wait]


def test_kernels_on_their_way_when_the_one_before_ends_are_launched_too_late(make, tmp_path):
    """The host takes 40 µs for each kernel of 30: with launches ahead the device never waits."""
    run = make.Program(jitter=0)
    for number in range(5):
        begin = run.host
        for _ in range(40):
            start = run.host
            run.host += 12.0
            run.launch("gemm_tensorop", 30.0, after=run.host + 10.0, call_us=6.0)
            run.host = start + 40.0
            run.add("cpu_op", "aten::mm", start, 40.0)
        run.range(f"ProfilerStep#{number}", begin)
    summary = summarise_run(tmp_path, run)
    (only,) = summary.findings
    assert only.id == "launch-bound"
    assert only.expected_gain_ratio == pytest.approx(40 / 31, abs=0.02)


@pytest.mark.parametrize(
    ("operators", "python_us", "first"),
    [
        (6, 150.0, "host-stalls"),  # Python once a token, 56% of the time
        (1, 150.0, "launch-bound"),  # as much Python with each launch
        (30, 150.0, "launch-bound"),  # a fifth of the time
        (6, 60.0, "launch-bound"),
    ],
)
def test_python_between_tokens_is_no_launching(make, tmp_path, operators, python_us, first):
    run = make.Program(jitter=0)
    for number in range(3):
        begin = run.host
        for _ in range(20):
            for _ in range(operators):
                run.operator("aten::addmm", "gemv_kernel", 3.0, host_us=11.0)
            run.item()
            run.python(python_us)
        run.range(f"ProfilerStep#{number}", begin)
    summary = summarise_run(tmp_path, run)
    assert summary.findings[0].id == first
    if first == "host-stalls":
        assert summary.gains["idle-launch"] < 1.65


def test_short_python_once_a_token_is_no_launching_where_it_takes_a_sixth_of_the_time(
    make, tmp_path
):
    """A token takes 60 launches of 11 µs and 120 µs of Python. In a CUDA graph, 60 kernels take
    4 µs each and the Python stays.
    """
    run = make.Program(jitter=0)
    for number in range(3):
        begin = run.host
        for _ in range(20):
            for _ in range(60):
                run.operator("aten::addmm", "gemv_kernel", 3.0, host_us=6.0)
            run.item()
            run.python(120.0)
        run.range(f"ProfilerStep#{number}", begin)
    token_us, in_graph_us = 60 * 11.0 + 12.0 + 120.0, 60 * 3.9 + 12.0 + 120.0
    summary = summarise_run(tmp_path, run)
    assert summary.gains["idle-launch"] <= 1.02 * token_us / in_graph_us


def test_a_pageable_copy_waits_until_the_device_has_come_to_it_and_then_copies(make, tmp_path):
    """Eight steps: 1 ms of kernels launched in 0.08 ms, a copy from pageable memory that returns
    when they are done and 0.3 ms more of staging have passed, and then launches that are late.
    """
    run = make.Program(jitter=0)
    for number in range(8):
        begin = run.host
        for _ in range(10):
            run.operator("aten::mm", "gemm_tensorop", 100.0, host_us=8.0)
        start, reached = run.host, run.tail[make.COMPUTE_STREAM]
        copied = reached + 200.0
        run.host = copied + 100.0
        run.tail[make.COMPUTE_STREAM] = copied + 2.0
        copy(run, make, "cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", start, copied)
        # PyTorch's `.to()` makes this call, too, which has nothing to wait for.
        run.add("cuda_runtime", "cudaStreamSynchronize", run.host + 1, 3, correlation=-1)
        run.host += 4
        run.range(f"ProfilerStep#{number}", begin)
    summary = summarise_run(tmp_path, run)
    (sync,) = summary.syncs
    assert (sync.name, sync.calls) == ("cudaMemcpyAsync", 8)
    (use,) = summary.devices
    causes = {part.cause: part.idle_ns / 8e3 for part in use.gap_causes}
    assert causes["copy"] == pytest.approx(200 + 98, rel=0.05)
    # The launches of a step would be ahead if the host had not waited; those of the first are not.
    # A launch takes 7 µs to the device, and 1 lies between the two calls.
    assert causes["synchronisation"] == pytest.approx((7 + 1) * 7 / 8, abs=0.5)
    assert causes["launch"] == pytest.approx(7 / 8, abs=0.5)
