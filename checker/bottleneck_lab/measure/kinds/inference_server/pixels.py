"""The images that the model takes, and the block means by which one is told from another."""

from __future__ import annotations

from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples

Array = np.ndarray[Any, Any]

IMAGES = Samples(shape=(3, 224, 224), types=("uint8", "float32"), called="images")
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)

BLOCK = 16
"""Pixels of a block's side. A picture is recognised by the means of its blocks."""


def block_means(images: Array) -> Array:
    """Return the means of 16×16 blocks: from (N, 3, H, W) to (N, H/16, W/16, 3), float32, in the
    images' own unit.
    """
    _, _, height, width = images.shape
    rows = np.add.reduceat(images, range(0, width, BLOCK), axis=3, dtype=np.float32)
    blocks = np.add.reduceat(rows, range(0, height, BLOCK), axis=2)
    means: Array = blocks.transpose(0, 2, 3, 1) / np.float32(BLOCK * BLOCK)
    return means


def levels(images: Array) -> Array:
    """Return what the model sees of images, uint8 or float32 normalised: block means as levels of
    0-255, uint8.
    """
    means = block_means(images)
    if images.dtype != np.uint8:
        means = from_normalised(means)
    return as_levels(means)


def from_normalised(means: Array) -> Array:
    """Turn means (N, H, W, 3) of normalised images into levels of 255."""
    shown: Array = (means * STD.reshape(3) + MEAN.reshape(3)) * 255
    return shown


def as_levels(means: Array) -> Array:
    """Round means in levels of 255 to uint8; NaN and infinities are clipped."""
    seen: Array = np.nan_to_num(np.clip(means, 0, 255)).round().astype(np.uint8)
    return seen


def as_pixels(image: Array) -> Array:
    """Return an image that the device was given as uint8 (3, 224, 224): it is so already, or
    float32 normalised with ImageNet's mean and deviation.
    """
    if image.dtype == np.uint8:
        return image
    # A learner may send NaN or infinities.
    with np.errstate(invalid="ignore", over="ignore"):
        levels_255 = np.clip((image * STD + MEAN) * 255, 0, 255)
        pixels: Array = np.nan_to_num(levels_255.round()).astype(np.uint8)
    return pixels
