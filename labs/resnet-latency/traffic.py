"""The requests that clients send. A check draws from the same traffic with secret draws: no
picture ever comes twice.
"""

import io
import random
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageEnhance

# Width and height by size of traffic. Web servers with a GPU get what a browser uploads, 1.2
# megapixels; the machines without one sit in branch offices and get what a telephone's camera
# makes, 4 megapixels.
SIZES = {"medium": (1280, 960), "large": (2304, 1728)}
PHOTOS = "large"  # the set of photographs that both are taken from


def size_for(device: str) -> str:
    """Which of these sizes is sent to a server of this kind."""
    return "medium" if device.startswith("cuda") else "large"


def request(photo: Image.Image, size: tuple[int, int], draw: random.Random) -> bytes:
    """A JPEG of `size` (of that turned by 90°, for an upright photograph): a part of `photo`,
    mirrored or not, lighter or darker.
    """
    width, height = size if photo.width >= photo.height else size[::-1]
    scale = draw.uniform(0.85, 1.0) * min(photo.width / width, photo.height / height)
    left, top = (
        draw.random() * (photo.width - scale * width),
        draw.random() * (photo.height - scale * height),
    )
    box = (left, top, left + scale * width, top + scale * height)
    picture = photo.resize((width, height), Image.Resampling.BICUBIC, box)
    if draw.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = ImageEnhance.Brightness(picture).enhance(draw.uniform(0.75, 1.25))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=draw.randrange(84, 92), subsampling=2)
    return out.getvalue()


def requests(photos: Path, device: str, count: int) -> Iterator[bytes]:
    """`count` requests made from the photographs in `photos`, the folder that datasets/photos.py
    made.
    """
    files = sorted((photos / PHOTOS).glob("*.jpg"))
    for number in range(count):
        photo = Image.open(files[number % len(files)]).convert("RGB")
        yield request(photo, SIZES[size_for(device)], random.Random(number))
