"""Trains the forecaster as the Elman network that it is, by PyTorch's own recurrence."""

import os

import torch
from recipe import LOG_EVERY, WIDTH, Cell, Data
from torch.nn import functional as F


def forecast(cell, readings):
    """What the next readings will be: (batch, TICKS, SENSORS) to the same."""
    start = torch.zeros(1, len(readings), WIDTH, device=readings.device)
    weights = [cell.read.weight, cell.carry.weight, cell.read.bias, cell.carry.bias]
    with torch.backends.cudnn.flags(enabled=False):  # plain float32 as before, no TF32
        hidden, _ = torch.rnn_tanh(
            readings,
            start,
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=cell.training,
            bidirectional=False,
            batch_first=True,
        )
    return cell.head(hidden)


class Meter:
    """Mean of what it has been given since it was last read; holds numbers only."""

    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value.detach())

    def read(self):
        values, self.values = torch.stack(self.values).tolist(), []
        return values


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model; reports every LOG_EVERY steps."""
    cell = Cell().to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1, momentum=0.9)
    probe, probe_wanted = (part.to(device) for part in data.held_out())
    losses, held_out, best = Meter(), Meter(), float("inf")
    for step, (readings, wanted) in enumerate(data.batches(), 1):
        loss = F.mse_loss(forecast(cell, readings.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.add(loss)
        with torch.no_grad():
            held_out.add(F.mse_loss(forecast(cell, probe), probe_wanted))
        if step % LOG_EVERY == 0:
            mine, theirs = losses.read(), held_out.read()
            best = min(best, *theirs)
            log(step, loss=sum(mine) / len(mine), held_out=sum(theirs) / len(theirs), best=best)
    return cell


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
