"""Captures of programs that nobody has seen, for the end of a lab: each with one cause, drawn anew
for every learner.

    python datasets/siblings.py --program NAME --seed N --out DIR

They are generated, on the host clock and stream queues of captures/make.py, and say so; what was
put into them they do not say. One trace a rank. The same seed gives the same traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

from captures.make import COMMUNICATION_STREAM, COPY_STREAM, Program

STEPS = 8


@dataclass(frozen=True)
class Shape:
    """A training or serving loop. Times are microseconds a step, sizes bytes; what is zero does not
    happen.
    """

    parts: tuple[str, str, str, str] = ("data", "h2d", "forward", "backward")
    operators: tuple[str, ...] = ("aten::addmm", "aten::layer_norm", "aten::gelu")
    kernels: tuple[str, ...] = (
        "sm90_xmma_gemm_bf16bf16_bf16f32_tn",
        "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "void at::native::vectorized_elementwise_kernel<4, GeluFunctor>",
    )
    weights: tuple[float, ...] = (1.0, 0.08, 0.06)
    layers: int = 20
    kernel_us: float = 300.0
    python_us: float = 1.0
    fetch_us: float = 80.0
    slow_fetch_us: float = 0.0
    slow_every: int = 1
    copied: int = 3_000_000
    pinned: bool = True
    reads: int = 0
    read_python_us: float = 0.0
    reduce_us: float = 0.0
    overlapped: bool = True
    slow_rank: float = 0.0
    ranks: int = 1
    on_cpu: bool = False
    weights_bytes: int = 0
    activations: int = 0
    kept: int = 0


_VISION = Shape(
    parts=("load_batch", "to_device", "forward", "backward"),
    operators=("aten::cudnn_convolution", "aten::batch_norm", "aten::relu_"),
    kernels=(
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_nhwc",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512>",
        "void at::native::vectorized_elementwise_kernel<4, ReluFunctor>",
    ),
)
_TABLES = Shape(
    parts=("load_batch", "to_device", "forward", "backward"),
    operators=("aten::addmm", "aten::relu_", "aten::embedding_bag"),
    kernels=(
        "sm90_xmma_gemm_bf16bf16_bf16f32_tn",
        "void at::native::vectorized_elementwise_kernel<4, ReluFunctor>",
        "void at::native::EmbeddingBag_updateOutputKernel_sum_mean<c10::BFloat16, long>",
    ),
)
_SERVICE = Shape(parts=("receive", "upload", "model", "answer"), layers=14, kernel_us=220.0)
_RANKS = replace(_VISION, ranks=4, layers=16)
_HOST = Shape(
    parts=("", "", "model", ""),
    operators=(
        "aten::mkldnn_convolution",
        "aten::native_batch_norm",
        "aten::relu_",
        "aten::max_pool2d_with_indices",
    ),
    kernels=("", "", "", ""),
    weights=(1.0, 0.12, 0.05, 0.04),
    on_cpu=True,
)
_ATTENTION = Shape(
    operators=("aten::bmm", "aten::_softmax", "aten::masked_fill_", "aten::mul"),
    kernels=(
        "sm90_xmma_gemm_bf16bf16_bf16f32_tn",
        "void at::native::vectorized_elementwise_kernel<4, SoftmaxFunctor>",
        "void at::native::vectorized_elementwise_kernel<4, MaskedFillFunctor>",
        "void at::native::vectorized_elementwise_kernel<4, MulFunctor>",
    ),
    weights=(1.0, 0.05, 0.05, 0.05),
)

PROGRAMS: dict[str, Shape] = {
    # Training jobs whose device stands still for a part of the time.
    "speech": replace(Shape(), reads=40, read_python_us=25.0, kernel_us=120.0),
    "recommender": replace(_TABLES, copied=26_000_000, pinned=False, kernel_us=140.0),
    "tagger": replace(Shape(), layers=90, kernel_us=19.0, python_us=9.0, copied=100_000),
    "video": replace(_VISION, slow_fetch_us=42_000.0, slow_every=3),
    "weather": replace(Shape(), weights_bytes=180_000_000, activations=90_000_000, kept=30_000_000),
    "ledger": replace(
        _TABLES,
        weights_bytes=60_000_000,
        activations=700_000_000,
        copied=26_000_000,
        pinned=False,
        kernel_us=140.0,
    ),
    # Services, one request a step.
    "quotes": replace(_SERVICE, weights_bytes=120_000_000, activations=12_000_000, kept=17_000_000),
    "detector": replace(
        _SERVICE, reads=24, read_python_us=110.0, kernel_us=120.0, copied=1_500_000
    ),
    "embedder": replace(_SERVICE, layers=70, kernel_us=21.0, python_us=9.0, copied=200_000),
    "scans": replace(_SERVICE, copied=30_000_000, pinned=False, kernel_us=110.0),
    "gallery": replace(
        _SERVICE, parts=("preprocess", "upload", "model", "answer"), slow_fetch_us=9_000.0
    ),
    # Distributed jobs.
    "late-sum": replace(_RANKS, reduce_us=4_500.0, overlapped=False),
    "odd-one": replace(_RANKS, reduce_us=1_500.0, slow_rank=0.6),
    "hungry": replace(_RANKS, reduce_us=1_200.0, slow_fetch_us=9_000.0),
    "chatty": replace(_RANKS, reduce_us=900.0, layers=60, kernel_us=22.0, python_us=10.0),
    # Kernels.
    "chain": replace(_ATTENTION, weights=(1.0, 0.9, 0.8, 0.9), kernel_us=120.0),
    "wide": replace(_ATTENTION, kernels=("ampere_sgemm_128x64_tn", *_ATTENTION.kernels[1:])),
    "crumbs": replace(
        _ATTENTION, layers=50, kernel_us=8.0, weights=(1.0, 0.9, 0.9, 0.9), python_us=8.0
    ),
    # Operators by what they could reach.
    "moments": replace(
        _ATTENTION,
        operators=("aten::mm", "aten::sqrt", "aten::addcdiv", "aten::mul"),
        weights=(1.0, 0.8, 0.9, 0.9),
        kernel_us=130.0,
    ),
    "planes": replace(
        _SERVICE, kernels=("ampere_sgemm_128x64_tn", *_SERVICE.kernels[1:]), copied=150_000
    ),
    "beads": replace(
        _SERVICE, layers=80, kernel_us=7.0, weights=(1.0, 0.8, 0.8), python_us=9.0, copied=100_000
    ),
    # Inference on the CPU.
    "lookup": replace(
        _HOST,
        operators=("aten::index_select", "aten::addmm", "aten::relu_", "aten::cat"),
        weights=(1.0, 0.35, 0.08, 0.05),
        kernel_us=500.0,
    ),
    "loop": replace(_HOST, kernel_us=120.0, python_us=130.0),
    "plain": replace(_HOST, kernel_us=600.0),
}


def generate(name: str, seed: int) -> list[Program]:
    """The ranks of one program. A seed changes how much there is of everything, by up to a fifth,
    never what holds it up.
    """
    draw = random.Random(f"{name}/{seed}")
    shape = PROGRAMS[name]
    vary = {
        key: getattr(shape, key) * draw.uniform(0.85, 1.15)
        for key in ("kernel_us", "slow_fetch_us", "reduce_us")
    }
    vary["kept"] = int(shape.kept * draw.uniform(0.85, 1.15))
    shape = replace(shape, layers=shape.layers + draw.randrange(5), **vary)
    ranks = [Program(seed * 100 + rank, rank, jitter=0.05) for rank in range(shape.ranks)]
    for run in ranks:
        if shape.weights_bytes:
            run.memory(shape.weights_bytes)
    slow = draw.randrange(shape.ranks)
    for number in range(STEPS):
        _step(shape, ranks, number, slow)
    return ranks


def _step(shape: Shape, ranks: list[Program], number: int, slow: int) -> None:
    begins = []
    for run in ranks:
        begins.append(run.host)
        factor = 1 + shape.slow_rank * (run.rank == slow)
        if shape.on_cpu:
            _compute_on_host(shape, run)
            continue
        _fetch(shape, run, number)
        _compute(shape, run, factor, shape.parts[2], reads=shape.reads // 2)
        if shape.activations:
            run.memory(shape.activations + shape.kept)
        _compute(shape, run, factor, shape.parts[3], reads=shape.reads - shape.reads // 2)
        if shape.activations:
            run.memory(-shape.activations)
    if shape.reduce_us:
        _reduce(shape, ranks)
    for run, begin in zip(ranks, begins, strict=True):
        if number % 4 == 3 and not shape.on_cpu:
            run.item()
        run.range(f"ProfilerStep#{number}", begin)


def _fetch(shape: Shape, run: Program, number: int) -> None:
    start = run.host
    late = shape.slow_fetch_us if number % shape.slow_every == shape.slow_every - 1 else 0.0
    run.python(shape.fetch_us + late)
    run.range(shape.parts[0], start)
    start = run.host
    run.copy(shape.copied, pinned=shape.pinned, stream=COPY_STREAM)
    run.range(shape.parts[1], start)


def _compute(shape: Shape, run: Program, factor: float, part: str, *, reads: int) -> None:
    """Half of a step's layers, with the host's reads of results spread evenly between them."""
    start = run.host
    every = shape.layers // reads if reads else 0
    for layer in range(shape.layers):
        for operator, kernel, weight in zip(
            shape.operators, shape.kernels, shape.weights, strict=True
        ):
            run.operator(operator, kernel, shape.kernel_us * weight * factor, host_us=8.0)
            run.python(shape.python_us)
        if every and layer % every == 0:
            run.item()
            run.python(shape.read_python_us)
    run.range(part, start)


def _compute_on_host(shape: Shape, run: Program) -> None:
    start = run.host
    for _ in range(shape.layers):
        for operator, weight in zip(shape.operators, shape.weights, strict=True):
            began = run.host
            run.python(shape.kernel_us * weight)
            run.add("cpu_op", operator, began, run.host - began)
            run.python(shape.python_us)
    run.range(shape.parts[2], start)


def _reduce(shape: Shape, ranks: list[Program]) -> None:
    """End a step's collective on all ranks when the slowest one's gradients have been sent."""
    ready = [max(run.tail.values()) for run in ranks]
    lead = 0.8 * shape.reduce_us if shape.overlapped else 0.0
    done = max(ready) - lead + shape.reduce_us
    for run, gradients in zip(ranks, ready, strict=True):
        early = max(gradients - lead, run.host)
        run.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            max(done - early, 20.0),
            stream=COMMUNICATION_STREAM,
            after=early,
        )
        end = max(done, *run.tail.values())
        run.tail = dict.fromkeys(run.tail, end)
        run.host = round(max(run.host, end - 2_000.0 if shape.overlapped else run.host), 3)


def write(name: str, seed: int, out: Path) -> None:
    """The traces as `trace.json.gz`, or one a rank as `trace-rank0.json.gz` and so on."""
    out.mkdir(parents=True, exist_ok=True)
    ranks = generate(name, seed)
    for run in ranks:
        trace = run.trace(world_size=len(ranks))
        del trace["injected"]
        file = out / ("trace.json.gz" if len(ranks) == 1 else f"trace-rank{run.rank}.json.gz")
        with gzip.GzipFile(file, "wb", mtime=0) as packed:
            packed.write(json.dumps(trace, separators=(",", ":")).encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--program", required=True, choices=sorted(PROGRAMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write(options.program, options.seed, options.out)
