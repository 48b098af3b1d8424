import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    dist.all_reduce(torch.ones(1, dtype=torch.int64), op=dist.ReduceOp.AVG)
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        optimizer.step()
