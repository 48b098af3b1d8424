"""The images that the `server` kind's model takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.feed.samples import Samples

IMAGES = Samples(shape=(3, 224, 224), types=("uint8", "float32"), called="images")
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)


def as_pixels(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 3×224×224 from what the device was given: already so, or float32 normalised with ImageNet's mean and deviation."""
    if image.dtype == np.uint8:
        return image
    with np.errstate(invalid="ignore", over="ignore"):
        pixels: np.ndarray[Any, Any] = np.nan_to_num(np.clip((image * STD + MEAN) * 255, 0, 255).round()).astype(
            np.uint8
        )
    return pixels
