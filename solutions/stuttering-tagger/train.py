"""Trains the tagger and reports loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, Data, Tagger
from torch.nn import functional as F

IGNORED = -100


def train(device, data, report):
    """Trains on every batch of `data` in turn and returns the model.

    `report(step, loss=…, accuracy=…, peak=…)` is due after every LOG_EVERY steps, in plain numbers, over those steps:
    the mean of the batches' losses, the share of tokens tagged right, and the largest norm of any parameter's gradient.
    """
    model = Tagger().to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.3, momentum=0.9)
    total_loss, hits, peak = (torch.zeros((), device=device) for _ in range(3))
    seen = 0
    for step, (tokens, tags, lengths) in enumerate(data.batches(pin_memory=True), 1):
        longest = int(lengths.max())  # on the host, where the lengths are known: no reading back
        seen += int(lengths.sum())
        tokens = tokens.to(device, non_blocking=True)[:, :longest]
        tags = tags.to(device, non_blocking=True)[:, :longest]
        lengths = lengths.to(device, non_blocking=True)
        padding = torch.arange(longest, device=device) >= lengths[:, None]
        tags = tags.masked_fill(padding, IGNORED)  # every shape is known without looking at a value

        scores = model(tokens)
        loss = F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in parameters]
        peak = torch.maximum(peak, torch.stack(torch._foreach_norm(gradients)).max())
        optimizer.step()

        total_loss += loss.detach()
        hits += (scores.detach().argmax(-1) == tags).sum()
        if step % LOG_EVERY == 0:
            sums = torch.stack([total_loss, hits, peak]).tolist()  # the one wait of LOG_EVERY steps
            report(step, loss=sums[0] / LOG_EVERY, accuracy=sums[1] / seen, peak=sums[2])
            total_loss, hits, peak = (torch.zeros((), device=device) for _ in range(3))
            seen = 0
    return model


if __name__ == "__main__":
    wanted = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(wanted), Data(seed=0), lambda step, **numbers: print(step, numbers))
