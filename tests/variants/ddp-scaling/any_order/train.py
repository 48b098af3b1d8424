"""Trains the classifier on every GPU of the job.

torchrun --nproc-per-node 4 train.py
"""

import recipe
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(
        model, bucket_cap_mb=3, broadcast_buffers=False, gradient_as_bucket_view=True
    )


class Losses:
    """Losses stay on the device; the ranks' means are asked for once in a while and printed a period later, when they have long arrived."""

    def __init__(self, every):
        self.every = every
        self.sum = None
        self.count = 0
        self.asked = None

    def add(self, value):
        self.sum = value if self.sum is None else self.sum + value
        self.count += 1

    def tick(self, step):
        if step % self.every == self.every - 1:
            self.show()
            mean = self.sum / self.count
            self.asked = step, mean, dist.all_reduce(mean, async_op=True)
            self.sum, self.count = None, 0

    def show(self):
        if self.asked:
            step, mean, work = self.asked
            work.wait()
            if dist.get_rank() == 0:
                print(f"until step {step}: loss {mean.item() / dist.get_world_size():.4f}")
            self.asked = None


class Trainer:
    def __init__(self, ddp, optimizer):
        self.ddp = ddp
        self.optimizer = optimizer
        self.criterion = nn.CrossEntropyLoss(reduction="sum")
        self.losses = Losses(every=10)

    def micro_batch(self, images, labels, total, last):
        self.ddp.require_backward_grad_sync = last  # what no_sync() does, without its context
        loss = (
            self.criterion(self.ddp(images), labels) / total
        )  # a sum, divided by all images of the step: the mean of means
        loss.backward()
        return loss.detach()

    def step(self, micro_batches):
        total = sum(len(labels) for _, labels in micro_batches)
        loss = 0.0
        for number, (images, labels) in enumerate(reversed(micro_batches), start=1):
            loss = loss + self.micro_batch(images, labels, total, last=number == len(micro_batches))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.add(loss)

    def __call__(self, batches):
        for step, micro_batches in enumerate(batches):
            self.step(micro_batches)
            self.losses.tick(step)
        self.losses.show()


def train(ddp, optimizer, batches):
    Trainer(ddp, optimizer)(batches)


if __name__ == "__main__":
    recipe.main(wrap, train)
