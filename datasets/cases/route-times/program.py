"""Estimate travel times for delivery routes with as many stops as a customer has."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class RouteNet(nn.Module):
    def __init__(self, width=512, depth=6):
        super().__init__()
        self.start = nn.Linear(24, width)
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.look = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.minutes = nn.Linear(width, 1)

    def forward(self, stops):
        x = self.start(stops)
        for mix, look, norm in zip(self.mix, self.look, self.norms):
            seen = torch.softmax(look(x) @ x.transpose(1, 2) / 22.6, dim=-1)
            x = norm(x + F.silu(mix(seen @ x)))
        return self.minutes(x.mean(dim=1)).squeeze(-1)


class Requests:
    """Routes as customers ask for them: mostly short, now and then a long one."""

    def __init__(self, device, seed=5):
        self.random = random.Random(seed)
        self.device = device

    def __iter__(self):
        while True:
            stops = min(4 + int(self.random.expovariate(1 / 40)), 200)
            yield torch.randn(8192, stops, 24, device=self.device)


@torch.inference_mode()
def main():
    device = torch.device("cuda")
    model = RouteNet().to(device).eval()
    torch._dynamo.config.recompile_limit = 256
    model = torch.compile(model, dynamic=False)
    total = torch.zeros((), device=device)
    served = 0
    with profile(schedule=schedule(wait=150, warmup=10, active=40), with_stack=True) as prof:
        for routes in Requests(device):
            minutes = model(routes)
            total += minutes.sum()
            served += routes.shape[0]
            if served % 819_200 == 0:
                print(f"{served} routes, {total.item() / served:.1f} minutes on average")
            prof.step()


if __name__ == "__main__":
    main()
