import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(model)


def train(ddp, optimizer, batches):
    parameters = list(ddp.parameters())
    for micro_batches in batches:
        optimizer.zero_grad()
        for images, labels in micro_batches:
            with ddp.no_sync():
                (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        every = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(every, flat)
        mean = torch.stack(every).mean(0)
        for parameter, part in zip(
            parameters, mean.split([one.numel() for one in parameters]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter))
        optimizer.step()
