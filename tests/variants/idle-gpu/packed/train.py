"""ResNet-50 fed from a packed copy of the photographs: decoded and resized once, by prepare(), then cut out of one memory-mapped file."""

import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import recipe
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as F


def shrink(path):
    """Height×width×3, the shorter side 256."""
    image = Image.open(path).convert("RGB")
    return np.asarray(image.resize(recipe.resized(*image.size), Image.Resampling.BILINEAR))


def prepare(photos, cache):
    files = recipe.photographs(photos)
    shapes = []
    with (
        ProcessPoolExecutor(min(2, os.cpu_count())) as pool,
        open(cache / "pixels.bin", "wb") as out,
    ):
        for pixels in pool.map(shrink, [path for path, _ in files], chunksize=8):
            shapes.append(pixels.shape[:2])
            out.write(pixels.tobytes())
    np.save(cache / "shapes.npy", np.array(shapes))


class Packed(Dataset):
    def __init__(self, photos, cache):
        self.labels = [label for _, label in recipe.photographs(photos)]
        self.shapes = np.load(cache / "shapes.npy")
        self.starts = np.concatenate([[0], np.cumsum(self.shapes.prod(axis=1) * 3)])
        self.pixels = np.memmap(cache / "pixels.bin", dtype=np.uint8, mode="r")

    def __getitem__(self, sample):
        height, width = self.shapes[sample.index]
        draw = recipe.augmentation(sample.seed, sample.epoch, sample.index)
        image = self.pixels[self.starts[sample.index] : self.starts[sample.index + 1]].reshape(
            height, width, 3
        )
        left, top = recipe.crop_corner(width, height, draw)
        image = image[top : top + recipe.CROP, left : left + recipe.CROP]
        image = torch.from_numpy(
            np.ascontiguousarray(image[:, ::-1] if draw.flip else image)
        ).permute(2, 0, 1)
        image = F.adjust_brightness(image, draw.brightness)
        image = F.adjust_contrast(image, draw.contrast)
        return F.adjust_saturation(image, draw.saturation), self.labels[sample.index]


def train(accelerator, photos, cache):
    sampler = recipe.EpochSampler()
    loader = DataLoader(
        Packed(photos, cache),
        batch_size=recipe.BATCH_SIZE,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
        prefetch_factor=4,
    )
    for epoch in accelerator.epochs():
        sampler.set_epoch(epoch)
        for images, labels in recipe.batches(loader):
            accelerator.step(images, labels)


if __name__ == "__main__":
    recipe.main(train, prepare)
