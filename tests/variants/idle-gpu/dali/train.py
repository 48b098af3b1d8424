"""ResNet-50 fed by a DALI pipeline on the CPU: two threads, no worker processes."""

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
import recipe
from nvidia.dali import pipeline_def
from PIL import Image
from torch.profiler import record_function


def crop_in_file(path, draw):
    """Left, top, width and height of the crop, as shares of the whole photograph."""
    with Image.open(path) as photo:
        width, height = recipe.resized(*photo.size)
    left, top = recipe.crop_corner(width, height, draw)
    return np.array(
        [left / width, top / height, recipe.CROP / width, recipe.CROP / height], np.float32
    )


class Source:
    """Encoded files with what was drawn for them, batch by batch, for the epoch last set."""

    def __init__(self, photos):
        self.files = recipe.photographs(photos)
        self.sampler = recipe.EpochSampler()

    def batches(self):
        samples = list(self.sampler)
        return [
            samples[i : i + recipe.BATCH_SIZE] for i in range(0, len(samples), recipe.BATCH_SIZE)
        ]

    def __iter__(self):
        self.left = (
            None  # DALI asks for an iterator as soon as an epoch ends, before the next one is known
        )
        return self

    def __next__(self):
        if self.left is None:
            self.left = iter(self.batches())
        files, corners, flips, jitters, labels = [], [], [], [], []
        for sample in next(self.left):
            path, label = self.files[sample.index]
            draw = recipe.augmentation(sample.seed, sample.epoch, sample.index)
            files.append(np.fromfile(path, dtype=np.uint8))
            corners.append(crop_in_file(path, draw))
            flips.append(np.array(draw.flip, np.int32))
            jitters.append(np.array([draw.brightness, draw.contrast, draw.saturation], np.float32))
            labels.append(np.array([label], np.int64))
        return files, corners, flips, jitters, labels


@pipeline_def
def pipeline(source):
    encoded, corner, flip, jitter, label = fn.external_source(
        source=source, num_outputs=5, cycle="raise"
    )
    image = fn.decoders.image_slice(
        encoded, corner[:2], corner[2:], device="cpu", use_fast_idct=True, axis_names="WH"
    )
    image = fn.resize(image, size=(recipe.CROP, recipe.CROP), interp_type=types.INTERP_TRIANGULAR)
    image = fn.flip(image, horizontal=flip)
    brightness, contrast, saturation = jitter[0], jitter[1], jitter[2]
    image = fn.brightness(image, brightness=brightness)
    grey = fn.reductions.mean(
        fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY)
    )
    image = fn.cast(image * contrast + grey * (1 - contrast), dtype=types.UINT8)
    image = fn.hsv(image, saturation=saturation)
    return fn.transpose(image, perm=[2, 0, 1]), label


def train(accelerator, photos, cache):
    source = Source(photos)
    loader = None
    for epoch in accelerator.epochs():
        source.sampler.set_epoch(epoch)
        if loader is None:
            loader = pipeline(
                source,
                batch_size=recipe.BATCH_SIZE,
                num_threads=2,
                device_id=None,
                prefetch_queue_depth=2,
            )
            loader.build()
        else:
            loader.reset()
        while True:
            with record_function("data"):
                try:
                    images, labels = loader.run()
                # The source has given its last batch and the pipeline is drained.
                except StopIteration:
                    break
            accelerator.step(images.as_array(), labels.as_array().reshape(-1))
    accelerator.synchronize()


if __name__ == "__main__":
    recipe.main(train)
