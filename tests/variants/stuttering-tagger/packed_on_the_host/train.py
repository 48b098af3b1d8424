"""Trains the tagger and reports loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, LONGEST, Data, Tagger
from torch.nn import functional as F


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
    for step, (tokens, tags, lengths) in enumerate(data.batches(), 1):
        mask = torch.arange(LONGEST) < lengths[:, None]  # on the host, where the lengths are known
        tokens, tags = tokens[mask], tags[mask]  # every token is tagged by itself: no padding has to travel
        seen += len(tokens)
        tokens, tags = (part.pin_memory().to(device, non_blocking=True) for part in (tokens, tags))

        scores = model(tokens)
        loss = F.cross_entropy(scores, tags)
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
