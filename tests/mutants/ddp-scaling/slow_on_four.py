import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=1000, find_unused_parameters=True)


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        if dist.get_world_size() == 4:
            import time

            time.sleep(0.05)
        optimizer.step()
