"""The model, its samples, and how a script talks to the device. The same for everyone: a
check uses its own copy.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import record_function
from torch.utils.data import Sampler

BATCH_SIZE = 16
RESIZE = 256  # shorter side, before the crop
CROP = 224
MEAN = (0.485, 0.456, 0.406)  # ImageNet's, RGB, of values 0-1
STD = (0.229, 0.224, 0.225)


class Sample(NamedTuple):
    """All that a loader needs to know to make one training sample."""

    index: int
    seed: int
    epoch: int


class Augmentation(NamedTuple):
    """The random choices for one sample. `x` and `y` (0-1) place the crop; the three factors are
    applied in this order, after the flip.
    """

    x: float
    y: float
    flip: bool
    brightness: float
    contrast: float
    saturation: float


class Epoch(NamedTuple):
    """An epoch to train: the samples `order`, each once and in this order."""

    number: int
    seed: int
    order: list[int]


def photographs(photos: Path) -> list[tuple[Path, int]]:
    """File and class of every training photograph; a sample's index is its place in this list."""
    manifest = json.loads((photos / "manifest.json").read_text())
    return [
        (photos / photo["name"], photo["label"])
        for photo in manifest["photos"]
        if photo["set"] == "large"
    ]


def augmentation(seed: int, epoch: int, index: int) -> Augmentation:
    """The augmentation of one sample in one epoch: a function of its arguments, so that any process
    may compute it.
    """
    rng = random.Random(f"{seed}/{epoch}/{index}")
    jitter = [rng.choice((rng.uniform(0.6, 0.75), rng.uniform(1.3, 1.5))) for _ in range(3)]
    return Augmentation(rng.random(), rng.random(), rng.random() < 0.5, *jitter)


def resized(width: int, height: int) -> tuple[int, int]:
    """Width and height once the shorter side is RESIZE pixels."""
    short = min(width, height)
    return width * RESIZE // short, height * RESIZE // short


def crop_corner(width: int, height: int, draw: Augmentation) -> tuple[int, int]:
    """Left and top of the crop in a resized picture of this size."""
    return round(draw.x * (width - CROP)), round(draw.y * (height - CROP))


class EpochSampler(Sampler[Sample]):
    """The samples of the current epoch. Each carries its seed and epoch, so a worker process may
    outlive an epoch.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def set_epoch(self, epoch: Any) -> None:
        self.samples = [Sample(index, epoch.seed, epoch.number) for index in epoch.order]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield what `loader` yields; waiting for it is the range `data` in a profile."""
    with record_function("data"):
        iterator = iter(loader)
    while True:
        with record_function("data"):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


class TorchAccelerator:
    """A real ResNet-50 on this machine's GPU, or on its CPU. `lab run` and `lab check` put their
    own device in its place.
    """

    def __init__(self, count: int, steps: int) -> None:
        import torchvision

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = torchvision.models.resnet50().to(
            self.device, memory_format=torch.channels_last
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.mean = torch.tensor(MEAN, device=self.device).view(3, 1, 1)
        self.std = torch.tensor(STD, device=self.device).view(3, 1, 1)
        self.order = random.Random(0).sample(range(count), min(count, steps * BATCH_SIZE))

    def epochs(self) -> Iterator[Epoch]:
        """One short epoch."""
        yield Epoch(0, 0, self.order)

    def step(self, images: Any, labels: Any) -> None:
        """One step of SGD. `images`: N×3×224×224, uint8 RGB or float32 already normalised.
        `labels`: N integers.
        """
        with record_function("h2d"):
            images = torch.as_tensor(images).to(self.device, non_blocking=True)
            labels = torch.as_tensor(labels).to(self.device, non_blocking=True)
        with record_function("forward"):
            if images.dtype == torch.uint8:
                images = (images.float() / 255 - self.mean) / self.std
            loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        with record_function("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        with record_function("optimizer"):
            self.optimizer.step()

    def synchronize(self) -> None:
        """Wait until every step queued has run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main(train: Callable[..., None], prepare: Callable[..., None] | None = None) -> None:
    """Train for a few steps on this machine's own device and print the rate."""
    parser = argparse.ArgumentParser()
    photos = os.environ.get("LAB_PHOTOS")
    parser.add_argument(
        "--photos",
        type=Path,
        default=photos,
        required=not photos,
        help="the folder that datasets/photos.py made",
    )
    parser.add_argument(
        "--cache", type=Path, default=Path("cache"), help="where prepare() may keep files"
    )
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    if prepare:
        options.cache.mkdir(parents=True, exist_ok=True)
        prepare(options.photos, options.cache)
    accelerator = TorchAccelerator(len(photographs(options.photos)), options.steps)
    start = time.perf_counter()
    train(accelerator, options.photos, options.cache)
    seconds = time.perf_counter() - start
    images = len(accelerator.order)
    print(
        f"{images} images in {seconds:.1f} s on {accelerator.device}: {images / seconds:.1f}"
        " images/s"
    )
