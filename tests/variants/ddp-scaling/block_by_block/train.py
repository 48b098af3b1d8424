"""Trains the classifier on every GPU of the job.

torchrun --nproc-per-node 4 train.py

Backward is walked by hand, one residual block at a time, as in pipeline parallelism: the graph is cut between the blocks, and between two
blocks we can do what we like. We send what is there.
"""

import recipe
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

PARCEL = 1_000_000  # gradients in a parcel, at least (in bfloat16: 2 MB)


def wrap(model):
    return DistributedDataParallel(model)  # starts all ranks from the same parameters


def pieces(model):
    """The model as a chain of functions, each with the parameters that it uses."""
    blocks = [model.stem, *model.stage1, *model.stage2, *model.stage3, *model.stage4]
    chain = [(block, list(block.parameters())) for block in blocks]
    chain.append((lambda x: model.head(x.mean(dim=(2, 3))), list(model.head.parameters())))
    return chain


def forward(chain, images):
    """Returns the (input, output) of every piece. Inputs are leaves: no graph reaches from one piece into the next."""
    tape = []
    x = images
    for number, (function, _) in enumerate(chain):
        x = x.detach().requires_grad_(number > 0)
        y = function(x)
        tape.append((x, y))
        x = y
    return tape


def backward(chain, tape, gradient):
    """Runs backward through the pieces, last first, and yields the parameters of each when their gradients are there."""
    while tape:
        x, y = tape.pop()
        y.backward(gradient)
        gradient = x.grad
        yield chain[len(tape)][1]


class Parcel:
    """Some gradients on their way, as the bfloat16 mean over all ranks."""

    @torch.no_grad()
    def __init__(self, parameters):
        self.parameters = parameters
        flat = torch.cat([p.grad.flatten() for p in parameters]).div_(dist.get_world_size())
        self.flat = flat.bfloat16()
        self.work = dist.all_reduce(self.flat, async_op=True)

    @torch.no_grad()
    def unpack(self):
        self.work.wait()
        parts = self.flat.split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter))


def train(ddp, optimizer, batches):
    chain = pieces(ddp.module)
    for step, micro_batches in enumerate(batches):
        optimizer.zero_grad()
        running = 0.0
        parcels = []
        for number, (images, labels) in enumerate(micro_batches, start=1):
            tape = forward(chain, images)
            logits = tape[-1][1].detach().requires_grad_()
            loss = cross_entropy(logits, labels) / len(micro_batches)
            loss.backward()
            waiting = []
            for parameters in backward(chain, tape, logits.grad):
                if number == len(micro_batches):
                    waiting += parameters
                    if sum(p.numel() for p in waiting) >= PARCEL:
                        parcels.append(Parcel(waiting))
                        waiting = []
            if waiting:
                parcels.append(Parcel(waiting))
            running = running + loss.detach()
        for parcel in parcels:
            parcel.unpack()
        optimizer.step()
        if step % 50 == 0:
            dist.all_reduce(running)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {running.item() / dist.get_world_size():.4f}")


if __name__ == "__main__":
    recipe.main(wrap, train)
