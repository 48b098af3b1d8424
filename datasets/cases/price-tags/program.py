"""Serve a price model: answer requests as they come, one after the other."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class PriceNet(nn.Module):
    def __init__(self, features=200, width=1024, depth=12):
        super().__init__()
        self.start = nn.Linear(features, width)
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.price = nn.Linear(width, 1)

    def forward(self, x):
        x = F.relu(self.start(x))
        for up, down, norm in zip(self.up, self.down, self.norms):
            x = norm(x + down(F.relu(up(x))))
        return self.price(x)


class Queue:
    """Requests that have come in, oldest first; there are always some."""

    def __init__(self, features=200):
        self.features = features

    def take(self, count):
        return [torch.zeros(self.features) for _ in range(count)]


@torch.inference_mode()
def answer(model, requests, device):
    replies = []
    for request in requests:
        x = request.unsqueeze(0).to(device)
        replies.append(model(x).item())
    return replies


def main():
    device = torch.device("cuda")
    model = PriceNet().to(device).eval()
    queue = Queue()
    with profile(schedule=schedule(wait=2, warmup=1, active=4), with_stack=True) as prof:
        for round_ in range(2_000):
            replies = answer(model, queue.take(16), device)
            if round_ % 100 == 99:
                print(f"{16 * (round_ + 1)} prices, the last {replies[-1]:.2f}")
            prof.step()


if __name__ == "__main__":
    main()
