import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    return DistributedDataParallel(model, static_graph=True, broadcast_buffers=False)


def train(ddp, optimizer, batches):
    history = []
    for micro_batches in batches:
        optimizer.zero_grad(set_to_none=True)
        for images, labels in micro_batches:
            loss = cross_entropy(ddp(images), labels) / len(micro_batches)
            loss.backward()
            history.append(loss.detach())
        optimizer.step()
    losses = torch.stack(history)
    dist.all_reduce(losses)
    if dist.get_rank() == 0:
        for step, loss in enumerate(losses.view(-1, 2).sum(1).div(dist.get_world_size()).tolist()):
            print(f"step {step}: loss {loss:.4f}")


if __name__ == "__main__":
    recipe.main(wrap, train)
