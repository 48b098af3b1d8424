"""Train ResNet-50 on a folder of photographs.

Alone, a few steps on this machine's own GPU or CPU: python train.py --photos DIR
"""

import numpy as np
import recipe
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    """Training samples: a random crop of the photograph, perhaps mirrored, with brightness,
    contrast and saturation jittered.
    """

    def __init__(self, photos):
        self.files = recipe.photographs(photos)

    def __getitem__(self, sample):
        path, label = self.files[sample.index]
        draw = recipe.augmentation(sample.seed, sample.epoch, sample.index)

        image = Image.open(path)
        size = recipe.resized(*image.size)
        # The JPEG decoder can shrink by 2, 4 or 8 while decoding. It keeps at least twice what the
        # resize needs, whose filter then sees the same detail as before, at a fraction of the
        # inverse transforms.
        image.draft("RGB", (2 * size[0], 2 * size[1]))
        image = image.convert("RGB")
        left, top = recipe.crop_corner(*size, draw)
        # Crop and resize at once: only the pixels of the crop are computed.
        scale_x, scale_y = image.width / size[0], image.height / size[1]
        box = (
            left * scale_x,
            top * scale_y,
            (left + recipe.CROP) * scale_x,
            (top + recipe.CROP) * scale_y,
        )
        image = image.resize((recipe.CROP, recipe.CROP), Image.Resampling.BILINEAR, box=box)
        if draw.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(draw.brightness)
        image = ImageEnhance.Contrast(image).enhance(draw.contrast)
        image = ImageEnhance.Color(image).enhance(draw.saturation)

        # Bytes travel to the device, a quarter of the floats; it normalises them there.
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), label  # uint8, 3×224×224


def train(accelerator, photos, cache):
    sampler = recipe.EpochSampler()
    loader = DataLoader(
        Photographs(photos),
        batch_size=recipe.BATCH_SIZE,
        sampler=sampler,
        num_workers=2,  # as many as there are cores to load with
        persistent_workers=True,  # started once, not once an epoch
        prefetch_factor=4,
        pin_memory=torch.cuda.is_available(),
    )
    for epoch in accelerator.epochs():
        sampler.set_epoch(epoch)
        for images, labels in recipe.batches(loader):
            accelerator.step(images, labels)  # queues the step; the device runs it when it is free
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
