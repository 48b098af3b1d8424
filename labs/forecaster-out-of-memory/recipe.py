"""The model and its data: a recurrent forecaster of sensor readings. Not to be edited."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SENSORS, TICKS, WIDTH = 8, 10, 128
BATCH, STEPS, LOG_EVERY = 64, 60, 10


class Cell(nn.Module):
    """One tick: readings (batch, SENSORS) and a hidden state (batch, WIDTH) to the next hidden
    state.
    """

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(SENSORS, WIDTH)
        self.carry = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, SENSORS)

    def forward(self, readings, hidden):
        return torch.tanh(self.read(readings) + self.carry(hidden))


class Data:
    """Waves of different pitch and phase, with noise; `seed` decides which. The sensors wear: what
    they read grows noisier towards the end.
    """

    def __init__(self, seed, steps=STEPS):
        rng = torch.Generator().manual_seed(seed)
        count = (steps + 1) * BATCH
        ticks = torch.arange(TICKS + 1.0)[None, :, None]
        pitch, phase = (torch.rand(count, 1, SENSORS, generator=rng) for _ in range(2))
        noise = torch.randn(count, TICKS + 1, SENSORS, generator=rng)
        wear = torch.linspace(0, 1, count)[:, None, None] ** 4
        wear[-BATCH:] = 0  # the held-out batch is of new sensors
        self.readings = torch.sin(ticks * (0.2 + pitch) + 6.28 * phase) + (0.05 + 2 * wear) * noise

    def batches(self, pin_memory=False):
        """Batches of (readings, wanted), both (BATCH, TICKS, SENSORS): `wanted` is one tick ahead.

        With `pin_memory`, a thread of the loader pins them ahead.
        """
        readings = self.readings[:-BATCH]
        dataset = TensorDataset(readings[:, :-1], readings[:, 1:])
        return DataLoader(dataset, BATCH, num_workers=int(pin_memory), pin_memory=pin_memory)

    def held_out(self):
        """One batch (readings, wanted) that is never trained on."""
        readings = self.readings[-BATCH:]
        return readings[:, :-1], readings[:, 1:]
