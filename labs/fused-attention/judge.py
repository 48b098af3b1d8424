"""Ask an attention kernel, and judge what it answers. Trusted: runs in the verifier, never in a
workspace.

The truth is softmax(q kᵀ / sqrt(dim)) v in float64. An answer may be as wrong as PyTorch's own,
times a factor: both round in float32 (or in half precision on a GPU), in different orders. A query
that sees no key, all its scores being -inf, answers 0, as PyTorch does on the CPU.
"""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bottleneck_lab.grading.criteria import format_beside

Array = np.ndarray[Any, Any]

ERROR_FACTOR = 8.0
"""An answer's largest error may be this many times the reference's."""
ERROR_FLOOR = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 1.6e-2}
"""Error always allowed of one launch, relative to `_scale`: a few roundings of the format (2^-24,
2^-11, 2^-8).
"""
SCORE_ROUNDING = 2.0**-24
"""The same for a score that is summed in float32, relative to |q| |k| / sqrt(dim): it is an error
of its weight, and where scores are large PyTorch's own is small only by luck.
"""


LIKE_TIMED = 0.1
"""Of the untimed calls, the share that has as many heads as the timed ones."""
TILE = 64
"""Keys or queries that a kernel is likely to take at once: what is left of a length is its tail."""


class Shape(NamedTuple):
    """One case. `launches` is 1 on the CPU, where `threads` counts."""

    batch: int
    heads: int
    seq: int
    dim: int
    causal: bool
    threads: int = 1
    dtype: str = "fp32"
    launches: int = 1

    def __str__(self) -> str:
        work = (
            f"{self.threads} thread{'s' * (self.threads > 1)}"
            if self.dtype == "fp32"
            else f"{self.dtype}, {self.launches} launches"
        )
        mask = "causal" if self.causal else "full"
        return (
            f"batch {self.batch}, heads {self.heads}, length {self.seq}, dim {self.dim}, {mask},"
            f" {work}"
        )


_NAME = re.compile(
    r"batch (\d+), heads (\d+), length (\d+), dim (\d+), (causal|full), (?:(\d+)"
    r" threads?|(fp16|bf16), (\d+) launches)"
)


def parse(case: str) -> Shape:
    """The shape that a case's name tells."""
    match = _NAME.match(case)
    if match is None:
        raise ValueError(f"no case of this lab: {case}")
    batch, heads, seq, dim, mask, threads, dtype, launches = match.groups()
    return Shape(
        int(batch),
        int(heads),
        int(seq),
        int(dim),
        mask == "causal",
        int(threads or 1),
        dtype or "fp32",
        int(launches or 1),
    )


def threads(case: str) -> int | None:
    """How many threads a call of this case may use; None on a GPU."""
    shape = parse(case)
    return shape.threads if shape.dtype == "fp32" else None


def cases(rng: np.random.Generator, settings: dict[str, Any]) -> list[str]:
    """One case for each entry of `settings.bands`, its batch and heads drawn, and its length: the
    band's `tail` beyond a multiple of 64, if it has one.

    As many heads as come to `work_gflop` of arithmetic in a call, the band's own where it has one.

    So every check holds lengths that fill no tile, and none depends on the luck of the draw.
    """
    return [str(_draw(rng, band, float(settings["work_gflop"]))) for band in settings["bands"]]


def _draw(rng: np.random.Generator, band: dict[str, Any], work_gflop: float) -> Shape:
    low, high = band["length"]
    seq = int(rng.integers(low, high + 1))
    seq += (band["tail"] - seq) % TILE if "tail" in band else 0
    flop = 4.0 * seq * seq * band["dim"] / (2 if band["causal"] else 1)
    total = max(1, round(band.get("work_gflop", work_gflop) * 1e9 / flop / band.get("launches", 1)))
    batch = int(rng.integers(1, min(4, total) + 1))
    return Shape(
        batch,
        max(1, total // batch),
        seq,
        band["dim"],
        band["causal"],
        band.get("threads", 1),
        band.get("dtype", "fp32"),
        band.get("launches", 1),
    )


def make_inputs(
    rng: np.random.Generator, case: str, data: Path, settings: dict[str, Any]
) -> list[Any]:
    """Return normal q, k and v that no call had before, and how to call."""
    shape = parse(case)
    size = (shape.batch, shape.heads, shape.seq, shape.dim)
    return _call(rng, shape, *(_window(rng, pool, size) for pool in _pools(rng, case)))


def untimed_inputs(
    rng: np.random.Generator, case: str, data: Path, settings: dict[str, Any]
) -> list[Any]:
    """Return the inputs of a call that nobody times. On the CPU most have half as many heads as a
    timed one, or fewer: a head is judged as strictly among few as among many.
    """
    shape = parse(case)
    if shape.dtype != "fp32" or rng.random() < LIKE_TIMED:
        return make_inputs(rng, case, data, settings)
    heads = int(rng.integers(1, max(2, shape.batch * shape.heads // 2 + 1)))
    size = (1, heads, shape.seq, shape.dim)
    return _call(rng, shape, *(_window(rng, pool, size) for pool in _pools(rng, case)))


_SLACK = 1 << 16
_drawn: dict[str, list[Array]] = {}


def _pools(rng: np.random.Generator, case: str) -> list[Array]:
    """Return normal numbers for the q, k and v of a case, in its format, _SLACK more than a call
    takes: drawn once, which takes longer than a call.
    """
    if case not in _drawn:
        shape = parse(case)
        count = shape.batch * shape.heads * shape.seq * shape.dim + _SLACK
        _drawn[case] = [
            _coded(rng.standard_normal(count, dtype=np.float32), shape.dtype) for _ in range(3)
        ]
    return _drawn[case]


def _window(rng: np.random.Generator, pool: Array, size: tuple[int, ...]) -> Array:
    """So many numbers of a pool from a secret place on: rows begin elsewhere in each call, so that
    no answer is of use in another.
    """
    begin = int(rng.integers(_SLACK + 1))
    return pool[begin : begin + int(np.prod(size))].reshape(size)


def _call(rng: np.random.Generator, shape: Shape, q: Array, k: Array, v: Array) -> list[Any]:
    """Return a call's inputs from arrays as they travel."""
    if shape.dtype == "fp32":
        return [q, k, v, int(shape.causal), shape.threads]
    weights = rng.uniform(0.5, 1.5, shape.launches).astype(np.float32)
    return [q, k, v, int(shape.causal), weights, int(shape.dtype == "bf16")]


def idle(inputs: list[Any]) -> list[Any]:
    """The same call on a GPU with no launch in it: arrays go there and an answer comes back."""
    *arrays, causal, weights, bf16 = inputs
    return [*arrays, causal, weights[:0], bf16]


RIVALS = {
    "FlashAttention-2": "FLASH_ATTENTION",
    "cuDNN": "CUDNN_ATTENTION",
    "memory-efficient": "EFFICIENT_ATTENTION",
}
"""PyTorch's fused backends on a GPU, by the name of `SDPBackend`."""


def rivals(inputs: list[Any]) -> dict[str, list[Any]]:
    """Return the same call on a GPU for each of PyTorch's backends, by its name."""
    return {name: [*inputs, backend] for name, backend in RIVALS.items()}


def _coded(array: Array, dtype: str) -> Array:
    """Return an array of float32 as it travels: so, as float16, or as the bits of bfloat16, which
    NumPy does not know, rounded to nearest even.
    """
    if dtype == "fp32":
        return array
    if dtype == "fp16":
        return array.astype(np.float16)
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def values(array: Array) -> Array:
    """The numbers of an array that has travelled, float32."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(array, dtype=np.float32)


_ODD_LENGTHS = (1, 2, 17, 63, 64, 65, 97, 131, 257)
_LENGTHS_OF = {"far below zero": (1, 2, 17), "hidden, then low": (97, 131, 257)}
"""Where only some lengths tell: a mean of few values is far from 0, however coarse the scores are;
two thirds of many keys are a whole tile of keys that hold -inf.
"""
_KINDS = (
    "normal",
    "large logits",
    "constant",
    "one-hot",
    "huge negative",
    "far below zero",
    "one loud key",
    "large values",
    "hidden keys",
    "hidden rows",
    "hidden, then low",
)
"""There is no mask but the causal one, so scores of -inf come from keys that hold -inf: a key that
every query is hidden from, as padding is.
"""


def adversarial(rng: np.random.Generator, settings: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    """Untimed calls: every kind of input at awkward lengths; a short call asked twice and a long
    one several times, whose answers must be equal to the bit; and short ones with a row changed.
    """
    hard = []
    dtypes = sorted({band.get("dtype", "fp32") for band in settings["bands"]})
    for number, kind in enumerate(_KINDS):
        for seq in rng.choice(_LENGTHS_OF.get(kind, _ODD_LENGTHS), 3, replace=False):
            shape = Shape(
                2,
                3,
                int(seq),
                int(rng.choice([64, 128])),
                bool(rng.integers(2)),
                1 + number % 2,
                dtypes[number % len(dtypes)],
                1,
            )
            hard.append((f"{shape}, {kind}", _call(rng, shape, *_extreme(rng, kind, shape))))
    shape = Shape(1, 4, 129, 64, True, 2, dtypes[0], 1)
    inputs = _call(rng, shape, *_extreme(rng, "normal", shape))
    # Long enough to be shared out among threads, which seldom change places.
    long = Shape(1, 4, 521, 64, False, 2, dtypes[0], 1)
    shared = _call(rng, long, *_extreme(rng, "normal", long))
    # One tile, whole or not: the last that a call prepares is the first that the next one needs.
    single = [Shape(1, 1, seq, 64, False, 1, dtypes[0], 1) for seq in (13, TILE)]
    return [
        *hard,
        (f"{shape}, asked twice", inputs),
        (f"{shape}, asked twice", _copied(inputs)),
        *((f"{long}, asked twice", _copied(shared)) for _ in range(2 * _PAIRS)),
        *_changed(rng, shape, inputs),
        *(
            call
            for tile in single
            for call in _changed(rng, tile, _call(rng, tile, *_extreme(rng, "normal", tile)))
        ),
    ]


_ROWS = ("a query", "a key", "a value")
_PAIRS = 20
"""How often the long call is asked twice."""


def _copied(inputs: list[Any]) -> list[Any]:
    return [np.array(x) if isinstance(x, np.ndarray) else x for x in inputs]


def _changed(
    rng: np.random.Generator, shape: Shape, inputs: list[Any]
) -> list[tuple[str, list[Any]]]:
    """Return this call, and the same with a row of q, of k and of v changed."""
    changed = [
        (f"{shape}, {one} changed", _with_a_row_changed(rng, shape, inputs, which))
        for which, one in enumerate(_ROWS)
    ]
    return [(str(shape), inputs), *changed]


def _with_a_row_changed(
    rng: np.random.Generator, shape: Shape, inputs: list[Any], which: int
) -> list[Any]:
    """The same call, but for one row of q, k or v, which is not the first of its head: what was
    prepared for the call before may look right.
    """
    inputs, row = _copied(inputs), rng.standard_normal(shape.dim, dtype=np.float32)
    head, at = rng.integers(shape.heads), rng.integers(1, shape.seq)
    inputs[which][0, head, at] = _coded(row, shape.dtype)
    return inputs


_DEPTHS = {"huge negative": 1e4, "far below zero": 1e5, "hidden, then low": 1e4}
"""How far below zero all scores of a kind of input are."""


def _extreme(rng: np.random.Generator, kind: str, shape: Shape) -> tuple[Array, Array, Array]:
    """Return q, k and v of this kind, as they travel."""
    size = (shape.batch, shape.heads, shape.seq, shape.dim)
    q, k, v = (rng.standard_normal(size, dtype=np.float32) for _ in range(3))
    if kind == "large logits":
        q *= 20
        k *= 10
    elif kind == "constant":
        q[...], k[...], v[...] = 0.5, 0.25, -3.0
    elif kind == "one-hot":  # every query looks at one key only
        k = np.zeros(size, np.float32)
        k[..., np.arange(shape.seq), np.arange(shape.seq) % shape.dim] = 60.0
    # Every logit is as low as that: a maximum that starts at 0, or at -1e4, would underflow.
    elif kind in _DEPTHS:
        q = np.abs(q) + 1
        k = 0.01 * k - np.float32(_DEPTHS[kind] / (1.8 * shape.dim**0.5))
    elif kind == "one loud key":  # the maximum changes late, and by much
        k[..., -1, :] *= 25
    elif kind == "large values":
        v *= 1e3
    if kind.startswith("hidden"):
        # positive: their product with -inf is -inf for every query
        q[..., 0] = np.abs(q[..., 0]) + 0.5
        k[..., _hidden(rng, kind, shape), 0] = -np.inf
    return _coded(q, shape.dtype), _coded(k, shape.dtype), _coded(v, shape.dtype)


def _hidden(rng: np.random.Generator, kind: str, shape: Shape) -> Array:
    """Return the keys that hold -inf: some but the first, so that every query sees one; the first
    third (all, without a mask), so that some see none; or the first two thirds, before low scores.
    """
    if kind == "hidden, then low":
        return np.arange(2 * shape.seq // 3)
    if kind == "hidden keys":
        return np.asarray(1 + rng.permutation(shape.seq - 1)[: shape.seq // 2])
    return np.arange(-(-shape.seq // 3) if shape.causal else shape.seq)


def exact(q: Array, k: Array, v: Array, causal: bool, rows: Array | None = None) -> Array:
    """softmax(q kᵀ / sqrt(dim)) v in float64, for these rows of q (all, unless given). Arrays of
    heads x seq x dim.
    """
    rows = np.arange(q.shape[-2]) if rows is None else rows
    return _attend(q[:, rows], k, v, causal, rows)


def _attend(q: Array, k: Array, v: Array, causal: bool, rows: Array) -> Array:
    """The same for queries that stand in these rows, each as often as it is there."""
    q, k, v = (np.asarray(array, dtype=np.float64) for array in (q, k, v))
    scores = q @ k.swapaxes(-1, -2)
    scores /= np.sqrt(q.shape[-1])
    if causal:
        scores[:, np.arange(k.shape[-2]) > rows[:, None]] = -np.inf
    top = scores.max(-1, keepdims=True)
    scores -= np.where(np.isneginf(top), 0.0, top)
    np.exp(scores, out=scores)
    total = scores.sum(-1, keepdims=True)
    return np.asarray((scores @ v) / np.where(total > 0, total, 1.0))


class Sample(NamedTuple):
    """Which heads and rows of an answer are compared with the float64 result; all of it is compared
    with the reference's.
    """

    heads: Array
    rows: Array


_BLOCK = 1 << 20
"""Numbers that are compared, or scores worked out, at a time: they stay in the cache."""
_pool = ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0))))
_SCORES, _WHOLE = 125_000, 500_000
"""Scores a call that are computed in float64, of calls with up to _WHOLE all: they show how wrong
the reference is, with which every element is compared.
"""


def _sample(shape: Shape) -> Sample:
    """Drawn afresh each time, after the answer has come."""
    rng, count = np.random.default_rng(), shape.batch * shape.heads
    small = shape.dtype != "fp32" or count * shape.seq**2 <= _WHOLE
    budget = (_WHOLE if small else _SCORES) // shape.launches
    # Every launch is worked out for each row, and a sum of many is as wrong in one row as in
    # another: few rows say how wrong the reference is.
    least_heads, least_rows = (2, 8) if shape.launches == 1 else (1, 4)
    heads = min(count, max(least_heads, budget // shape.seq**2))
    rows = min(shape.seq, max(least_rows, budget // (heads * shape.seq)))
    return Sample(
        rng.choice(count, heads, replace=False), np.sort(rng.choice(shape.seq, rows, replace=False))
    )


def _truth(shape: Shape, inputs: list[Any], sample: Sample) -> Array:
    q, k, v = (np.asarray(array).reshape(-1, shape.seq, shape.dim) for array in inputs[:3])
    heads = sample.heads
    if shape.dtype == "fp32":
        return exact(q[heads], k[heads], v[heads], shape.causal, sample.rows)
    weights = np.asarray(inputs[4], np.float64)

    def sum_of(launches: slice) -> Array:
        shifts = np.arange(len(weights))[launches]
        queries = [_queries(q, sample, int(shift)) for shift in shifts]
        rows = np.tile(sample.rows, len(shifts))
        answers = _attend(
            np.concatenate(queries, 1), values(k[heads]), values(v[heads]), shape.causal, rows
        )
        by_launch = answers.reshape(len(heads), len(shifts), -1, shape.dim)
        return np.asarray(np.einsum("s,hsrd->hrd", weights[launches], by_launch))

    blocks = _blocks(len(weights), len(heads) * len(sample.rows) * shape.seq)
    return sum(_pool.map(sum_of, blocks), start=np.zeros((len(heads), len(sample.rows), shape.dim)))


def _queries(q: Array, sample: Sample, shift: int) -> Array:
    """The sample's queries of one launch: heads rolled by the launch's number and, when all have
    been by, every query by a place.
    """
    heads = (sample.heads - shift) % len(q)
    return np.roll(values(q[np.ix_(heads, sample.rows)]), shift // len(q), -1)


_answers: dict[bytes, bytes] = {}
"""Digest of the answer by digest of the inputs, for the calls that are asked twice."""


def judge(
    case: str,
    inputs: list[Any],
    answer: list[Array],
    reference: list[Array],
    settings: dict[str, Any],
) -> str | None:
    """None when the answer is right, else one sentence why not."""
    batch, heads = inputs[0].shape[:2]
    shape = parse(case)._replace(batch=batch, heads=heads)
    if len(answer) != 1 or not isinstance(answer[0], np.ndarray):
        return "The answer must be one array."
    got, wanted = answer[0], (shape.batch * shape.heads, shape.seq, shape.dim)
    if got.size != np.prod(wanted) or got.dtype != np.float32:
        return (
            f"The answer must be float32 of shape {wanted}, not {got.dtype} of {got.shape}"
            f" ({case})."
        )
    return _wrong(
        case, shape, inputs, got.reshape(wanted), np.asarray(reference[0]).reshape(wanted)
    ) or _differs(case, inputs, got)


def _wrong(case: str, shape: Shape, inputs: list[Any], got: Array, reference: Array) -> str | None:
    if not np.isfinite(got).all():
        missing = np.argwhere(~np.isfinite(got))[0]
        return (
            f"Element {missing.tolist()} (head, row, column) of the answer was never written, or is"
            f" not a number ({case})."
        )
    sample = _sample(shape)
    part, truth = np.ix_(sample.heads, sample.rows), _truth(shape, inputs, sample)
    q, k, v = inputs[:3]
    largest, floor = _largest(v), floor_of(shape)
    scores = (
        SCORE_ROUNDING * _longest(q) * _longest(k) / shape.dim**0.5 * largest * shape.launches**0.5
    )
    defined, scale = _seen(shape, reference[part], largest)
    theirs = float((np.abs(reference[part] - truth) / scale).max(where=defined, initial=0.0))
    share = ERROR_FACTOR * theirs + floor
    if wrong := _too_far(case, got[part] - truth, share * scale + scores):
        return wrong

    # Nearly always every element is well within what the least of them may be off by.
    least = (share + theirs + floor) * largest + 2 * scores if shape.dtype == "fp32" else -1.0

    def wrong_in(block: slice) -> str | None:
        with np.errstate(invalid="ignore"):
            if np.abs(got[block] - reference[block]).max() <= least:
                return None
        defined, scale = _seen(shape, reference[block], largest)
        apart = np.subtract(
            got[block], reference[block], where=defined, out=np.zeros_like(got[block])
        )
        return _too_far(case, apart, (share + theirs + floor) * scale + 2 * scores)

    # NumPy computes without the interpreter's lock, so blocks are compared side by side.
    blocks = _blocks(len(got), got[0].size)
    return next((wrong for wrong in _pool.map(wrong_in, blocks) if wrong), None)


def _blocks(count: int, size: int) -> list[slice]:
    """Cut so many items, each of `size` numbers, into blocks that stay in a core's cache."""
    step = max(1, _BLOCK // size)
    return [slice(first, first + step) for first in range(0, count, step)]


def _seen(shape: Shape, reference: Array, largest: float) -> tuple[Array, Array]:
    """Where the reference's answer is a number (queries that see no key have none on some GPUs:
    there float64 alone tells), and what errors are relative to.
    """
    defined = np.isfinite(reference)
    return defined, _scale(shape, np.where(defined, reference, 0.0), largest)


def floor_of(shape: Shape) -> float:
    """Error always allowed, relative to `_scale`. Launches round independently, so their errors add
    up as roots do, while their answers add up in full.

    A floor that did not shrink so let products of Q and K in eight bits pass: they are 7e-3 off
    over 640 launches, right kernels in bfloat16 5e-4.
    """
    return ERROR_FLOOR[shape.dtype] / float(shape.launches**0.5)


def _scale(shape: Shape, reference: Array, largest: float) -> Array:
    """Return what an error is relative to, of heads x seq x 1: the largest |v|, or in half
    precision the largest of each row of the answer.

    Half precision is so coarse that, relative to |v|, a mean over many keys could be anything.
    """
    if shape.dtype == "fp32":
        return np.full((*reference.shape[:2], 1), largest)
    return np.asarray(np.maximum(np.abs(reference).max(-1, keepdims=True), 1e-9 * largest))


def _largest(numbers: Array) -> float:
    """The largest without its sign. In 16 bits it is found by the bits, which are in the same order
    and compare faster.
    """
    if numbers.dtype == np.float32:
        return float(np.abs(numbers).max())
    bits = (numbers.view(np.uint16) & 0x7FFF).max()
    return float(values(np.atleast_1d(bits).view(numbers.dtype))[0])


def _longest(vectors: Array) -> float:
    """The largest norm, of what is finite."""
    rows = np.asarray(vectors).reshape(-1, vectors.shape[-1])

    def longest_in(block: slice) -> float:
        numbers = values(rows[block])
        longest = float(np.einsum("nd,nd->n", numbers, numbers).max())
        if np.isfinite(longest):
            return longest
        finite = np.where(np.isfinite(numbers), numbers, 0)
        return float(np.einsum("nd,nd->n", finite, finite).max())

    return max(_pool.map(longest_in, _blocks(*rows.shape)), default=0.0) ** 0.5


def _too_far(case: str, difference: Array, allowed: Array) -> str | None:
    error = np.abs(difference)
    if (error <= allowed).all():
        return None
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    figure, limit = format_beside(error[worst], allowed[worst[:2]][0])
    return f"Off by {figure}, where {limit} is allowed ({case})."


def _differs(case: str, inputs: list[Any], got: Array) -> str | None:
    """Return True if a call that is asked twice was answered differently the second time."""
    if not case.endswith("asked twice"):
        return None
    question = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in inputs)).digest()
    digest = hashlib.sha256(got.tobytes()).digest()
    first = _answers.pop(question, None)
    if first is None:
        _answers[question] = digest
    elif first != digest:
        return (
            "The same inputs gave two different answers: a race, or something left over from"
            " another call."
        )
    return None
