"""Pre-processing of a picture: the same as in serve.py."""

import io

import numpy as np
from PIL import Image

RESIZE = (341, 256)
CROP = (58, 16, 282, 240)


def preprocess(jpeg):
    """The middle of a picture as bytes, uint8 3×224×224: the model normalises it on the device."""
    image = Image.open(io.BytesIO(jpeg), formats=["JPEG"])
    image.draft("RGB", RESIZE)
    image = image.convert("RGB").resize(RESIZE, Image.Resampling.BILINEAR).crop(CROP)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
