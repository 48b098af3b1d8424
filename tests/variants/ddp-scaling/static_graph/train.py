import recipe
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=4, static_graph=True, broadcast_buffers=False
    )
    ddp.register_comm_hook(None, bf16_compress_hook)
    return ddp


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
        steps = losses.view(-1, recipe.MICRO_BATCHES).sum(1).div(dist.get_world_size())
        for step, loss in enumerate(steps.tolist()):
            print(f"step {step}: loss {loss:.4f}")


if __name__ == "__main__":
    recipe.main(wrap, train)
