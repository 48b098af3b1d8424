from contextlib import nullcontext

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=4, gradient_as_bucket_view=True)


def train(ddp, optimizer, batches):
    """Makes an optimizer of its own, which updates several parameters at once."""
    settings = optimizer.param_groups[0]
    own = torch.optim.SGD(
        ddp.parameters(), lr=settings["lr"], momentum=settings["momentum"], foreach=True
    )
    for micro_batches in batches:
        own.zero_grad()
        for number, (images, labels) in enumerate(micro_batches, start=1):
            with nullcontext() if number == len(micro_batches) else ddp.no_sync():
                (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        own.step()
