"""Trains the tagger and reports loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, Data, Tagger
from torch.nn import functional as F


def train(device, data, report):
    """Trains on every batch of `data` in turn and returns the model.

    `report(step, loss=…, accuracy=…, peak=…)` is due after every LOG_EVERY steps, in plain numbers, over those steps:
    the mean of the batches' losses, the share of tokens tagged right, and the largest norm of any parameter's gradient.
    """
    model = Tagger().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    total_loss, hits, seen, peak = 0.0, 0, 0, 0.0
    for step, (tokens, tags, lengths) in enumerate(data.batches(), 1):
        tokens, tags, lengths = tokens.to(device), tags.to(device), lengths.to(device)
        longest = lengths.max().item()
        tokens, tags = tokens[:, :longest], tags[:, :longest]
        mask = torch.arange(longest, device=device) < lengths[:, None]

        scores = model(tokens)
        loss = F.cross_entropy(scores[mask], tags[mask])
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            peak = max(peak, parameter.grad.norm().item())
        optimizer.step()

        total_loss += loss.item()
        hits += (scores[mask].argmax(-1) == tags[mask]).sum().item()
        seen += mask.sum().item()
        if step % LOG_EVERY == 0:
            report(step, loss=total_loss / LOG_EVERY, accuracy=hits / seen, peak=peak)
            total_loss, hits, seen, peak = 0.0, 0, 0, 0.0
    return model


if __name__ == "__main__":
    wanted = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(wanted), Data(seed=0), lambda step, **numbers: print(step, numbers))
