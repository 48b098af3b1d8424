"""Look up what PyTorch itself declares of its operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import torch

from bottleneck_lab.measure.virtual_gpu.imports import flop_formulas

MATRIX_PRODUCTS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "_addmm_activation": (1, 2),
}
"""The positions of the factors among the arguments."""
CONVOLUTIONS = {"convolution": (0, 1), "_convolution": (0, 1), "convolution_backward": (0, 1, 2)}
"""The same for convolutions."""
INDEXING = (
    torch.ops.aten.index,
    torch.ops.aten.index_put,
    torch.ops.aten.index_put_,
    torch.ops.aten._index_put_impl_,
)
"""Operators whose index may be a mask, as many of whose results there are as it has True."""
WITH_KERNELS = (torch.ops.aten.silu_backward, torch.ops.aten.mish_backward)
"""Operators that PyTorch makes up of others only for devices without a kernel for them: a GPU has
one.
"""
_CHECKS = {
    "aten._linalg_check_errors.default",
    "aten.multinomial.default",
    "aten.normal.Tensor_Tensor",
    "aten.normal.float_Tensor",
}
"""Operators whose kernels on a GPU read a value back to check it. PyTorch does not declare that."""
_VECTOR_PRODUCTS = {"dot": (0, 1), "vdot": (0, 1), "mv": (0, 1), "addmv": (1, 2)}
"""The same for products that no tensor core computes."""


@cache
def is_composite(function: Any) -> bool:
    """Return True if PyTorch makes an operator up of others wherever autograd sees it."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    made_up = bool(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key))
    return made_up and function.overloadpacket not in WITH_KERNELS


@cache
def is_predictable(function: Any) -> bool:
    """Return True if shapes, strides and types of an operator's result follow from those of its
    arguments, whatever values they hold.
    """
    # A composite may read a value in one of its parts without declaring it: `is_nonzero` does.
    reads = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return not reads.intersection(function.tags) and not is_composite(function)


@cache
def reads_a_value(function: Any) -> bool:
    """Return True if the host always waits for an operator: it reads a value."""
    return torch.Tag.data_dependent_output in function.tags or str(function) in _CHECKS


@cache
def has_dynamic_shape(function: Any) -> bool:
    """Return True if the shape of an operator's result depends on values."""
    return torch.Tag.dynamic_output_shape in function.tags


@cache
def may_wait(function: Any) -> bool:
    """Return True if there are arguments with which the host waits for an operator."""
    return (
        reads_a_value(function)
        or has_dynamic_shape(function)
        or function.overloadpacket in INDEXING
    )


@cache
def is_free(function: Any) -> bool:
    """Return True if an operator neither computes nor moves anything: a view, or memory that is
    only allocated.
    """
    name = function.overloadpacket.__name__
    # `_unsafe_view` is declared as no view, although its result has the storage of its input.
    free = name in ("detach", "_unsafe_view") or name.startswith(("empty", "new_empty"))
    return bool(function.is_view) or free


@cache
def written_arguments(function: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of each argument that an operator declares it writes to."""
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(function._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def factors(function: Any) -> tuple[int, ...]:
    """Return where an operator's factors are among its arguments; empty if it multiplies none."""
    name = function.overloadpacket.__name__.removesuffix("_")
    return MATRIX_PRODUCTS.get(name) or CONVOLUTIONS.get(name) or ()


def flops_of(function: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Return an operator's floating-point operations: of products, and by PyTorch's own formulas of
    convolutions and attention. Elementwise ones count none.
    """
    formula = _flop_formula(function)
    return formula(args, kwargs, result) if formula else 0.0


@cache
def _flop_formula(function: Any) -> Callable[[Any, Any, Any], float] | None:
    """Return what `flops_of` counts an operator by; None for one that counts none."""
    # Products in place go by the name of those that make a new tensor: `addmm` stands for `addmm_`.
    packet = function.overloadpacket
    name = packet.__name__.removesuffix("_")
    if positions := (MATRIX_PRODUCTS | _VECTOR_PRODUCTS).get(name):

        def of_product(args: Any, _kwargs: Any, _result: Any) -> float:
            first, second = (args[position] for position in positions)
            columns = second.shape[-1] if second.dim() > 1 else 1
            return float(2 * first.numel() * columns)

        return of_product
    formula = flop_formulas().get(getattr(torch.ops.aten, name, packet))
    if formula is None:
        return None
    return lambda args, kwargs, result: float(formula(*args, **kwargs, out_val=result))


class Traits(msgspec.Struct, frozen=True, eq=False):
    """An operator with all that is the same for each of its calls."""

    function: Any
    packet: Any
    name: str
    """What PyTorch calls it, without its overload."""
    is_composite: bool
    is_predictable: bool
    is_free: bool
    may_wait: bool
    indexes: bool
    written: tuple[tuple[int, str], ...]
    """Of each argument that it writes to, position and name."""
    factors: tuple[int, ...]
    flop_formula: Callable[[Any, Any, Any], float] | None

    def flops(self, args: Any, kwargs: Any, result: Any) -> float:
        """Return the floating-point operations of a call, as `flops_of` does."""
        return self.flop_formula(args, kwargs, result) if self.flop_formula else 0.0


@cache
def traits_of(function: Any) -> Traits:
    """Return an operator's traits: one look-up for all of them, as each takes longer than some
    operators do.
    """
    packet = function.overloadpacket
    return Traits(
        function=function,
        packet=packet,
        name=packet.__name__,
        is_composite=is_composite(function),
        is_predictable=is_predictable(function),
        is_free=is_free(function),
        may_wait=may_wait(function),
        indexes=packet in INDEXING,
        written=written_arguments(function),
        factors=factors(function),
        flop_formula=_flop_formula(function),
    )
