"""Train the ensemble; log how well its members do, and how far they disagree, every LOG_EVERY
steps.
"""

import os

import torch
from recipe import BATCH, LOG_EVERY, MEMBERS, Data, Ensemble
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset


def predict(ensemble, features):
    """All members' predictions: features (batch, FEATURES) to (MEMBERS, batch)."""
    batches = features.expand(MEMBERS, -1, -1)
    hidden = torch.baddbmm(ensemble.up_bias.unsqueeze(1), batches, ensemble.up)
    hidden = F.silu(F.layer_norm(hidden, hidden.shape[-1:]) * ensemble.scale.unsqueeze(1))
    return torch.baddbmm(ensemble.down_bias.unsqueeze(1), hidden, ensemble.down).squeeze(-1)


def train(device, data, log):
    """Train on every batch of `data` in turn and return the ensemble.

    Call `log(step, loss=…, spread=…)` after every LOG_EVERY steps, with plain numbers, for the last
    batch: the sum of the members' losses, and the mean over the samples of the standard deviation
    between members.
    """
    samples = TensorDataset(data.features, data.wanted, data.shares)
    sampler = BatchSampler(SequentialSampler(samples), BATCH, drop_last=False)
    ensemble = Ensemble().to(device)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.05, momentum=0.9, fused=True)
    # Each index that the sampler yields is a whole batch, so one indexing gets it.
    for step, batch in enumerate(DataLoader(samples, sampler=sampler, batch_size=None), 1):
        features, wanted, shares = batch
        weights = (shares / shares.sum(0)).T  # on the host, which launches nothing for it
        features, wanted, weights = (each.to(device) for each in (features, wanted, weights))
        predictions = predict(ensemble, features)
        loss = (weights * (predictions - wanted) ** 2).sum()
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
