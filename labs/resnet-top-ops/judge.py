"""Choose what is captured for this lab, and count the work of each operator from the shapes that a
capture records.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

BYTES = 4
"""Of one number: the network runs in float32."""

KNOWN_BALANCE = {"H200": 495e12 / 4800e9, "H100": 495e12 / 3350e9, "A100": 156e12 / 2039e9}
"""FLOP per byte at which memory and tensor cores are equally busy: dense TF32 over HBM bandwidth,
from NVIDIA's data sheets (SXM).
"""

CONVOLUTIONS = {
    "aten::mkldnn_convolution": (3, 4),
    "aten::_slow_conv2d_forward": (5, 4),
    "aten::cudnn_convolution": (2, 3),
}
"""Where among an operator's inputs padding and stride stand."""

ELEMENTWISE = {
    "aten::native_batch_norm": (2, 2),  # a multiply-add; one read, one write
    "aten::cudnn_batch_norm": (2, 2),
    "aten::_batch_norm_impl_index": (2, 2),
    "aten::clamp_min_": (1, 2),
    "aten::relu_": (1, 2),
    "aten::add_": (1, 3),
    "aten::copy_": (0, 2),
    "aten::mean": (1, 1),
}
"""Floating-point operations, and numbers moved to or from memory, for each number of the first
input.
"""


@cache
def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jpg"))


def make_inputs(
    rng: np.random.Generator, data: Path, settings: dict[str, Any]
) -> np.ndarray[Any, Any]:
    """A batch of photographs cut at secret places: uint8, batch×3×224×224."""
    pixels = []
    for index in rng.integers(len(_files(data / "small")), size=int(settings["batch"])):
        photo = Image.open(_files(data / "small")[index]).convert("RGB")
        left, top = int(rng.integers(photo.width - 223)), int(rng.integers(photo.height - 223))
        pixels.append(np.asarray(photo.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1))
    return np.stack(pixels)


def work(name: str, dims: Sequence[Any], concrete: Sequence[str]) -> tuple[float, float] | None:
    """Floating-point operations of one call and bytes it must move at least; None for an operator
    that is not known here.

    `dims`: the shapes of its inputs; `concrete`: the values of those that are no tensors, as text.
    """
    if name in CONVOLUTIONS:
        return _convolution(
            dims, *(_numbers(concrete[position]) for position in CONVOLUTIONS[name])
        )
    if name in ("aten::addmm", "aten::mm"):
        (rows, inner), (_, columns) = dims[-5:][1:3] if name == "aten::addmm" else dims[:2]
        return 2.0 * rows * inner * columns, BYTES * float(
            rows * inner + inner * columns + rows * columns
        )
    if name == "aten::max_pool2d_with_indices":
        return _pooling(dims[0], *(_numbers(concrete[at]) for at in (1, 2, 3)))
    if name in ELEMENTWISE:
        operations, moved = ELEMENTWISE[name]
        return float(operations * prod(dims[0])), float(BYTES * moved * prod(dims[0]))
    return None


def _numbers(text: str) -> list[int]:
    return [int(number) for number in ast.literal_eval(text)]


def _out(side: int, kernel: int, padding: int, stride: int) -> int:
    return (side + 2 * padding - kernel) // stride + 1


def _convolution(dims: Sequence[Any], padding: list[int], stride: list[int]) -> tuple[float, float]:
    """Each output is a sum over a window of all channels; input, weights and output pass through
    memory once.
    """
    (batch, _, *sides), (outputs, channels, *kernel) = dims[0], dims[1]
    out = batch * outputs * prod(map(_out, sides, kernel, padding, stride))
    return 2.0 * out * channels * prod(kernel), BYTES * float(prod(dims[0]) + prod(dims[1]) + out)


def _pooling(
    image: Sequence[int], kernel: list[int], stride: list[int], padding: list[int]
) -> tuple[float, float]:
    """One comparison an input of a window; the output is a number and its place, an int64."""
    out = image[0] * image[1] * prod(map(_out, image[2:], kernel, padding, stride))
    return float(out * prod(kernel)), float(BYTES * prod(image) + (BYTES + 8) * out)
