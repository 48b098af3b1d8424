"""The kernels of a foreach operator, such as `aten::_foreach_add_`: one takes the chunks of many
tensors.

Checked against captures of SGD with momentum. The 161 tensors of a ResNet-50 took three kernels an
operator on an A100, of 180, 320 and 8 blocks where it has one list and of 71, 155 and 282 where it
has two. 20 tensors took one kernel, on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from scripts.cases.machine import Kernel

from bottleneck_lab.measure.virtual_gpu.spec import GpuSpec

CHUNK = 65_536
"""Elements that one block works on."""
MOST_BLOCKS = 320
MOST_TENSORS = (110, 64, 48, 36, 30)
"""Of one kernel, by the number of lists: what fits into the 4 KB of a kernel's arguments."""
MOST_NORMS = 400
"""Tensors whose chunks' norms one kernel adds up."""
CHUNK_US = 6.4
"""A block's time for a full chunk, however few there are. On the H200, kernels whose longest chunk
had 6144 and 16384 elements took 1.6 and 2.7 µs.
"""

_BINARY = {"add": "plus", "sub": "minus", "mul": "multiplies", "div": "divides"}
_OVERLOADS = {
    "Scalar": "Scalar",
    "List": "ListAlpha",
    "ScalarList": "ScalarList",
    "Tensor": "ScalarTensor",
}


def multi_tensor(function: Any, args: tuple[Any, ...], result: Any, spec: GpuSpec) -> list[Kernel]:
    """Return the kernels that a foreach operator launches on tensors of one layout."""
    lists = [each for each in (*args, result) if _is_of_tensors(each)]
    in_place = not _is_of_tensors(result)
    operator = function.overloadpacket.__name__.removeprefix("_foreach_").rstrip("_")
    if operator == "norm":
        # The chunks' norms stand in a buffer of zeros, and are added up by tensor.
        lists = lists[:1]
    name = _name(operator, function._overloadname, len(lists), in_place=in_place)
    kernels = [
        Kernel(
            name,
            spec.kernel_us
            + max(
                elements * sum(each[0].element_size() for each in lists) / spec.bytes_per_s * 1e6,
                longest / CHUNK * CHUNK_US,
            ),
        )
        for _, elements, longest in launches([each.numel() for each in lists[0]], len(lists))
    ]
    if operator == "norm":
        fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
        clean = "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float>"
        count = -(-len(lists[0]) // MOST_NORMS)
        kernels = [
            Kernel(fill, spec.kernel_us),
            *kernels,
            *[Kernel(clean, spec.reduction_us)] * count,
        ]
    return kernels


def launches(numels: list[int], depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield blocks, elements and the longest chunk's elements of each kernel that `depth` lists of
    tensors with so many elements take. A kernel is launched when it has no room left for another
    block, or for another tensor.
    """
    tensors = blocks = elements = longest = 0
    for numel in numels:
        if numel:
            tensors += 1
        for begin in range(0, numel, CHUNK):
            chunk = min(CHUNK, numel - begin)
            blocks, elements, longest = blocks + 1, elements + chunk, max(longest, chunk)
            ends = begin + chunk == numel
            if blocks == MOST_BLOCKS or (ends and tensors == MOST_TENSORS[depth - 1]):
                yield blocks, elements, longest
                # The next kernel begins with what is left of this tensor.
                tensors, blocks, elements, longest = int(not ends), 0, 0, 0
    if blocks:
        yield blocks, elements, longest


def _is_of_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and torch.is_tensor(value[0])


def _name(operator: str, overload: str, depth: int, *, in_place: bool) -> str:
    """Return a kernel's name as a profiler shows it, without the types of its arguments."""
    inputs = depth if in_place else depth - 1
    shape = f"<float, {depth}, {inputs}, {0 if in_place else depth - 1}>"
    if operator in _BINARY:
        functor = f"BinaryOp{_OVERLOADS[overload]}Functor{shape}, std::{_BINARY[operator]}<float>"
    elif operator in ("addcmul", "addcdiv"):
        way = _BINARY[operator.removeprefix("addc")]
        functor = f"PointwiseOp{overload}Functor{shape}, std::{way}<float>"
    elif operator == "lerp":
        functor = f"TernaryOp{overload}Functor{shape}, at::native::LerpFunctor<float>"
    elif operator == "norm":
        functor = "LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>"
    elif operator == "copy":
        functor = f"CopyFunctor<float, float, {shape[8:]}, at::native::Copy<float, float>"
    else:
        functor = f"UnaryOpFunctor{shape}, at::native::{operator.capitalize()}<float>"
    metadata = f"TensorListMetadata<{depth}>"
    if overload == "ScalarList":
        metadata = f"TensorListScalarListMetadata<float, {depth}>"
    scope = "at::native::(anonymous namespace)::"
    return f"void {scope}multi_tensor_apply_kernel<{scope}{metadata}, {scope}{functor}>"
