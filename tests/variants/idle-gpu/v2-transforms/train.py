"""ResNet-50 fed by torchvision's own decoder and v2 transforms on uint8 tensors, in four persistent workers, so that none waits long for a core."""

import recipe
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms.v2 import functional as F


class Photographs(Dataset):
    def __init__(self, photos):
        self.files = recipe.photographs(photos)

    def __getitem__(self, sample):
        path, label = self.files[sample.index]
        draw = recipe.augmentation(sample.seed, sample.epoch, sample.index)
        image = decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)
        height, width = image.shape[-2:]
        size = recipe.resized(width, height)
        image = F.resize(image, [size[1], size[0]], antialias=True)
        left, top = recipe.crop_corner(*size, draw)
        image = F.crop(image, top, left, recipe.CROP, recipe.CROP)
        if draw.flip:
            image = F.horizontal_flip(image)
        image = F.adjust_brightness(image, draw.brightness)
        image = F.adjust_contrast(image, draw.contrast)
        return F.adjust_saturation(image, draw.saturation), label


def train(accelerator, photos, cache):
    sampler = recipe.EpochSampler()
    loader = DataLoader(
        Photographs(photos),
        batch_size=recipe.BATCH_SIZE,
        sampler=sampler,
        num_workers=4,
        persistent_workers=True,
        prefetch_factor=2,
        worker_init_fn=lambda _: torch.set_num_threads(1),
    )
    for epoch in accelerator.epochs():
        sampler.set_epoch(epoch)
        for images, labels in recipe.batches(loader):
            accelerator.step(images, labels)
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
