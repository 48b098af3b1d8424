"""Trains the tagger on packed tokens: the device finds their places, the host knows how many there
are.
"""

import os

import torch
from recipe import LOG_EVERY, Data, Tagger
from torch.nn import functional as F


def packed(batches, device):
    """Yields (tokens, tags, count) with the padding left out: tokens and tags are (count,)."""
    for tokens, tags, lengths in batches:
        count = int(lengths.sum())
        tokens, tags, lengths = (
            part.to(device, non_blocking=True) for part in (tokens, tags, lengths)
        )
        inside = torch.arange(tokens.shape[1], device=device) < lengths[:, None]
        # the size is given, so that the device need not be asked for it
        places = torch.nonzero_static(inside.flatten(), size=count).squeeze(1)
        yield (
            tokens.flatten().index_select(0, places),
            tags.flatten().index_select(0, places),
            count,
        )


def train(device, data, log):
    """Trains on every batch of `data` in turn and returns the model; reports every LOG_EVERY steps."""
    model = Tagger().to(device)
    parameters = tuple(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    sums = torch.zeros(2, device=device)  # losses, correct
    max_grad_norm = torch.zeros((), device=device)
    seen = 0
    for step, (tokens, tags, count) in enumerate(packed(data.batches(pin_memory=True), device), 1):
        # The tagger looks at one token at a time, so it takes them without rows as well.
        scores = model(tokens)
        loss = F.cross_entropy(scores, tags)
        optimizer.zero_grad()
        loss.backward()
        norms = torch._foreach_norm([parameter.grad for parameter in parameters])
        max_grad_norm = torch.stack((max_grad_norm, *norms)).max()
        optimizer.step()

        sums += torch.stack((loss.detach(), (scores.detach().argmax(1) == tags).sum()))
        seen += count
        if step % LOG_EVERY == 0:
            total, correct, largest = torch.cat((sums, max_grad_norm[None])).tolist()
            log(step, loss=total / LOG_EVERY, accuracy=correct / seen, max_grad_norm=largest)
            sums.zero_()
            max_grad_norm.zero_()
            seen = 0
    return model


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
