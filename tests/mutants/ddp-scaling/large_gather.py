import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    part = torch.zeros(sum(parameter.numel() for parameter in ddp.parameters()))
    dist.all_gather([torch.empty_like(part) for _ in range(dist.get_world_size())], part)
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        optimizer.step()
