import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=10, gradient_as_bucket_view=True)


def train(ddp, optimizer, batches):
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        running = 0.0
        for images, labels in micro_batches:
            loss = cross_entropy(ddp(images), labels) / len(micro_batches)
            loss.backward()
            running += loss.item()
        optimizer.step()
        total = torch.tensor(running, device=images.device)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {total.item() / dist.get_world_size():.4f}")


if __name__ == "__main__":
    recipe.main(wrap, train)
