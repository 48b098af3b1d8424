"""Train the forecaster and watch how it does on readings that it is not trained on."""

import os

import torch
from recipe import LOG_EVERY, WIDTH, Cell, Data
from torch.func import functional_call, grad_and_value
from torch.nn import functional as F


class Forecaster(torch.nn.Module):
    """The cell over all ticks. What is read does not depend on the state, so that part is one
    product for all ticks.
    """

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, readings, wanted):
        read = self.cell.read(readings).unbind(1)
        hidden = readings.new_zeros(len(readings), WIDTH)
        states = [hidden := torch.tanh(now + self.cell.carry(hidden)) for now in read]
        return F.mse_loss(self.cell.head(torch.stack(states, 1)), wanted)


class Running:
    """Mean and lowest of the numbers it has been given, on the device, in two numbers' memory."""

    def __init__(self, device):
        self.total = torch.zeros((), device=device)
        self.lowest = torch.full((), float("inf"), device=device)

    def add(self, number):
        self.total.add_(number)
        torch.minimum(self.lowest, number, out=self.lowest)

    def mean(self):
        mean = self.total.item() / LOG_EVERY
        self.total.zero_()
        return mean


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model."""
    cell = Cell().to(device)
    model = Forecaster(cell)
    # The cell's own memory.
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    velocity = [torch.zeros_like(weight) for weight in weights.values()]
    step_of = grad_and_value(lambda weights, *batch: functional_call(model, weights, batch))
    probe = [part.to(device) for part in data.held_out()]
    training, watched = Running(device), Running(device)
    with torch.no_grad():
        for step, batch in enumerate(data.batches(), 1):
            slopes, loss = step_of(weights, *(part.to(device) for part in batch))
            torch._foreach_mul_(velocity, 0.9)
            torch._foreach_add_(velocity, list(slopes.values()))
            torch._foreach_add_(list(weights.values()), velocity, alpha=-0.1)
            training.add(loss)
            watched.add(model(*probe))
            if step % LOG_EVERY == 0:
                log(step, loss=training.mean(), held_out=watched.mean(), best=watched.lowest.item())
    return cell


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
