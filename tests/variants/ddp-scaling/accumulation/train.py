import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=4)


def train(ddp, optimizer, batches):
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        *first, last = micro_batches
        with ddp.no_sync():
            losses = [one_pass(ddp, *batch, len(micro_batches)) for batch in first]
        losses.append(one_pass(ddp, *last, len(micro_batches)))
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss on rank 0 {sum(losses).item():.4f}")


def one_pass(ddp, images, labels, parts):
    loss = cross_entropy(ddp(images), labels) / parts
    loss.backward()
    return loss.detach()


if __name__ == "__main__":
    recipe.main(wrap, train)
