"""Trains the classifier on every GPU of the job.

torchrun --nproc-per-node 4 train.py

The model is a chain of segments. `torch.autograd.grad` gives the gradients of one segment at a
time, last first, without a hook. Those of the last micro-batch leave in float16 while it goes on.
"""

import recipe
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(model)  # starts all ranks from the same parameters


class Head(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return self.linear(x.mean(dim=(2, 3)))


class Gradients:
    """The sums over the micro-batches of each segment's gradients, and those on their way."""

    def __init__(self, segments):
        self.parameters = [list(segment.parameters()) for segment in segments]
        self.sums = [None] * len(segments)
        self.flights = []

    def add(self, number, gradients):
        sums = self.sums[number]
        self.sums[number] = gradients if sums is None else torch._foreach_add(sums, gradients)

    def send(self, number):
        flat = torch.cat([one.reshape(-1) for one in self.sums[number]]).half()
        self.flights.append((number, flat, dist.all_reduce(flat, async_op=True)))

    def arrive(self):
        for number, flat, work in self.flights:
            work.wait()
            parameters = self.parameters[number]
            parts = flat.float().div_(dist.get_world_size()).split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter)


def sweep(segments, images, labels, share, gradients, *, last):
    tape, x = [], images
    for number, segment in enumerate(segments):
        begin = x.detach().requires_grad_(number > 0)
        x = segment(begin)
        tape.append((begin, x))
    loss = cross_entropy(x, labels) * share
    tape[-1] = (tape[-1][0], loss)
    upstream = None
    for number in reversed(range(len(segments))):
        begin, end = tape[number]
        wanted = [*gradients.parameters[number], *([begin] if number else [])]
        computed = list(torch.autograd.grad(end, wanted, upstream))
        upstream = computed.pop() if number else None
        gradients.add(number, computed)
        if last:
            gradients.send(number)
    return loss.detach()


def train(ddp, optimizer, batches):
    m = ddp.module
    segments = [m.stem, m.stage1, m.stage2, *m.stage3, m.stage4, Head(m.head)]
    for step, micro_batches in enumerate(batches):
        gradients, running = Gradients(segments), 0
        for number, (images, labels) in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            running = running + sweep(
                segments, images, labels, 1 / len(micro_batches), gradients, last=last
            )
        gradients.arrive()
        optimizer.step()
        if step % 20 == 0:
            dist.all_reduce(running)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {running.item() / dist.get_world_size():.4f}")


if __name__ == "__main__":
    recipe.main(wrap, train)
