"""Train ResNet-50 on a folder of photographs.

Alone, a few steps on this machine's own GPU or CPU: python train.py --photos DIR
"""

import numpy as np
import recipe
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset


def read(path):
    """A photograph's pixels, uint8 H×W×3."""
    return np.array(Image.open(path).convert("RGB"))


class Photographs(Dataset):
    """Training samples: a random crop of the photograph, perhaps mirrored, with brightness,
    contrast and saturation jittered.
    """

    def __init__(self, photos):
        self.files = recipe.photographs(photos)

    def __getitem__(self, sample):
        path, label = self.files[sample.index]
        draw = recipe.augmentation(sample.seed, sample.epoch, sample.index)

        image = Image.fromarray(read(path))
        image = image.resize(recipe.resized(*image.size), Image.Resampling.BILINEAR)
        left, top = recipe.crop_corner(*image.size, draw)
        image = image.crop((left, top, left + recipe.CROP, top + recipe.CROP))
        if draw.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(draw.brightness)
        image = ImageEnhance.Contrast(image).enhance(draw.contrast)
        image = ImageEnhance.Color(image).enhance(draw.saturation)

        pixels = np.array(image) / 255.0
        pixels = (pixels - recipe.MEAN) / recipe.STD
        return torch.tensor(pixels.transpose(2, 0, 1), dtype=torch.float32), label  # 3×224×224


def train(accelerator, photos, cache):
    sampler = recipe.EpochSampler()
    loader = DataLoader(
        Photographs(photos), batch_size=recipe.BATCH_SIZE, sampler=sampler, num_workers=1
    )
    for epoch in accelerator.epochs():
        sampler.set_epoch(epoch)
        for images, labels in recipe.batches(loader):
            accelerator.step(images, labels)  # queues the step; the device runs it when it is free
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
