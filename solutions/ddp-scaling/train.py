"""Trains the classifier on every GPU of the job.

torchrun --nproc-per-node 4 train.py
"""

from contextlib import nullcontext

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

LOG_EVERY = 20  # steps between reads of loss and gradients; each makes the host wait for the GPU


def wrap(model):
    # Every parameter takes part in every step, so nothing needs to be searched for, and the reducer
    # may rebuild its buckets in the order in which gradients really arrive. Small buckets leave
    # while backward is still computing the next ones.
    return DistributedDataParallel(model, bucket_cap_mb=4, gradient_as_bucket_view=True)


def log(step, loss, model):
    """Prints the loss, as the mean over the ranks, and which layer has the largest gradient."""
    dist.all_reduce(loss)
    # After backward every rank has the same gradients, so their norms need no other rank.
    weights = [(name, one.grad) for name, one in model.named_parameters() if one.dim() > 1]
    norms = torch.stack([gradient.norm() for _, gradient in weights])
    if dist.get_rank() == 0:
        largest = int(norms.argmax())
        print(
            f"step {step}: loss {loss.item() / dist.get_world_size():.4f}, gradient"
            f" {norms[largest].item():.4f} in {weights[largest][0]}"
        )


def train(ddp, optimizer, batches):
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        running = torch.zeros((), device=micro_batches[0][0].device)
        for number, (images, labels) in enumerate(micro_batches, start=1):
            # Gradients add up locally; only the last micro-batch of a step needs the other ranks.
            with nullcontext() if number == len(micro_batches) else ddp.no_sync():
                loss = cross_entropy(ddp(images), labels) / len(micro_batches)
                loss.backward()
            running += loss.detach()
        optimizer.step()
        if step % LOG_EVERY == 0:
            log(step, running, ddp.module)


if __name__ == "__main__":
    recipe.main(wrap, train)
