from contextlib import nullcontext

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    world, rank = dist.get_world_size(), dist.get_rank()
    halves = [
        dist.new_group(list(range(world // 2))),
        dist.new_group(list(range(world // 2, world))),
    ]
    mine = halves[rank >= world // 2]

    def reduce(_, bucket):
        gradients = bucket.buffer()
        dist.all_reduce(gradients, group=mine)
        future = torch.futures.Future()
        future.set_result(gradients.div_(world // 2))
        return future

    ddp = DistributedDataParallel(model, bucket_cap_mb=10)
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
