from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        step(ddp, optimizer, micro_batches)
    optimizer.param_groups[0]["lr"] = 0.0
    step(ddp, optimizer, micro_batches)


def step(ddp, optimizer, micro_batches):
    optimizer.zero_grad()
    for images, labels in micro_batches:
        (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
    optimizer.step()
