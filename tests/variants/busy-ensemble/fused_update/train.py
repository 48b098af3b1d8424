"""Train the ensemble; log how well its members do, and how far they disagree, every LOG_EVERY
steps.
"""

import os

import torch
from recipe import LOG_EVERY, WIDTH, Data, Ensemble
from torch.nn import functional as F


def predict(ensemble, features):
    """All members' predictions at once: features (batch, FEATURES) to (MEMBERS, batch)."""
    # Shape: (MEMBERS, batch, WIDTH).
    hidden = torch.matmul(features, ensemble.up) + ensemble.up_bias[:, None]
    hidden = F.layer_norm(hidden, (WIDTH,)) * ensemble.scale[:, None]
    return (torch.bmm(F.silu(hidden), ensemble.down) + ensemble.down_bias[:, None]).squeeze(-1)


def train(device, data, log):
    """Train on every batch of `data` in turn and return the ensemble.

    Call `log(step, loss=…, spread=…)` after every LOG_EVERY steps, with plain numbers, for the last
    batch: the sum of the members' losses, and the mean over the samples of the standard deviation
    between members.
    """
    ensemble = Ensemble().to(device)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.05, momentum=0.9, fused=True)
    for step, (features, wanted, shares) in enumerate(data.batches(pin_memory=True), 1):
        features, wanted, shares = (
            part.to(device, non_blocking=True) for part in (features, wanted, shares)
        )
        predictions = predict(ensemble, features)
        losses = (shares.T * (predictions - wanted) ** 2).sum(-1) / shares.sum(0)
        loss = losses.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            log(step, loss=loss.item(), spread=predictions.std(0).mean().item())
    return ensemble


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
