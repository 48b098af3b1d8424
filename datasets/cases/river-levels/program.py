"""Predict river levels a week ahead with a temporal convolutional network."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class Residual(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, 2 * width, 3, dilation=dilation)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x):
        y = F.glu(self.conv(F.pad(x, (self.pad, 0))), dim=1)
        return x + self.out(y)


class LevelNet(nn.Module):
    def __init__(self, gauges=48, width=384, layers=8, horizon=7):
        super().__init__()
        self.start = nn.Conv1d(gauges, width, 1)
        self.body = nn.Sequential(*(Residual(width, 2**n) for n in range(layers)))
        self.end = nn.Conv1d(width, gauges * horizon, 1)

    def forward(self, levels):
        return self.end(self.body(self.start(levels)))[:, :, -1]


def main():
    device = torch.device("cuda")
    model = LevelNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    levels = torch.randn(96, 48, 1024, device=device)
    later = torch.randn(96, 48 * 7, device=device)
    smoothed = torch.zeros((), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=6), with_stack=True) as prof:
        for step in range(3_000):
            prediction = model(levels)
            loss = F.l1_loss(prediction, later)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            smoothed = torch.lerp(smoothed, loss.detach(), 0.02)
            if step % 200 == 199:
                print(f"{step}: {smoothed.item():.4f}")
            prof.step()


if __name__ == "__main__":
    main()
