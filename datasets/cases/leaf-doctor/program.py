"""Classify photographs of leaves by disease: a residual network, a few epochs over a small set."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset

CLASSES = 38


class Leaves(Dataset):
    """640 photographs, a hundred for every epoch's quick look and all of them at night."""

    def __init__(self, count=640):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.augment(self.decode(index)), index % CLASSES

    def decode(self, index):
        return torch.full((3, 160, 160), index % 255, dtype=torch.uint8)

    def augment(self, image):
        return image.flip(-1) if image[0, 0, 0] % 2 else image


class Block(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.short = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        return F.relu(y + self.short(x), inplace=True)


class LeafNet(nn.Module):
    def __init__(self, widths=(128, 256, 512, 1024)):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        blocks, width = [], widths[0]
        for out in widths:
            blocks += [Block(width, out, 2), Block(out, out, 1)]
            width = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images):
        x = self.blocks(F.relu(self.stem(images)))
        return self.head(x.mean(dim=(2, 3)))


def main(epochs=10):
    device = "cuda"
    loader = DataLoader(
        Leaves(),
        batch_size=128,
        shuffle=True,
        num_workers=8,
        pin_memory=True,
        drop_last=True,
    )
    model = LeafNet().to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    with profile(schedule=schedule(wait=5, warmup=5, active=10), with_stack=True) as prof:
        for epoch in range(epochs):
            for images, labels in loader:
                images = images.to(device, non_blocking=True)
                images = images.to(memory_format=torch.channels_last).float().div_(255)
                labels = labels.to(device, non_blocking=True)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                prof.step()
            print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
