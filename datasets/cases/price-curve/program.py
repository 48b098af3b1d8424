"""Forecast the prices of eighty goods with one trunk and a head for each."""

import torch
from torch import nn
from torch.profiler import profile, record_function, schedule

GOODS = 80


class GatedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.both = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + nn.functional.glu(self.both(x), dim=-1))


class Forecaster(nn.Module):
    def __init__(self, inputs=96, width=2048, depth=6, horizon=24):
        super().__init__()
        self.start = nn.Linear(inputs, width)
        self.trunk = nn.Sequential(*(GatedBlock(width) for _ in range(depth)))
        self.bottle = nn.Linear(width, 128)
        self.heads = nn.ModuleList(nn.Linear(128, horizon) for _ in range(GOODS))

    def forward(self, x):
        x = self.bottle(self.trunk(torch.relu(self.start(x))))
        return [head(x) for head in self.heads]


class Journal:
    """Averages of what is worth looking at."""

    def __init__(self):
        self.sums, self.counts = {}, {}

    def note(self, name, value):
        self.sums[name] = self.sums.get(name, 0.0) + value
        self.counts[name] = self.counts.get(name, 0) + 1

    def show(self):
        worst = max(self.sums, key=lambda name: self.sums[name] / self.counts[name])
        return f"{worst}: {self.sums[worst] / self.counts[worst]:.4f}"


def main():
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    model = Forecaster().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    criterion = nn.HuberLoss()
    history = torch.randn(100_000, 96, device=device)
    future = torch.randn(GOODS, 100_000, 24, device=device)
    journal = Journal()

    with profile(schedule=schedule(wait=2, warmup=2, active=3), with_stack=True) as prof:
        for step in range(5_000):
            with record_function("sample"):
                rows = torch.randint(100_000, (16384,), device=device)
                x, y = history.index_select(0, rows), future.index_select(1, rows)
            with record_function("forward"):
                total = torch.zeros((), device=device)
                for number, forecast in enumerate(model(x)):
                    loss = criterion(forecast, y[number])
                    journal.note(f"good {number}", loss.item())
                    total = total + loss
            with record_function("backward"):
                optimizer.zero_grad()
                total.backward()
            with record_function("update"):
                optimizer.step()
            if step % 100 == 99:
                print(step, journal.show())
            prof.step()


if __name__ == "__main__":
    main()
