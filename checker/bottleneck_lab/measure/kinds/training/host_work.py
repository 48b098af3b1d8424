"""Count the arithmetic of a training, and how much of it the host does."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import (  # noqa: PLC2701 - torch has no public name for it
    TorchDispatchMode,
)

from bottleneck_lab.measure.virtual_gpu.codec import leaves
from bottleneck_lab.measure.virtual_gpu.operators import flops_of, is_free


class HostWork(TorchDispatchMode):
    """Counts, while it is entered, the operators of this thread and of the backward passes that it
    starts: floating-point operations of products and convolutions, and bytes of floating-point
    tensors that are read and written.

    All that an operator counts by is shapes, so a training counts the same on every device. An
    operator is the host's if all of its tensors are there: what moves values to or from a GPU is
    not.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch publishes no types for it
        self.flops = self.nbytes = self.host_flops = self.host_nbytes = 0.0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if is_free(function):
            return result
        tensors = [
            value for value in leaves((args, kwargs, result)) if isinstance(value, torch.Tensor)
        ]
        flops = flops_of(function, args, kwargs, result)
        # Sparse gradients have no bytes that PyTorch would tell.
        nbytes = sum(
            tensor.nbytes
            for tensor in tensors
            if tensor.is_floating_point() and tensor.layout is torch.strided
        )
        self.flops += flops
        self.nbytes += nbytes
        if all(tensor.device.type == "cpu" for tensor in tensors):
            self.host_flops += flops
            self.host_nbytes += nbytes
        return result
