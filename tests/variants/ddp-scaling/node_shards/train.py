"""Reduces over two levels, as libraries do: inside a node each rank sums a part, parts cross between
nodes, and are gathered inside the node again.
"""

from contextlib import nullcontext

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel

GPUS = 4  # of a node


def wrap(model):
    world, rank = dist.get_world_size(), dist.get_rank()
    nodes = [list(range(first, min(first + GPUS, world))) for first in range(0, world, GPUS)]
    inside, _ = dist.new_subgroups_by_enumeration(nodes)
    between, _ = dist.new_subgroups_by_enumeration(
        [list(ranks) for ranks in zip(*nodes, strict=True)]
    )
    gpus = len(nodes[rank // GPUS])

    def reduce(_, bucket):
        gradients = bucket.buffer().div_(world)
        whole = pad(gradients, (0, -len(gradients) % gpus))
        part = torch.empty(len(whole) // gpus)
        dist.reduce_scatter_tensor(part, whole, group=inside)
        dist.all_reduce(part, group=between)
        work = dist.all_gather_into_tensor(whole, part, group=inside, async_op=True)
        return work.get_future().then(lambda _: gradients.copy_(whole[: len(gradients)]))

    ddp = DistributedDataParallel(model, bucket_cap_mb=5)
    ddp.register_comm_hook(None, reduce)
    return ddp


def log(step, loss, labels):
    """Counts are averaged as whole numbers, losses are gathered: rarely, so it may be simple."""
    images = torch.tensor(len(labels))
    dist.all_reduce(images, op=dist.ReduceOp.AVG)
    losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    if dist.get_rank() == 0:
        mean = torch.stack(losses).mean().item()
        print(f"step {step}: {images.item()} images a rank, loss {mean:.4f}")


def train(ddp, optimizer, batches):
    dist.barrier()
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        running = 0.0
        for number, (images, labels) in enumerate(micro_batches, start=1):
            with nullcontext() if number == len(micro_batches) else ddp.no_sync():
                loss = cross_entropy(ddp(images), labels) / len(micro_batches)
                loss.backward()
            running = running + loss.detach()
        optimizer.step()
        if step % 20 == 0:
            log(step, running, labels)


if __name__ == "__main__":
    recipe.main(wrap, train)
