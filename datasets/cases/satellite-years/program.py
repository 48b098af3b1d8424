"""Learn from forty years of satellite pictures how land is used, tile by tile."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

TILES = 64  # of each year's file
YEARS = 40


class Tiles(Dataset):
    """One file a year; the one that was read last stays open."""

    def __init__(self):
        self.year, self.file = None, None

    def __len__(self):
        return YEARS * TILES

    def __getitem__(self, index):
        year, number = divmod(index, TILES)
        if year != self.year:
            self.year, self.file = year, unpack(year)
        return self.file[number % len(self.file)], index % 12


def unpack(year):
    """Read a year's file; its tiles are compressed together."""
    return torch.full((4, 6, 96, 96), year / YEARS)


class LandUse(nn.Module):
    def __init__(self, width=192, classes=12):
        super().__init__()
        self.start = nn.Conv2d(6, width, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(10))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = F.relu(self.start(x))
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return self.head(x.mean(dim=(2, 3)))


def main():
    device = torch.device("cuda")
    loader = DataLoader(
        Tiles(),
        batch_size=64,
        shuffle=True,
        num_workers=8,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=2,
    )
    model = LandUse().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    running = torch.zeros((), device=device)

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=15, warmup=1, active=8),
        with_stack=True,
    ) as prof:
        for step, (tiles, uses) in enumerate(loader):
            tiles = tiles.to(device, non_blocking=True)
            uses = uses.to(device, non_blocking=True)
            loss = F.cross_entropy(model(tiles), uses)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running = torch.lerp(running, loss.detach(), 0.05)
            if step % 20 == 19:
                print(f"{step}: {running.item():.3f}")
            prof.step()


if __name__ == "__main__":
    main()
