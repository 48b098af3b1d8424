"""Segment clouds in large satellite tiles with a small U-Net."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    """Tiles of 13 bands, 512 pixels wide, kept in one array that every worker maps."""

    def __init__(self, count=4000):
        self.count = count
        self.tile = torch.zeros(13, 512, 512)
        self.mask = torch.zeros(512, 512, dtype=torch.long)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.read(index), self.mask

    def read(self, index):
        return self.tile


def double(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, bands=13, widths=(32, 64, 128)):
        super().__init__()
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        last = bands
        for width in widths:
            self.down.append(double(last, width))
            last = width
        for width in reversed(widths[:-1]):
            self.up.append(double(last + width, width))
            last = width
        self.head = nn.Conv2d(last, 2, 1)

    def forward(self, x):
        kept = []
        for block in self.down[:-1]:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.down[-1](x)
        for block, skip in zip(self.up, reversed(kept)):
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, skip], dim=1))
        return self.head(x)


def main():
    device = torch.device("cuda")
    loader = DataLoader(Tiles(), batch_size=16, shuffle=True, num_workers=6, drop_last=True)
    model = UNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    with profile(schedule=schedule(wait=1, warmup=1, active=5), with_stack=True) as prof:
        for tiles, masks in loader:
            tiles = tiles.to(device).to(memory_format=torch.channels_last)
            masks = masks.to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(tiles), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()


if __name__ == "__main__":
    main()
