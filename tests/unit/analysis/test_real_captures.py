"""The report says of real captures what their rows show, worked out by hand."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from bottleneck_lab import load, summarise

from ...captures import recorded_capture


class Answer(NamedTuple):
    """`finding` is the top one, "" if there must be none; `share` (0–1) what it costs, `gain` the
    least and the most that its bound may be; `names` stands in its evidence; `because` says why.
    """

    capture: str
    finding: str
    share: float
    gain: tuple[float, float]
    names: str
    because: str


ANSWERS = (
    Answer(
        "h200/training.json.gz",
        "launch-bound",
        0.71,
        (2.5, 3.5),
        "137 kernels per step",
        "The H200 computes for 5% of the time: kernels of 2 µs are launched 60 µs apart. Waits"
        " leave it idle for another 4% only, since the host is late anyway.",
    ),
    Answer(
        "h200-labs/busy-ensemble.json.gz",
        "launch-bound",
        0.85,
        (7.0, 10.0),
        "1041 kernels per step",
        "Each of many small models launches its own kernels of 1 µs; they compute for 3% of the"
        " time.",
    ),
    Answer(
        "kineto_v100_resnet50_workers0.json.gz",
        "input-starved",
        0.33,
        (1.27, 1.55),
        "prepared the next batch",
        "The DataLoader has no workers: the main thread decodes for 60 ms a step while the V100"
        " waits. With 4 workers the same program took 141 instead of 178 ms: 1.26x.",
    ),
    Answer(
        "kineto_v100_resnet50_workers4.json.gz",
        "launch-bound",
        0.15,
        (1.1, 1.35),
        "1478 kernels per step",
        "What is left idle lies in Optimizer.step, which launches hundreds of kernels under 10 µs.",
    ),
    Answer(
        "hta_a100x2_nccl.json.gz",
        "launch-bound",
        0.50,
        (1.8, 2.4),
        "900 kernels per step",
        "Two ranks with a small batch: 17% computing. DDP broadcasts the buffers in each forward,"
        " and unpacking them takes the host 15 ms without a kernel.",
    ),
    Answer(
        "hta_simple_add_sync.json.gz",
        "allocator-churn",
        0.52,
        (1.8, 2.2),
        "asking the driver for memory",
        "The first and only pass of a program: 25 s until CUDA's context stands, then 8 s in"
        " cudaFree and 4 s in one launch that loads cuDNN. Nothing in it is a loop's.",
    ),
    Answer(
        "hta_a100_16ranks_rank0.json.gz",
        "",
        0.0,
        (1.0, 1.0),
        "",
        "Half of the time lies inside one graph's replay, between two of its kernels: rows are"
        " missing there, and nothing can be said of the rest.",
    ),
    Answer(
        "hta_world128_rank0.json.gz",
        "",
        0.0,
        (1.0, 1.0),
        "",
        "Kernels wait in their stream for up to 60 ms, and the device shows nothing meanwhile.",
    ),
    Answer(
        "nsysai_h100_2gpu_1s.sqlite.gz",
        "copy-exposed",
        0.97,
        (2.0, 40.0),
        "102.7 GiB",
        "Weights come from pinned host memory, layer by layer, at 60 GB/s: PCIe is full for 95% of"
        " the second.",
    ),
    Answer(
        "tracelens_h100_bert_small.json.gz",
        "launch-bound",
        0.88,
        (6.0, 9.0),
        "60 kernels per step",
        "One pass of a small BERT: 0.3 ms of kernels in 4.4 ms.",
    ),
    Answer(
        "tracelens_h100_vit.json.gz",
        "launch-bound",
        0.84,
        (5.0, 7.0),
        "154 kernels per step",
        "One pass of a ViT: 1.2 ms of kernels in 7.9 ms.",
    ),
    Answer(
        "tracelens_mi210_gpu_only.json.gz",
        "",
        0.0,
        (1.0, 1.0),
        "",
        "The device computes for 89% of the time, and nothing was recorded of the host.",
    ),
    Answer(
        "gpu/h100-inference-server-starter-torch.json.gz",
        "input-starved",
        0.64,
        (2.5, 3.0),
        "prepared the next batch",
        "264 ms of pre-processing come before each batch of 61 ms, on the thread that launches.",
    ),
    Answer(
        "gpu/h100-resnet-latency-starter-torch.json.gz",
        "input-starved",
        0.84,
        (5.5, 7.0),
        "prepared the next batch",
        "A request decodes a picture for 75 ms, then the model takes 12.",
    ),
    Answer(
        "gpu/h200-launch-bound-starter-torch.json.gz",
        "launch-bound",
        0.85,
        (7.0, 10.0),
        "1073 kernels per step",
        "The same program as busy-ensemble, recorded without lines.",
    ),
)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.capture)
def test_the_report_says_what_the_rows_show(answer):
    findings = summarise(load(recorded_capture(answer.capture))).findings
    if not answer.finding:
        assert [each.id for each in findings] == []
        return
    top = findings[0]
    assert top.id == answer.finding, answer.because
    assert top.share_of_wall == pytest.approx(answer.share, abs=0.03)
    assert answer.gain[0] <= top.expected_gain_ratio <= answer.gain[1]
    assert answer.names in top.evidence
