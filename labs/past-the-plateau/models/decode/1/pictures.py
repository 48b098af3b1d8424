"""Pre-processing of a picture: the same as in serve.py."""

import io

import numpy as np
from PIL import Image

RESIZE = (341, 256)
CROP = (58, 16, 282, 240)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def preprocess(jpeg):
    """The middle of a picture as the model expects it: float32, 3×224×224, normalised."""
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    image = image.resize(RESIZE, Image.Resampling.BILINEAR).crop(CROP)
    pixels = np.array(image) / 255.0
    pixels = (pixels - MEAN) / STD
    return pixels.transpose(2, 0, 1).astype(np.float32)
