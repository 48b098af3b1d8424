"""Index portraits for the search: embed them, and draw a map of each batch now and then."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset


class Portraits(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.open(index)

    def open(self, index):
        return torch.zeros(3, 224, 224, dtype=torch.uint8)


class FaceNet(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        self.layers, last = nn.ModuleList(), 3
        for width in widths:
            self.layers.append(nn.Conv2d(last, width, 3, stride=2, padding=1))
            self.layers.append(nn.Conv2d(width, width, 3, padding=1))
            last = width
        self.embed = nn.Linear(last, 256)

    def forward(self, images):
        x = images
        for layer in self.layers:
            x = F.silu(layer(x))
        return F.normalize(self.embed(x.mean(dim=(2, 3)))), x


class Archive:
    """Keeps vectors until they are written, and maps, the first of each batch to draw."""

    def __init__(self):
        self.vectors, self.maps = [], []

    def add(self, vectors, maps):
        self.vectors.append(vectors.cpu())
        self.maps.append(maps.float().cpu())


@torch.inference_mode()
def main():
    device = torch.device("cuda")
    model = FaceNet().to(device, torch.bfloat16).to(memory_format=torch.channels_last).eval()
    loader = DataLoader(Portraits(), batch_size=256, num_workers=8, pin_memory=True)
    archive = Archive()
    with profile(schedule=schedule(wait=1, warmup=1, active=6), with_stack=True) as prof:
        for number, images in enumerate(loader):
            images = images.to(device, non_blocking=True)
            images = images.to(torch.bfloat16, memory_format=torch.channels_last) / 255
            vectors, maps = model(images)
            archive.add(vectors, maps)
            if number % 100 == 99:
                print(f"{256 * (number + 1)} portraits")
            prof.step()


if __name__ == "__main__":
    main()
