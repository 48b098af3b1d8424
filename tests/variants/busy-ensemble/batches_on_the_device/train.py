"""Train the ensemble; log how well its members do, and how far they disagree, every
LOG_EVERY steps.
"""

import os

import torch
from recipe import LOG_EVERY, MEMBERS, WIDTH, Data, Ensemble
from torch.nn import functional as F
from torch.utils.data import DataLoader


def predict(ensemble, features):
    """All members' predictions at once: features (batch, FEATURES) to (MEMBERS, batch)."""
    each = features.expand(MEMBERS, -1, -1)
    hidden = torch.baddbmm(ensemble.up_bias[:, None], each, ensemble.up)
    hidden = F.silu(F.layer_norm(hidden, (WIDTH,)) * ensemble.scale[:, None])
    return torch.baddbmm(ensemble.down_bias[:, None], hidden, ensemble.down).squeeze(-1)


def ready(batches, device):
    """Every batch on the device, weighted so that a member's loss is a plain squared error: the
    features, the roots of the shares of each member's whole, and what is wanted times these.
    """
    for features, wanted, shares in batches:
        roots = (shares / shares.sum(0)).sqrt().T.contiguous()
        yield features.to(device), roots.to(device), (roots * wanted).to(device)


def train(device, data, log):
    """Train on every batch of `data` in turn and return the ensemble.

    Call `log(step, loss=…, spread=…)` after every LOG_EVERY steps, with plain numbers, for the last
    batch: the sum of the members' losses, and the mean over the samples of the standard deviation
    between members.
    """
    ensemble = Ensemble().to(device)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.05, momentum=0.9, fused=True)
    batches = DataLoader(list(ready(data.batches(), device)), batch_size=None)
    for step, (features, roots, wanted) in enumerate(batches, 1):
        predictions = predict(ensemble, features)
        loss = F.mse_loss(roots * predictions, wanted, reduction="sum")
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
