"""The images that the `inference_server` kind's model takes, and what is kept of them to tell one
from another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples

Array = np.ndarray[Any, Any]

IMAGES = Samples(shape=(3, 224, 224), types=("uint8", "float32"), called="images")
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)

BLOCK = 16
"""Pixels of a block's side: what a picture shows is told by the means of its blocks."""


def block_means(images: Array) -> Array:
    """Means of 16×16 blocks: N×3×H×W to N × H/16 × W/16 × 3, float32, in the images' own unit."""
    _, _, height, width = images.shape
    rows = np.add.reduceat(images, range(0, width, BLOCK), axis=3, dtype=np.float32)
    blocks = np.add.reduceat(rows, range(0, height, BLOCK), axis=2)
    means: Array = blocks.transpose(0, 2, 3, 1) / np.float32(BLOCK * BLOCK)
    return means


def levels(images: Array) -> Array:
    """What the model sees of images, uint8 or float32 normalised: means of blocks as levels of
    0-255, uint8.
    """
    means = block_means(images)
    return as_levels(means if images.dtype == np.uint8 else from_normalised(means))


def from_normalised(means: Array) -> Array:
    """Means N×H×W×3 of normalised images, as levels of 255."""
    shown: Array = (means * STD.reshape(3) + MEAN.reshape(3)) * 255
    return shown


def as_levels(means: Array) -> Array:
    """Means in levels of 255, whatever they are, as uint8."""
    seen: Array = np.nan_to_num(np.clip(means, 0, 255)).round().astype(np.uint8)
    return seen


def as_pixels(image: Array) -> Array:
    """uint8 3×224×224 from what the device was given: already so, or float32 normalised with
    ImageNet's mean and deviation.
    """
    if image.dtype == np.uint8:
        return image
    with np.errstate(invalid="ignore", over="ignore"):
        pixels: Array = np.nan_to_num(np.clip((image * STD + MEAN) * 255, 0, 255).round()).astype(
            np.uint8
        )
    return pixels
