"""All micro-batches of all ranks as one: its gradient is the mean of theirs, in one pass of one
process.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn.functional import batch_norm

_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def normalise_apart(model: nn.Module, parts: int) -> None:
    """Have the model's batch norms take a batch as `parts` of it, one after the other, each with
    its own mean and variance.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            normalise = partial(_normalise, module, parts)
            setattr(module, "forward", normalise)  # noqa: B010 - an assignment is what the type checker forbids


def _normalise(norm: _BatchNorm, parts: int, samples: torch.Tensor) -> torch.Tensor:
    """Normalise samples, (parts x N) x C x …"""
    # A part's channels are channels of their own: N x (parts x C) x …
    apart = samples.reshape(parts, -1, *samples.shape[1:]).transpose(0, 1).flatten(1, 2)
    weight, bias = (None if one is None else one.repeat(parts) for one in (norm.weight, norm.bias))
    apart = batch_norm(apart, None, None, weight, bias, training=True, eps=norm.eps)
    return apart.reshape(len(apart), parts, *samples.shape[1:]).transpose(0, 1).flatten(0, 1)
