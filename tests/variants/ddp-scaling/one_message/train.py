import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=3, gradient_as_bucket_view=True)


def log(step, loss, model):
    """Everything is still logged in every step, but travels in one message and is read once."""
    weights = [(name, one.grad) for name, one in model.named_parameters() if one.dim() > 1]
    numbers = torch.stack([loss, *(gradient.norm() for _, gradient in weights)])
    dist.all_reduce(numbers, op=dist.ReduceOp.AVG)
    loss, *norms = numbers.tolist()
    if dist.get_rank() == 0:
        norm, name = max(zip(norms, (name for name, _ in weights), strict=True))
        print(f"step {step}: loss {loss:.4f}, gradient {norm:.4f} in {name}")


def train(ddp, optimizer, batches):
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        losses = []
        for number, (images, labels) in enumerate(micro_batches):
            ddp.require_backward_grad_sync = number == len(micro_batches) - 1
            loss = cross_entropy(ddp(images), labels) / len(micro_batches)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        log(step, torch.stack(losses).sum(), ddp.module)


if __name__ == "__main__":
    recipe.main(wrap, train)
