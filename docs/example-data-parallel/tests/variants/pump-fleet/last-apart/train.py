"""Train a model that knows pumps by how they shake, on every GPU of the job.

Alone: python train.py
"""

import recipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(model, bucket_cap_mb=1)


def train(ddp, optimizer, batches):
    for micro_batches in batches:
        optimizer.zero_grad()
        *others, (windows, labels) = micro_batches
        with ddp.no_sync():
            for early, kinds in others:
                (cross_entropy(ddp(early), kinds) / len(micro_batches)).backward()
        loss = cross_entropy(ddp(windows), labels) / len(micro_batches)
        loss.backward()
        recipe.log(loss.item())
        optimizer.step()


if __name__ == "__main__":
    recipe.main(wrap, train)
