"""The model, its data, and how long it is trained. Not part of the task: `train.py` is.

torchrun --nproc-per-node 4 train.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import silu

MICRO_BATCHES = 3  # an optimizer step sees this many micro-batches on every rank
IMAGES = 56  # images a micro-batch and rank
SIZE = 224  # pixels a side
CLASSES = 1000
STEPS = 30


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, added to the input: N x C x H x W -> N x 4*width x H/stride x
    W/stride.
    """

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        # A block starts as the identity: the usual recipe for large batches
        nn.init.zeros_(self.bn3.weight)
        self.shortcut = None
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        y = silu(self.bn1(self.conv1(x)))
        y = silu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return silu(y + (x if self.shortcut is None else self.shortcut(x)))


def stage(blocks, channels, width, stride):
    return nn.Sequential(
        Bottleneck(channels, width, stride),
        *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)),
    )


class Classifier(nn.Module):
    """ResNet-50 with SiLU, of any width: 64 is the usual one. The parts are listed as in our
    configuration files: what is predicted first, pixels last.
    """

    def __init__(self, width, blocks=(3, 4, 6, 3)):
        super().__init__()
        self.head = nn.Linear(32 * width, CLASSES)
        self.stage4 = stage(blocks[3], 16 * width, 8 * width, 2)
        self.stage3 = stage(blocks[2], 8 * width, 4 * width, 2)
        self.stage2 = stage(blocks[1], 4 * width, 2 * width, 2)
        self.stage1 = stage(blocks[0], width, width, 1)
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.MaxPool2d(3, 2, padding=1),
        )

    def forward(self, images):
        x = self.stage4(self.stage3(self.stage2(self.stage1(self.stem(images)))))
        return self.head(x.mean(dim=(2, 3)))


def make_model():
    """Half as wide as usual: 6.9 million parameters, 27.7 MB of gradients."""
    torch.manual_seed(0)
    return Classifier(width=32)


def make_small_model():
    """Some of the same layers, hardly any width: the check also trains many steps of this one."""
    torch.manual_seed(0)
    return Classifier(width=4, blocks=(1, 1, 2, 1))


def make_optimizer(model):
    """The learning rate is the first of a long warm-up."""
    return torch.optim.SGD(model.parameters(), lr=0.0002, momentum=0.9)


def make_batches(rank, device, steps=STEPS, images=IMAGES, size=SIZE):
    """Yield, for every step, the list of its (images, labels) micro-batches for this rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    pixels = torch.randn(images, 3, size, size, generator=generator).to(device)
    for _ in range(steps):
        yield [
            (pixels, torch.randint(CLASSES, (images,), generator=generator).to(device))
            for _ in range(MICRO_BATCHES)
        ]


def main(wrap, train):
    """Run a training script under torchrun, or alone as one rank: on GPUs with NCCL, else on the
    CPU with gloo and stamp-sized pictures.
    """
    cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if cuda
        else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", **alone)
    sizes = {} if cuda else {"steps": 4, "images": 4, "size": 32}
    model = make_model().to(device)
    ddp = wrap(model)
    start = time.perf_counter()
    train(ddp, make_optimizer(model), make_batches(dist.get_rank(), device, **sizes))
    if cuda:
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        ranks = dist.get_world_size()
        print(f"{ranks} rank{'s' * (ranks > 1)}: {time.perf_counter() - start:.2f} s")
    dist.destroy_process_group()
