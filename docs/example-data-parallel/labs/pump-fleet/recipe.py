"""What is trained, and how. The same for everyone: a check uses its own copy."""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

MICRO_BATCHES, WINDOWS, READINGS, KINDS = 2, 8, 640, 64


def make_model(width=READINGS):
    torch.manual_seed(0)
    widths = [READINGS, *[width] * 6]
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, KINDS))


def make_small_model():
    """The same layers, a tenth as wide: a check also trains many steps of this one."""
    return make_model(width=64)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def make_batches(steps=4):
    """Yields, for every step, its (windows, labels) micro-batches."""
    for _ in range(steps):
        yield [
            (torch.randn(WINDOWS, READINGS), torch.randint(KINDS, (WINDOWS,)))
            for _ in range(MICRO_BATCHES)
        ]


def log(loss):
    if dist.get_rank() == 0:
        print(f"loss of the last windows: {loss:.4f}")


def main(wrap, train):
    """Trains a few steps alone, as one rank of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = make_model()
    train(wrap(model), make_optimizer(model), make_batches())
    dist.destroy_process_group()
