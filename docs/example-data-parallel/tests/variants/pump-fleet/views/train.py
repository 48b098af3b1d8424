"""Train a model that knows pumps by how they shake, on every GPU of the job.

Alone: python train.py
"""

from contextlib import nullcontext

import recipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(
        model, bucket_cap_mb=3, gradient_as_bucket_view=True, broadcast_buffers=False
    )


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        optimizer.zero_grad()
        for number, (windows, labels) in enumerate(micro_batches, start=1):
            with nullcontext() if number == len(micro_batches) else ddp.no_sync():
                loss = cross_entropy(ddp(windows), labels) / len(micro_batches)
                loss.backward()
        recipe.log(loss.item())
        optimizer.step()


if __name__ == "__main__":
    recipe.main(wrap, train)
