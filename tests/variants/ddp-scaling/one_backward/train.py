"""Trains the classifier on every GPU of the job.

torchrun --nproc-per-node 4 train.py
"""

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    # Buffers stay local: a broadcast before the second forward would overwrite what the first one keeps for backward.
    return DistributedDataParallel(
        model, bucket_cap_mb=5, broadcast_buffers=False, gradient_as_bucket_view=True
    )


def step_loss(ddp, micro_batches):
    """The mean loss of the step. Each micro-batch has a forward, and so a batch normalisation, of its own."""
    return torch.stack(
        [cross_entropy(ddp(images), labels) for images, labels in micro_batches]
    ).mean()


def train(ddp, optimizer, batches):
    history = []
    for micro_batches in batches:
        loss = step_loss(ddp, micro_batches)
        optimizer.zero_grad()
        loss.backward()  # a parameter's gradient is complete, and sent, once both micro-batches have passed it
        optimizer.step()
        history.append(loss.detach())
    losses = torch.stack(history)
    dist.all_reduce(losses)
    if dist.get_rank() == 0:
        for step, value in enumerate((losses / dist.get_world_size()).tolist()):
            if step % 10 == 0:
                print(f"step {step}: loss {value:.4f}")


if __name__ == "__main__":
    recipe.main(wrap, train)
