"""Train the ensemble; log how well its members do, and how far they disagree, every
LOG_EVERY steps.
"""

import os

import torch
from recipe import LOG_EVERY, MEMBERS, Data, Ensemble


def predict(ensemble, member, features):
    """One member's predictions: features (batch, FEATURES) to (batch,)."""
    hidden = features @ ensemble.up[member] + ensemble.up_bias[member]
    mean = hidden.mean(-1, keepdim=True)
    variance = ((hidden - mean) ** 2).mean(-1, keepdim=True)
    hidden = (hidden - mean) / torch.sqrt(variance + 1e-5) * ensemble.scale[member]
    hidden = hidden * torch.sigmoid(hidden)
    return (hidden @ ensemble.down[member] + ensemble.down_bias[member]).squeeze(-1)


def train(device, data, log):
    """Train on every batch of `data` in turn and return the ensemble.

    Call `log(step, loss=…, spread=…)` after every LOG_EVERY steps, with plain numbers, for the last
    batch: the sum of the members' losses, and the mean over the samples of the standard deviation
    between members.
    """
    ensemble = Ensemble().to(device)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.05, momentum=0.9)
    for step, (features, wanted, shares) in enumerate(data.batches(), 1):
        features, wanted, shares = features.to(device), wanted.to(device), shares.to(device)
        losses, predictions = [], []
        for member in range(MEMBERS):
            prediction = predict(ensemble, member, features)
            share = shares[:, member]
            losses.append((share * (prediction - wanted) ** 2).sum() / share.sum())
            predictions.append(prediction)
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            spread = torch.stack(predictions).std(0).mean()
            log(step, loss=loss.item(), spread=spread.item())
    return ensemble


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
