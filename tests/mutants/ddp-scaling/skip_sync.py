import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            with ddp.no_sync():
                (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        optimizer.step()
