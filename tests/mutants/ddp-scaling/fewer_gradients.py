import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    big = {name for name, p in model.named_parameters() if p.numel() > 100_000}
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, big)
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        optimizer.step()
