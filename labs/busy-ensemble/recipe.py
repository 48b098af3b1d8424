"""The model and its data: an ensemble of small regressors, one set of weights a member. Not to be
edited.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMBERS, FEATURES, WIDTH = 16, 12, 32
BATCH, STEPS, LOG_EVERY = 64, 40, 10


class Ensemble(nn.Module):
    """The weights of all members, stacked: the first dimension is the member."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(MEMBERS, FEATURES, WIDTH) / FEATURES**0.5)
        self.up_bias = nn.Parameter(torch.zeros(MEMBERS, WIDTH))
        self.scale = nn.Parameter(torch.ones(MEMBERS, WIDTH))
        self.down = nn.Parameter(torch.randn(MEMBERS, WIDTH, 1) / WIDTH**0.5)
        self.down_bias = nn.Parameter(torch.zeros(MEMBERS, 1))


class Data:
    """Noisy samples of a smooth function, and for every member the share of each sample that it is
    trained on; `seed` decides which.
    """

    def __init__(self, seed, steps=STEPS):
        rng = torch.Generator().manual_seed(seed)
        count = steps * BATCH
        self.features = torch.randn(count, FEATURES, generator=rng)
        direction = torch.randn(FEATURES, generator=rng) / FEATURES**0.5
        self.wanted = torch.sin(2 * self.features @ direction) + 0.1 * torch.randn(
            count, generator=rng
        )
        self.shares = torch.rand(count, MEMBERS, generator=rng)

    def batches(self, pin_memory=False):
        """Batches of (features, wanted, shares): (BATCH, FEATURES), (BATCH,) and (BATCH, MEMBERS).

        With `pin_memory`, a thread of the loader pins them ahead.
        """
        dataset = TensorDataset(self.features, self.wanted, self.shares)
        return DataLoader(dataset, BATCH, num_workers=int(pin_memory), pin_memory=pin_memory)
