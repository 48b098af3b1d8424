"""Restore mosaics: colour what is missing, and compare on the conservators' own metric."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class Painter(nn.Module):
    def __init__(self, width=48, depth=5):
        super().__init__()
        self.start = nn.Conv2d(4, width, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.colour = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        x = F.relu(self.start(x))
        for layer in self.body:
            x = x + F.relu(layer(x))
        return torch.sigmoid(self.colour(x))


class ConservatorsMetric(nn.Module):
    """Colour differences weighed by how far a tile is from the gap."""

    def __init__(self, size):
        super().__init__()
        distance = torch.linspace(0, 1, size).view(1, 1, 1, size)
        self.register_buffer("weights", torch.exp(-3 * distance))

    def forward(self, painted, original):
        return ((painted - original).abs() * self.weights).mean()


def main():
    device = torch.device("cuda")
    model = Painter().to(device, memory_format=torch.channels_last)
    metric = ConservatorsMetric(384)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mosaics = torch.rand(24, 4, 384, 384, device=device)
    mosaics = mosaics.to(memory_format=torch.channels_last)
    original = torch.rand(24, 3, 384, 384)
    quality = []

    with profile(schedule=schedule(wait=1, warmup=1, active=6), with_stack=True) as prof:
        for step in range(4_000):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                painted = model(mosaics)
            loss = F.l1_loss(painted, mosaics[:, :3])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                quality.append(metric(painted.detach().float().cpu(), original))
            if step % 100 == 99:
                print(f"{step + 1}: {torch.stack(quality[-100:]).mean():.4f}")
            prof.step()


if __name__ == "__main__":
    main()
