from contextlib import nullcontext

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    ddp = DistributedDataParallel(model, bucket_cap_mb=5)

    def reduce(_, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0].div_(dist.get_world_size()))

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
