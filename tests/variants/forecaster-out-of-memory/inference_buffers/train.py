"""Trains the forecaster; what only watches works in buffers that are allocated once."""

import os

import torch
from recipe import LOG_EVERY, TICKS, WIDTH, Cell, Data
from torch.nn import functional as F


def forecast(cell, readings):
    """What the next readings will be: (batch, TICKS, SENSORS) to the same."""
    hidden = readings.new_zeros(len(readings), WIDTH)
    states = []
    for tick in range(TICKS):
        hidden = cell(readings.select(1, tick), hidden)
        states.append(hidden)
    return cell.head(torch.stack(states, 1))


class Watcher:
    """Evaluates a cell on one fixed batch, under inference mode and without allocating states."""

    def __init__(self, cell, readings, wanted):
        self.cell = cell
        self.readings = readings.transpose(0, 1).contiguous().flatten(0, 1)  # ticks first
        self.wanted = wanted.transpose(0, 1).contiguous().flatten(0, 1)
        self.batch = len(readings)
        self.states = readings.new_zeros(TICKS + 1, self.batch, WIDTH)  # the first stays zero

    @torch.inference_mode()
    def __call__(self):
        read, carry, head = self.cell.read, self.cell.carry, self.cell.head
        rows = self.states[1:].flatten(0, 1)
        torch.addmm(read.bias + carry.bias, self.readings, read.weight.t(), out=rows)
        for before, after in zip(self.states[:-1].unbind(), self.states[1:].unbind(), strict=True):
            after.addmm_(before, carry.weight.t()).tanh_()
        return F.mse_loss(head(rows), self.wanted)


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model; reports every LOG_EVERY steps."""
    cell = Cell().to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1, momentum=0.9)
    watch = Watcher(cell, *(part.to(device) for part in data.held_out()))
    best = float("inf")
    sums = []
    for step, (readings, wanted) in enumerate(data.batches(), 1):
        optimizer.zero_grad()
        loss = F.mse_loss(forecast(cell, readings.to(device)), wanted.to(device))
        loss.backward()
        optimizer.step()
        sums += [loss.detach(), watch()]
        if step % LOG_EVERY == 0:
            losses, watched = torch.stack(sums).view(-1, 2).unbind(1)
            best = min(best, watched.min().item())
            log(step, loss=losses.mean().item(), held_out=watched.mean().item(), best=best)
            sums = []
    return cell


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
