"""Learn to tell choirs of birds apart: every frame against frames of the batches before."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule

NEGATIVES = 2  # batches of the past that a frame is compared with


class Encoder(nn.Module):
    def __init__(self, bands=80, width=512, out=1024, layers=4):
        super().__init__()
        self.start = nn.Conv1d(bands, width, 5, padding=2)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 9, padding=4) for _ in range(layers))
        self.end = nn.Conv1d(width, out, 1)

    def forward(self, x):
        x = F.gelu(self.start(x))
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return F.normalize(self.end(x), dim=1)


class Bank:
    """Frames of past batches."""

    def __init__(self):
        self.frames = []

    def add(self, frames):
        self.frames.append(frames.detach())

    def recent(self):
        return torch.cat(self.frames[-NEGATIVES:])


def contrast(ours, theirs, bank):
    """Every frame should be like itself in the other view, and unlike those of the bank."""
    same = (ours * theirs).sum(1).mean()
    others = torch.einsum("bct,bct->bt", ours, bank.recent()[: len(ours)]).exp().mean()
    return others.log() - same


def main():
    device = torch.device("cuda")
    encoder = Encoder().to(device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
    sounds = torch.randn(4, 2, 64, 80, 768, device=device)
    bank = Bank()
    smoothed = torch.zeros((), device=device)
    curve = []

    with profile(
        schedule=schedule(wait=1, warmup=1, active=10), profile_memory=True, with_stack=True
    ) as prof:
        for step in range(12_000):
            first, second = sounds[step % len(sounds)]
            ours, theirs = encoder(first), encoder(second)
            bank.add(theirs)
            loss = contrast(ours, theirs, bank)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            smoothed = torch.lerp(smoothed, loss.detach(), 0.02)
            curve.append(smoothed)
            if step % 200 == 199:
                print(f"{step}: {torch.stack(curve[-200:]).mean().item():.3f}")
            prof.step()


if __name__ == "__main__":
    main()
