"""Read handwritten postcodes on three GPUs; each rank takes every third tray."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset, Subset


class Trays(Dataset):
    """Trays of 256 scanned letters; the three machines fill them in turn, each with its format."""

    formats = (96, 160, 320)

    def __init__(self, count=2_997):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.scan(index), torch.zeros(256, dtype=torch.long)

    def scan(self, index):
        return torch.zeros(256, 1, 64, self.formats[index % 3])


class Reader(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        layers, last = [], 1
        for width in widths:
            layers += [nn.Conv2d(last, width, 3, padding=1), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU(inplace=True)]
            last = width
        self.features = nn.Sequential(*layers)
        self.code = nn.Linear(last, 10)

    def forward(self, images):
        return self.code(self.features(images).mean(dim=(2, 3)))


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", 0)
    trays = Trays()
    mine = Subset(trays, range(rank, len(trays), world))
    loader = DataLoader(mine, batch_size=None, num_workers=8, pin_memory=True)
    model = DistributedDataParallel(Reader().to(device), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with profile(schedule=schedule(wait=2, warmup=1, active=6)) as prof:
        for images, codes in loader:
            images = images.to(device, non_blocking=True)
            images = images.contiguous(memory_format=torch.channels_last)
            codes = codes.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(images), codes)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            prof.step()


if __name__ == "__main__":
    main()
