"""Takes the place of the kernel's launches on a CUDA device that is not there: the kernel is
compiled all the same, and PyTorch answers on the host.
"""

import ctypes

import numpy as np
import torch


def stand_in(attention):
    """Has `attention`, the lab's binding, launch nothing."""
    attention.launch_cuda = launch_cuda


def launch_cuda(_forward, q, k, v, out, shape, causal, bf16, _stream):
    """The answer to the arrays at these addresses, which are the host's."""
    dtype = torch.bfloat16 if bf16 else torch.float16
    size = int(np.prod(shape))
    arrays = [
        np.ctypeslib.as_array((ctypes.c_uint16 * size).from_address(place))
        for place in (q, k, v, out)
    ]
    q, k, v, out = (
        torch.from_numpy(array.view(np.int16)).view(dtype).view(shape) for array in arrays
    )
    scores = q.float() @ k.float().mT / shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf
        )
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    out.copy_((weights @ v.float() / weights.sum(-1, keepdim=True)).nan_to_num())
