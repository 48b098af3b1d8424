"""ResNet-50 fed by threads of the training process: Pillow lets go of Python's lock while it decodes and resizes."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import recipe
import torch
from PIL import Image, ImageEnhance
from torch.profiler import record_function

THREADS = 4
AHEAD = 6  # batches


def batch_of(files, samples):
    """N×3×224×224 uint8 and N labels."""
    images = np.stack([image_of(files[sample.index][0], sample) for sample in samples])
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(
        [files[sample.index][1] for sample in samples]
    )


def image_of(path, sample):
    draw = recipe.augmentation(sample.seed, sample.epoch, sample.index)
    image = Image.open(path)
    size = recipe.resized(*image.size)
    left, top = recipe.crop_corner(*size, draw)
    image.draft("RGB", (2 * size[0], 2 * size[1]))
    across, down = image.width / size[0], image.height / size[1]
    box = (left * across, top * down, (left + recipe.CROP) * across, (top + recipe.CROP) * down)
    image = image.convert("RGB").resize(
        (recipe.CROP, recipe.CROP), Image.Resampling.BILINEAR, box=box
    )
    if draw.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = ImageEnhance.Brightness(image).enhance(draw.brightness)
    image = ImageEnhance.Contrast(image).enhance(draw.contrast)
    return np.asarray(ImageEnhance.Color(image).enhance(draw.saturation))


def loaded(pool, files, samples):
    """Batches in the samples' order, a few of them under way at any time."""
    due = iter(
        [samples[at : at + recipe.BATCH_SIZE] for at in range(0, len(samples), recipe.BATCH_SIZE)]
    )
    under_way = deque(pool.submit(batch_of, files, batch) for batch in islice(due, AHEAD))
    while under_way:
        with record_function("data"):
            batch = under_way.popleft().result()
        under_way.extend(pool.submit(batch_of, files, batch) for batch in islice(due, 1))
        yield batch


def train(accelerator, photos, cache):
    files, sampler = recipe.photographs(photos), recipe.EpochSampler()
    with ThreadPoolExecutor(THREADS) as pool:
        for epoch in accelerator.epochs():
            sampler.set_epoch(epoch)
            for images, labels in loaded(pool, files, list(sampler)):
                accelerator.step(images, labels)
        accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
