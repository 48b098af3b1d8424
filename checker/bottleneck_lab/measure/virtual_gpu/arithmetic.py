"""The arithmetic of products and convolutions on a GPU, and how a CPU computes the same values.

The sums are in float32 in any case. What differs is how many bits of the factors a product reads,
and so how fast it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.codec import replace
from bottleneck_lab.measure.virtual_gpu.operators import CONVOLUTIONS, Traits
from bottleneck_lab.measure.virtual_gpu.spec import Arithmetic

_HALF = (torch.float16, torch.bfloat16)
_TF32_DROPS = 13
"""Bits of a float32's mantissa that TF32 lacks."""


class Tf32(msgspec.Struct, frozen=True):
    """Where TF32 is allowed for float32: as PyTorch has it at first, in convolutions alone."""

    matrices: bool = False
    convolutions: bool = True


def switched_tf32() -> Tf32:
    """Return what the program's switches allow, by whichever of PyTorch's ways they were set."""
    cudnn: Any = torch.backends.cudnn  # whose types lack `conv`
    matrices = torch.backends.cuda.matmul.fp32_precision == "tf32"
    # Without cuDNN, PyTorch unfolds a convolution into a product of matrices.
    return Tf32(matrices, cudnn.conv.fp32_precision == "tf32" if cudnn.enabled else matrices)


def refuse_switches(traits: Traits, tensors: Iterable[torch.Tensor]) -> None:
    """Raise NotModelled if a switch is on that changes what this operator does with these tensors
    on a GPU, and the virtual one does not follow it.
    """
    # PyTorch then chooses other kernels and raises for operators that have none: a long list, and
    # another one in each version.
    if torch.are_deterministic_algorithms_enabled():
        raise NotModelled(
            "torch.use_deterministic_algorithms is not available on the virtual GPU, whose results"
            " never depend on the order of its threads"
        )
    half = torch.float16 in {each.dtype for each in tensors}
    if half and torch.backends.cuda.matmul.allow_fp16_accumulation:
        raise NotModelled(
            "torch.backends.cuda.matmul.allow_fp16_accumulation is not available on the virtual"
            f" GPU (in aten::{traits.name})"
        )


def arithmetic_of(traits: Traits, args: Any, tf32: Tf32) -> Arithmetic:
    """Return in which arithmetic an operator runs with these arguments."""
    if not traits.factors:
        return "full"
    dtypes = {args[position].dtype for position in traits.factors}
    if dtypes.issubset(_HALF):
        return "half"
    convolves = traits.name in CONVOLUTIONS
    if dtypes == {torch.float32} and (tf32.convolutions if convolves else tf32.matrices):
        return "tf32"
    return "full"


def compute(traits: Traits, args: Any, kwargs: Any, arithmetic: Arithmetic) -> Any:
    """Call an operator on the CPU so that its values are those of this arithmetic."""
    function = traits.function
    if arithmetic == "tf32":
        rounded = list(args)
        for position in traits.factors:
            rounded[position] = _rounded_to_tf32(rounded[position])
        return function(*rounded, **kwargs)
    # In place there is nothing to convert back; the CPU's own kernels do that, only slower.
    if arithmetic == "half" and not function._schema.is_mutable:
        # Not by the CPU's kernels for these types: some take twenty times as long, and how they add
        # up depends on the machine. A product of two such numbers is exact in float32.
        dtype = args[traits.factors[0]].dtype
        result = function(*replace(args, _widened), **kwargs)
        return replace(result, lambda value: value if value is None else value.to(dtype))
    return function(*args, **kwargs)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) else value


def _rounded_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float32 tensor rounded to the nearest numbers of TF32; to even between two."""
    bits = tensor.view(torch.int32)
    lowest_kept = (bits >> _TF32_DROPS) & 1
    rounded = bits + ((1 << (_TF32_DROPS - 1)) - 1) + lowest_kept
    # Infinities and NaN have all bits of the exponent set, and must keep them.
    return torch.where(
        tensor.isfinite(), (rounded >> _TF32_DROPS << _TF32_DROPS).view(torch.float32), tensor
    )
