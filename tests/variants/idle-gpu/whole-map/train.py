"""ResNet-50 fed from one memory-mapped file of 3 GB: every photograph decoded once, at its full size and without loss, and resized when it is trained."""

import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import recipe
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as F


def decode(path):
    """Height×width×3, all of it."""
    return np.asarray(Image.open(path).convert("RGB"))


def prepare(photos, cache):
    files = recipe.photographs(photos)
    shapes = []
    with (
        ProcessPoolExecutor(min(2, os.cpu_count())) as pool,
        open(cache / "pixels.bin", "wb") as out,
    ):
        for pixels in pool.map(decode, [path for path, _ in files], chunksize=8):
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
        pixels = self.pixels[self.starts[sample.index] : self.starts[sample.index + 1]].reshape(
            height, width, 3
        )
        size = recipe.resized(width, height)
        left, top = recipe.crop_corner(*size, draw)
        scale = min(width, height) / recipe.RESIZE
        first_row, first_column = max(0, int((top - 2) * scale)), max(0, int((left - 2) * scale))
        rows, columns = (
            slice(first, first + int((recipe.CROP + 6) * scale))
            for first in (first_row, first_column)
        )
        image = Image.fromarray(pixels[rows, columns])
        x, y = left * width / size[0] - first_column, top * height / size[1] - first_row
        box = (x, y, x + recipe.CROP * width / size[0], y + recipe.CROP * height / size[1])
        image = image.resize((recipe.CROP, recipe.CROP), Image.Resampling.BILINEAR, box=box)
        if draw.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        image = F.adjust_brightness(image, draw.brightness)
        image = F.adjust_contrast(image, draw.contrast)
        return F.adjust_saturation(image, draw.saturation), self.labels[sample.index]


def train(accelerator, photos, cache):
    sampler = recipe.EpochSampler()
    loader = DataLoader(
        Packed(photos, cache),
        batch_size=recipe.BATCH_SIZE,
        sampler=sampler,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
    )
    for epoch in accelerator.epochs():
        sampler.set_epoch(epoch)
        for images, labels in recipe.batches(loader):
            accelerator.step(images, labels)


if __name__ == "__main__":
    recipe.main(train, prepare)
