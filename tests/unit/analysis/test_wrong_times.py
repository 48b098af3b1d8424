"""Captures whose times contradict themselves, or lack work: what follows from them is withheld."""

import pytest

from .traces import summarise_run


def late_graphs(make, *, wait: str | None, graph_stream: int = 7):
    """Nine tokens, each a small kernel and a graph; what the graphs ran is stamped in one burst at
    the end. `wait`: how the host waits for each; None: by sleeping.
    """
    run = make.Program(jitter=0)
    calls = []
    for number in range(9):
        begin = run.host
        run.operator("aten::embedding", "gather_kernel", 4.0)
        run._correlation += 1
        calls.append(run._correlation)
        run.add("cuda_runtime", "cudaGraphLaunch", run.host, 250.0, correlation=run._correlation)
        run.host += 260.0
        if wait is None:
            run.host += 4000.0
        else:
            run.catch_up(run.host + 4000.0)
            run.events[-1]["name"] = wait
        run.operator("aten::argmax", "reduce_kernel", 4.0)
        run.range(f"ProfilerStep#{number}", begin)
    start = run.host + 50.0
    for call in calls:
        for _ in range(40):
            run.add(
                *("kernel", "graph_kernel", start, 100.0),
                device=0,
                stream=graph_stream,
                correlation=call,
            )
            start += 101.0
    return run


@pytest.mark.parametrize(
    ("wait", "graph_stream"),
    [
        ("cudaEventSynchronize", 7),
        ("cudaEventSynchronize", 13),
        ("cudaStreamSynchronize", 13),
        ("cudaDeviceSynchronize", 7),
        (None, 7),
    ],
)
def test_graphs_that_are_stamped_late_make_no_step_uneven(make, tmp_path, wait, graph_stream):
    summary = summarise_run(tmp_path, late_graphs(make, wait=wait, graph_stream=graph_stream))
    (missing,) = summary.quality.missing
    assert "the device's times" in missing.what
    assert summary.findings == []
    assert [each.id for each in summary.withheld] == ["uneven-steps"]
    assert summary.gains == {}
    assert summary.generation is None


def test_rows_out_of_their_stream_s_order_are_counted(make, tmp_path):
    summary = summarise_run(tmp_path, late_graphs(make, wait=None))
    assert summary.devices[0].disordered_rows == 9 * 40
    assert summary.quality.reasons[0].startswith("360 kernels and copies start after others")


def test_graphs_that_are_stamped_as_they_ran_are_relied_on(make, tmp_path):
    run = make.Program(jitter=0)
    for number in range(9):
        begin = run.host
        run.operator("aten::embedding", "gather_kernel", 4.0)
        run.launch("graph_kernel", 4000.0)
        run.operator("aten::argmax", "reduce_kernel", 4.0)
        run.item()
        run.range(f"ProfilerStep#{number}", begin)
    summary = summarise_run(tmp_path, run)
    assert summary.quality.reliable
    assert summary.generation.unit == "token"


def test_a_call_that_every_step_makes_is_no_start_up(make, tmp_path):
    def program(name: str, first_us: float, others_us: float):
        run = make.Program(jitter=0)
        for number in range(6):
            begin = run.host
            length = others_us if number else first_us
            run.add("cuda_runtime", name, run.host, length)
            run.host += length
            run.operator("aten::mm", "gemm_tensorop", 900.0)
            run.range("iteration", begin)
        return summarise_run(tmp_path, run).startup

    assert program("cudaFree", 40_000.0, 10.0).call == "cudaFree"
    assert program("cudaMallocHost", 6_000.0, 5_000.0) is None


def test_no_start_up_is_told_where_the_first_kernels_are_missing(make, tmp_path):
    run = make.Program(jitter=0)
    run.add("cuda_runtime", "cudaMalloc", run.host, 6_000.0)
    run.host += 6_000.0
    for number in range(6):
        begin = run.host
        for _ in range(30):
            run.operator("aten::mm", "gemm_tensorop", 100.0)
        run.wait()
        run.range(f"ProfilerStep#{number}", begin)
    kernels = [each for each in run.events if each["cat"] == "kernel"]
    lost = {id(each) for each in kernels[:60]}
    run.events = [each for each in run.events if id(each) not in lost]
    summary = summarise_run(tmp_path, run)
    assert not summary.quality.reliable
    assert summary.startup is None
