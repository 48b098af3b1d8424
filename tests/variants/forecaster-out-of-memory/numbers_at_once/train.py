"""Train the forecaster and watch how it does on readings that it is not trained on."""

import os

import torch
from recipe import LOG_EVERY, TICKS, WIDTH, Cell, Data
from torch.nn import functional as F


def forecast(cell, readings):
    """What the next readings will be: (batch, TICKS, SENSORS) to the same."""
    hidden = [torch.zeros(len(readings), WIDTH, device=readings.device)]
    for tick in range(TICKS):
        hidden.append(cell(readings[:, tick], hidden[-1]))
    return cell.head(torch.stack(hidden[1:], 1))


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model.

    Call `log(step, loss=…, held_out=…, best=…)` after every LOG_EVERY steps, with plain numbers: the mean loss of those
    steps in training and on the held-out batch, and the best held-out loss of the whole run so far.
    """
    cell = Cell().to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1, momentum=0.9)
    probe, probe_wanted = (part.to(device) for part in data.held_out())
    losses, held_out, best = [], [], float("inf")
    for step, (readings, wanted) in enumerate(data.batches(), 1):
        loss = F.mse_loss(forecast(cell, readings.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        losses.append(loss.item())
        with torch.no_grad():  # nothing is learnt from these readings: no graph to keep
            held_out.append(F.mse_loss(forecast(cell, probe), probe_wanted).item())
        if step % LOG_EVERY == 0:
            best = min(best, *held_out)
            log(step, loss=sum(losses) / LOG_EVERY, held_out=sum(held_out) / LOG_EVERY, best=best)
            losses, held_out = [], []
    return cell


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
