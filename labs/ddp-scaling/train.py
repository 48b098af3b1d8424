"""Train the classifier on every GPU of the job.

torchrun --nproc-per-node 4 train.py
"""

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=1000, find_unused_parameters=True)


def log(step, loss, device):
    """Print the loss of this step, averaged over the ranks."""
    total = torch.tensor(loss, device=device)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"step {step}: loss {total.item() / dist.get_world_size():.4f}")


def train(ddp, optimizer, batches):
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        running = 0.0
        for images, labels in micro_batches:
            loss = cross_entropy(ddp(images), labels) / len(micro_batches)
            loss.backward()
            running += loss.item()
        optimizer.step()
        log(step, running, images.device)


if __name__ == "__main__":
    recipe.main(wrap, train)
