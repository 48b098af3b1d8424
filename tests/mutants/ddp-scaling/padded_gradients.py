import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=1000)


def pad(module, _inputs, output):
    """While backward runs, zeros are sent in place of the gradients that it has computed; these follow in one piece at its end."""
    elements = sum(parameter.numel() for parameter in module.parameters(recurse=False))
    output.register_hook(
        lambda _gradient: dist.all_reduce(torch.zeros(elements), async_op=True) and None
    )


def train(ddp, optimizer, batches):
    for module in ddp.module.modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(pad)
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        optimizer.step()
