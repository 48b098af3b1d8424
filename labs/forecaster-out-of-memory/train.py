"""Train the forecaster and watch how it does on readings that it is not trained on."""

import os

import torch
from recipe import LOG_EVERY, TICKS, WIDTH, Cell, Data
from torch.nn import functional as F


class State:
    """The hidden state after a tick, linked to the ticks before and after it."""

    def __init__(self, hidden, previous=None):
        self.hidden = hidden
        self.previous = previous
        self.next = None
        if previous is not None:
            previous.next = self


def forecast(cell, readings):
    """Predict the next readings: (batch, TICKS, SENSORS) to the same."""
    first = State(torch.zeros(len(readings), WIDTH, device=readings.device))
    state = first
    for tick in range(TICKS):
        state = State(cell(readings[:, tick], state.hidden), previous=state)
    hidden, state = [], first.next
    while state is not None:
        hidden.append(state.hidden)
        state = state.next
    return cell.head(torch.stack(hidden, 1))


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model.

    Call `log(step, loss=…, held_out=…, best=…)` after every LOG_EVERY steps, with plain numbers:
    the mean loss of those steps in training and on the held-out batch, and the best held-out loss
    of the whole run so far.
    """
    cell = Cell().to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1, momentum=0.9)
    probe, probe_wanted = (part.to(device) for part in data.held_out())
    losses, held_out = [], []
    for step, (readings, wanted) in enumerate(data.batches(), 1):
        loss = F.mse_loss(forecast(cell, readings.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        losses.append(loss)
        held_out.append(F.mse_loss(forecast(cell, probe), probe_wanted))
        if step % LOG_EVERY == 0:
            log(
                step,
                loss=torch.stack(losses[-LOG_EVERY:]).mean().item(),
                held_out=torch.stack(held_out[-LOG_EVERY:]).mean().item(),
                best=torch.stack(held_out).min().item(),
            )
    return cell


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
