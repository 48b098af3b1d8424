from contextlib import nullcontext

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

GPUS = 4  # of a node


def wrap(model):
    world = dist.get_world_size()
    nodes = [list(range(first, min(first + GPUS, world))) for first in range(0, world, GPUS)]
    inside, _ = dist.new_subgroups_by_enumeration(nodes)
    between, _ = dist.new_subgroups_by_enumeration(
        [list(ranks) for ranks in zip(*nodes, strict=True)]
    )

    def reduce(_, bucket):
        gradients = bucket.buffer()
        dist.all_reduce(gradients, group=inside)
        dist.all_reduce(gradients, group=between)
        future = torch.futures.Future()
        future.set_result(gradients.div_(world))
        return future

    ddp = DistributedDataParallel(model, bucket_cap_mb=5)
    ddp.register_comm_hook(None, reduce)
    return ddp


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        optimizer.zero_grad()
        for number, (images, labels) in enumerate(micro_batches, start=1):
            with nullcontext() if number == len(micro_batches) else ddp.no_sync():
                (cross_entropy(ddp(images), labels) / len(micro_batches)).backward()
        optimizer.step()


if __name__ == "__main__":
    recipe.main(wrap, train)
