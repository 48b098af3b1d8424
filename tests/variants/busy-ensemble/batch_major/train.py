"""Train the ensemble; log how well its members do, and how far they disagree, every LOG_EVERY steps."""

import os

import torch
from recipe import FEATURES, LOG_EVERY, MEMBERS, WIDTH, Data, Ensemble
from torch.nn import functional as F


def train(device, data, log):
    """Train on every batch of `data` in turn and return the ensemble.

    All batches are put on the device in one copy before the first step; a step takes slices of them, which launch nothing.
    """
    ensemble = Ensemble().to(device)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.05, momentum=0.9)

    rows = [
        torch.cat([features, wanted[:, None], shares], 1)
        for features, wanted, shares in data.batches()
    ]
    sizes = [len(part) for part in rows]
    table = torch.cat(rows).to(device)

    for step, batch in enumerate(table.split(sizes), 1):
        features, wanted, shares = batch.split([FEATURES, 1, MEMBERS], 1)
        # (batch, MEMBERS, WIDTH) throughout: one product with all members' first layers side by side
        hidden = features @ ensemble.up.permute(1, 0, 2).reshape(FEATURES, MEMBERS * WIDTH)
        hidden = hidden.view(-1, MEMBERS, WIDTH) + ensemble.up_bias
        hidden = F.silu(F.layer_norm(hidden, [WIDTH]) * ensemble.scale)
        # the second layer has one output: multiply and add up
        predictions = (hidden * ensemble.down.squeeze(-1)).sum(-1) + ensemble.down_bias.squeeze(-1)
        weights = shares / shares.sum(0)
        loss = (weights * (predictions - wanted) ** 2).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            loss, spread = torch.stack([loss.detach(), predictions.detach().std(1).mean()]).tolist()
            log(step, loss=loss, spread=spread)
    return ensemble


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
