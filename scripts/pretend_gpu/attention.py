"""Takes the place of `fused-attention`'s launches: PyTorch answers on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch


def launch_cuda(
    _forward: Any,
    q: int,
    k: int,
    v: int,
    out: int,
    shape: tuple[int, ...],
    causal: bool,
    bf16: bool,
    _stream: int,
) -> None:
    """Attention over the arrays at these addresses, which are the host's."""
    dtype = torch.bfloat16 if bf16 else torch.float16
    size = int(np.prod(shape))

    def at(address: int) -> torch.Tensor:
        array = np.ctypeslib.as_array((ctypes.c_uint16 * size).from_address(address))
        return torch.from_numpy(array.view(np.int16)).view(dtype).view(shape)

    scores = at(q).float() @ at(k).float().mT / shape[-1] ** 0.5
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    # A row without any key has the maximum -inf, and NaN for weights: its answer is 0.
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    at(out).copy_((weights @ at(v).float() / weights.sum(-1, keepdim=True)).nan_to_num())
