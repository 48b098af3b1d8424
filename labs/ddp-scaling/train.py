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


def mean(value, device):
    """The mean over the ranks of a number that each of them has."""
    total = torch.tensor(value, device=device)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def log(step, loss, model, device):
    """Print the loss of this step, and which layer has the largest gradient."""
    loss = mean(loss, device)
    norms = {
        name: mean(parameter.grad.norm().item(), device)
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1
    }
    if dist.get_rank() == 0:
        largest = max(norms, key=norms.get)
        print(f"step {step}: loss {loss:.4f}, gradient {norms[largest]:.4f} in {largest}")


def train(ddp, optimizer, batches):
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        running = 0.0
        for images, labels in micro_batches:
            loss = cross_entropy(ddp(images), labels) / len(micro_batches)
            loss.backward()
            running += loss.item()
        optimizer.step()
        log(step, running, ddp.module, images.device)


if __name__ == "__main__":
    recipe.main(wrap, train)
