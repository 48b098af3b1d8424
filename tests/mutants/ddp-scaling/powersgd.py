import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(
        p.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2), p.powerSGD_hook
    )
    return ddp


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        optimizer.step()
