"""Least work of operators, computed from the shapes of their inputs.

FLOP count a multiplication and an addition each, and any other function of a number as one. Bytes
are every input and the output once: what a cache of any size cannot save.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import msgspec

# fp16 stands for bf16 as well: matrix units run both at one rate.
PRECISIONS = ("", "fp64", "fp32", "fp16")
_TYPES = {"double": (1, 8), "float": (2, 4), "c10::Half": (3, 2), "c10::BFloat16": (3, 2)}


class Work(NamedTuple):
    """`precision` is an index into PRECISIONS; `shapes` those of the inputs, in words."""

    flop: float
    moved_bytes: float
    precision: int
    shapes: str


Shape = tuple[int, ...]

MOST_WORDS = 120
"""Shapes in words are cut to so many characters."""

# FLOP, and elements read and written.
Counted = tuple[float, float]


def count_product(a: Shape, b: Shape) -> Counted:
    """Count [..., m, k] x [k, n] or [b, m, k] x [b, k, n]."""
    (m, k), n, many = a[-2:], b[-1], prod(a[:-2])
    return 2.0 * many * m * k * n, float(prod(a) + prod(b) + many * m * n)


def count_convolution(
    values: Shape, weight: Shape, padding: Shape, stride: Shape, dilation: Shape
) -> Counted:
    """Count values [n, c, ...] by weight [o, c / groups, ...]; also for fewer or more than two
    dimensions.
    """
    out = [
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, kernel, pad, step, spread in zip(
            values[2:], weight[2:], padding, stride, dilation, strict=True
        )
    ]
    made = values[0] * weight[0] * prod(out)
    return 2.0 * made * prod(weight[1:]), float(prod(values) + prod(weight) + made)


def count_attention(query: Shape, key: Shape, value: Shape) -> Counted:
    """Count [b, heads, length, dim]: two products, queries with keys and weights with values. A
    causal mask halves this where the kernel uses it.
    """
    *many, length, dim = query
    return 2.0 * prod(many) * length * key[-2] * (dim + value[-1]), float(
        2 * prod(query) + prod(key) + prod(value)
    )


def count_matrix_vector(shapes: list[Shape], _: list[Shape]) -> Counted:
    """Count sum [m] + matrix [m, k] x vector [k]."""
    m, k = shapes[1]
    return 2.0 * m * k, float(m * k + k + m)


def elementwise_counter(flop: int, inputs: int) -> _Count:
    """Return `flop` operations for each number that comes out; the first `inputs` arguments are
    tensors or numbers, and may be broadcast.
    """

    def count(shapes: list[Shape], _: list[Shape]) -> Counted:
        # The shape that comes of broadcasting, sizes aligned at the end. A number has the shape
        # ().
        inputs_ = shapes[:inputs]
        sizes = zip_longest(*(reversed(shape) for shape in inputs_), fillvalue=1)
        out = prod(tuple(max(size) if 0 not in size else 0 for size in sizes))
        return float(flop * out), float(sum(prod(shape) for shape in shapes[:inputs]) + out)

    return count


def count_pooling(shapes: list[Shape], values: list[Shape]) -> Counted:
    """Count a comparison for each input of a window. What comes out is a number and its place, an
    int64, which takes as much as two numbers.
    """
    image, (kernel, stride, padding) = shapes[0], values[1:4]
    out = image[0] * image[1]
    for size, window, step, pad in zip(image[2:], kernel, stride, padding, strict=True):
        out *= (size + 2 * pad - window) // step + 1
    return float(out * prod(kernel)), float(prod(image) + 3 * out)


def count_reduction(shapes: list[Shape], _: list[Shape]) -> Counted:
    """Read all of its input; what comes out is small beside it."""
    return float(prod(shapes[0])), float(prod(shapes[0]))


_Count = Callable[[list[Shape], list[Shape]], Counted]
_WITH_SUM = ("aten::addmm", "aten::baddbmm")
"""Products whose first input is added to them."""
_COUNTS: dict[str, _Count] = {
    **dict.fromkeys(
        ("aten::mm", "aten::bmm"), lambda shapes, _: count_product(shapes[0], shapes[1])
    ),
    **dict.fromkeys(_WITH_SUM, lambda shapes, _: count_product(shapes[1], shapes[2])),
    "aten::addmv_": count_matrix_vector,
    **{
        name + ending: elementwise_counter(1, 2)
        for name in ("aten::add", "aten::sub", "aten::mul", "aten::div")
        for ending in ("", "_")
    },
    **{
        name + ending: elementwise_counter(1, 1)
        for name in (
            "aten::clamp_min",
            "aten::exp",
            "aten::gelu",
            "aten::neg",
            "aten::pow",
            "aten::reciprocal",
            "aten::rsqrt",
            "aten::sigmoid",
            "aten::silu",
            "aten::sqrt",
            "aten::tanh",
        )
        for ending in ("", "_")
    },
    **{
        name + ending: elementwise_counter(3, 3)
        for name in ("aten::addcdiv", "aten::addcmul")
        for ending in ("", "_")
    },
    **{
        name + ending: elementwise_counter(3, 2) for name in ("aten::lerp",) for ending in ("", "_")
    },
    **dict.fromkeys(("aten::sum", "aten::mean", "aten::amax", "aten::amin"), count_reduction),
    # Scale and shift: a multiplication and an addition.
    **dict.fromkeys(
        ("aten::native_batch_norm", "aten::cudnn_batch_norm"), elementwise_counter(2, 1)
    ),
    "aten::max_pool2d_with_indices": count_pooling,
    "aten::cudnn_convolution": lambda shapes, values: count_convolution(
        shapes[0], shapes[1], *values[2:5]
    ),
    "aten::mkldnn_convolution": lambda shapes, values: count_convolution(
        shapes[0], shapes[1], *values[3:6]
    ),
    "aten::_slow_conv2d_forward": lambda shapes, values: count_convolution(
        shapes[0], shapes[1], values[5], values[4], (1,) * len(values[4])
    ),
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
        ),
        lambda shapes, _: count_attention(shapes[0], shapes[1], shapes[2]),
    ),
}

# Operators that launch the work themselves, and whose shapes tell how much it is.
COUNTED = frozenset(_COUNTS)


def work_of(name: str, dims: bytes, types: bytes, values: bytes) -> Work | None:
    """Return one call's work, from the JSON of "Input Dims", "Input type" and "Concrete Inputs";
    None when they do not tell.
    """
    try:
        shapes, kinds = msgspec.json.decode(dims), msgspec.json.decode(types)
        given = [_numbers(text) for text in msgspec.json.decode(values)] if values else []
        flop, elements = _COUNTS[name](shapes, given)
        precision, size = _TYPES[next(kind for kind in kinds if kind in _TYPES)]
    except (
        msgspec.DecodeError,
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        StopIteration,
        AttributeError,
    ):
        return None
    if flop > 0 and elements > 0:
        return Work(flop, elements * size, precision, _in_words(name, shapes))
    return None


def _in_words(name: str, shapes: list[Shape]) -> str:
    """Return the shapes of the tensors among an operator's inputs: `64×1024 by 1024×1024`."""
    if name in _WITH_SUM:
        shapes = shapes[1:3]
    tensors = ["×".join(map(str, shape)) for shape in shapes if shape]
    return " by ".join(tensors)[:MOST_WORDS]


def _numbers(text: Any) -> Shape:
    """Parse "[1, 2]" as (1, 2); empty for anything that is not a list of numbers."""
    if not isinstance(text, str) or not text.startswith("["):
        return ()
    return tuple(
        int(part) for part in text.strip("[]").split(",") if part.strip().lstrip("-").isdecimal()
    )
