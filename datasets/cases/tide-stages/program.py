"""Train a tide model, and time every stage of it for the weekly review."""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule

HARBOURS = 100


class Tides(nn.Module):
    def __init__(self, inputs=64, width=2048, depth=6):
        super().__init__()
        sizes = [inputs] + [width] * depth
        self.trunk = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.neck = nn.Linear(width, 96)
        self.harbours = nn.ModuleList(nn.Linear(96, 1) for _ in range(HARBOURS))

    def body(self, x):
        for layer in self.trunk:
            x = F.gelu(layer(x))
        return self.neck(x)

    def levels(self, x):
        return torch.cat([harbour(x) for harbour in self.harbours], dim=1)


class Stages:
    def __init__(self):
        self.seconds = {}

    def stop(self, name, since):
        torch.cuda.synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - since
        return time.perf_counter()


def main():
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    model, stages = Tides().to(device), Stages()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    moons = torch.randn(24_576, 64, device=device)
    tides = torch.randn(24_576, HARBOURS, device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=5), with_stack=True) as prof:
        for step in range(4_000):
            now = time.perf_counter()
            hidden = model.body(moons)
            now = stages.stop("body", now)
            levels = model.levels(hidden)
            now = stages.stop("levels", now)
            loss = F.mse_loss(levels, tides)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            now = stages.stop("backward", now)
            optimizer.step()
            stages.stop("update", now)
            if step % 500 == 499:
                print({name: round(value, 1) for name, value in stages.seconds.items()})
            prof.step()


if __name__ == "__main__":
    main()
