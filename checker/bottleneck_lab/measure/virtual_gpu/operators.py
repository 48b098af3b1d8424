"""Look up what PyTorch itself declares of its operators."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def is_composite(function: Any) -> bool:
    """Return True if PyTorch makes an operator up of others wherever autograd sees it."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key))


@cache
def is_predictable(function: Any) -> bool:
    """Return True if shapes, strides and types of an operator's result follow from those of its
    arguments, whatever values they hold.
    """
    # A composite may read a value in one of its parts without declaring it: `is_nonzero` does.
    reads = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return not reads.intersection(function.tags) and not is_composite(function)
