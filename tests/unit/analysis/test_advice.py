"""Advice fits the hardware and the settings of the capture."""

import re
from dataclasses import replace

import pytest

from bottleneck_lab import summarise

from .traces import summarise_run


def of_device(make, **device):
    """The facts of a trace that was recorded on a device of these properties."""
    return {"deviceProperties": [{**make.DEVICE, **device}]}


def matrices(make, kernel="ampere_sgemm_128x64_tn"):
    """A loop that is nothing but matrix work, in fp32."""
    run = make.Program()
    for number in range(6):
        begin = run.host
        for _ in range(20):
            run.operator("aten::mm", kernel, 400.0)
        run.wait()
        run.range(f"ProfilerStep#{number}", begin)
    return run


@pytest.mark.parametrize(
    ("name", "capability", "words", "ratio"),
    [
        ("Some GPU", "6.1", None, None),
        ("NVIDIA GeForce GTX 1660 Ti", "7.5", None, None),
        ("Some GPU", "7.0", "GradScaler", 8.1),
        ("Tesla V100-SXM2-16GB", "7.0", "GradScaler", 125 / 15.7),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5", "GradScaler", 4.05),
        ("NVIDIA A100-SXM4-80GB", "8.0", "set_float32_matmul_precision", 312 / 19.5),
        ("NVIDIA H100 80GB HBM3", "9.0", "set_float32_matmul_precision", 989.4 / 66.9),
        ("Some GPU", "10.0", "set_float32_matmul_precision", 32.0),
        ("NVIDIA A10", "8.6", "set_float32_matmul_precision", 4.0),
        ("NVIDIA GeForce RTX 4090", "8.9", "set_float32_matmul_precision", 2.0),
        # Captures that name the device and not its compute capability.
        ("Tesla P100-SXM2-16GB", "", None, None),
        ("Tesla P40", "", None, None),
        ("Tesla M40 24GB", "", None, None),
        ("Tesla K80", "", None, None),
        ("Quadro GP100", "", None, None),
        ("NVIDIA TITAN Xp", "", None, None),
        ("NVIDIA GeForce GTX 1080", "", None, None),
        ("NVIDIA T1000", "", None, None),
        ("AMD Instinct MI210", "", None, None),
        ("Some GPU", "", None, None),
        ("", "", None, None),
        ("NVIDIA TITAN V", "", "GradScaler", 8.1),
        ("Tesla T4", "", "GradScaler", 65 / 8.1),
        ("Quadro RTX 5000", "", "GradScaler", 8.1),
        ("NVIDIA GeForce RTX 2080 SUPER", "", "GradScaler", 4.05),
        ("NVIDIA GeForce RTX 3090", "", "set_float32_matmul_precision", 2.0),
        ("NVIDIA RTX 4000 SFF Ada Generation", "", "set_float32_matmul_precision", 4.0),
        ("NVIDIA A100-PCIE-40GB", "", "set_float32_matmul_precision", 16.0),
        ("NVIDIA H200", "", "set_float32_matmul_precision", 989.4 / 66.9),
    ],
)
def test_tensor_cores_are_advised_as_the_device_has_them(
    make, tmp_path, name, capability, words, ratio
):
    major, _, minor = capability.partition(".")
    device = {"name": name, "computeMajor": int(major or 0), "computeMinor": int(minor or 0)}
    summary = summarise_run(tmp_path, matrices(make), **of_device(make, **device))
    advised = [each for each in summary.findings if each.id == "tensor-cores-unused"]
    if words is None:
        assert advised == []
        return
    (only,) = advised
    assert words in only.advice
    assert ("GradScaler" in only.advice) != ("set_float32" in only.advice)
    assert 0.7 * ratio < only.expected_gain_ratio <= ratio


def test_matrix_kernels_that_take_fp16_already_are_no_fp32_ones(make, tmp_path):
    run = matrices(make, "volta_fp16_sgemm_fp32_128x128_nn")
    device = {"name": "Tesla T4", "computeMajor": 7, "computeMinor": 5}
    assert summarise_run(tmp_path, run, **of_device(make, **device)).findings == []


@pytest.mark.parametrize("bottleneck", ["launch", "input", "elementwise"])
def test_advice_names_nothing_that_an_emulated_device_lacks(timeline_of, bottleneck):
    lacking = re.compile(r"torch\.compile|CUDA Graphs|DALI|Triton")
    timeline = timeline_of(bottleneck)
    real, emulated = (
        summarise(replace(timeline, emulated=is_emulated)).findings[0].advice
        for is_emulated in (False, True)
    )
    assert lacking.search(real)
    assert emulated
    assert not lacking.search(emulated)
    assert ("batching" in emulated) == (bottleneck == "launch")


def epochs(make, start: str, first_us: float = 3_000.0):
    """Two epochs whose first batch comes when the loader's workers have started. The operator takes
    `first_us` in their first steps, elsewhere 3,000.
    """
    run = make.Program()
    for number in range(12):
        begin = run.host
        if number % 6 == 0:
            called = run.host
            run.python(40_000)
            run.range(start, called)
        called = run.host
        run.python(9_000 if number % 6 == 0 else 300)
        run.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", called)
        run.operator("aten::conv2d", "conv_tensorop", 3_000.0 if number % 6 else first_us)
        run.python(3_000)
        run.range(f"ProfilerStep#{number}", begin)
    return run


def test_steps_that_too_many_workers_make_slow_are_no_second_finding(make, tmp_path):
    for workers, uneven in ((16, False), (4, True)):
        start = f"DataLoader starts its workers: {workers} on 8 cores, kept after an epoch"
        findings = summarise_run(tmp_path, epochs(make, start, 60_000.0)).findings
        names = {finding.id for finding in findings}
        assert "input-starved" in names
        assert ("uneven-steps" in names) is uneven


def test_too_many_workers_are_one_finding_with_its_remedy(make, tmp_path):
    start = "DataLoader starts its workers: 16 on 2 cores, ended after an epoch"
    (only,) = summarise_run(tmp_path, epochs(make, start)).findings
    assert only.id == "input-starved"
    assert "Starting 16 workers on 2 cores 2 times took" in only.evidence
    assert "Use fewer workers" in only.advice
    assert "persistent_workers=True" in only.advice
    assert "Load in worker processes" not in only.advice


def test_workers_that_fit_are_not_told_to_be_fewer(make, tmp_path):
    start = "DataLoader starts its workers: 4 on 8 cores, kept after an epoch"
    only = summarise_run(tmp_path, epochs(make, start)).findings[0]
    assert only.id == "input-starved"
    assert "fewer" not in only.advice
    assert "persistent_workers" not in only.advice
    assert "cannot keep up" in only.advice
    assert "load further ahead" not in only.advice, "more batches in advance come no faster"
