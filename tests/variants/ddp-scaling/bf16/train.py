from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    ddp = DistributedDataParallel(model, bucket_cap_mb=5)
    ddp.register_comm_hook(None, bf16_compress_hook)
    return ddp


def train(ddp, optimizer, batches):
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for images, labels in micro_batches:
            loss = cross_entropy(ddp(images), labels) / len(micro_batches)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss on rank 0 {torch.stack(losses).sum().item():.4f}")


if __name__ == "__main__":
    recipe.main(wrap, train)
