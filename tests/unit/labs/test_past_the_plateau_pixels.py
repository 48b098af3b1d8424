"""Lab past-the-plateau: the judge takes a picture for what it shows along its rows, down its
columns, and in its colours.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bottleneck_lab.measure.kinds.inference_server.pictures import make_strips

from ...modules import load_file

LAB = Path(__file__).parents[3] / "labs" / "past-the-plateau"
Filter = Image.Resampling
RESIZE, CROP = (341, 256), (58, 16, 282, 240)


@pytest.fixture(scope="module")
def judge():
    return load_file(LAB / "judge.py", "past_the_plateau_judge")


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """Pictures as a check sends them, of made-up photographs with detail of every size."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(5)
    names = [f"{number}.jpg" for number in range(4)]
    for name in names:
        total = np.full((800, 1100, 3), 128.0)
        for side in (8, 32, 128, 400):
            noise = (rng.normal(size=(side, side, 3)) * 20 + 128).clip(0, 255).astype(np.uint8)
            total += np.asarray(Image.fromarray(noise).resize((1100, 800), Filter.BICUBIC)) - 128.0
        Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(root / name, quality=95)
    photos = [{"name": name, "set": "large"} for name in names]
    (root / "manifest.json").write_text(json.dumps({"photos": photos}))
    strips = make_strips(root, rng)
    return [strips.file(picture) for picture in strips.draw(4, rng)]


def decoded(jpeg: bytes, draft: tuple[int, int] | None = None) -> Image.Image:
    image = Image.open(io.BytesIO(jpeg))
    image.draft("RGB", draft)
    return image.convert("RGB")


def shrunk(image: Image.Image, filter_: Filter = Filter.BILINEAR) -> Image.Image:
    return image.resize(RESIZE, filter_)


def small_colours(image: Image.Image, factor: int) -> Image.Image:
    luma, *chroma = image.convert("YCbCr").split()
    small = [each.resize((341 // factor, 256 // factor), Filter.BILINEAR) for each in chroma]
    return Image.merge("YCbCr", [luma, *(shrunk(each) for each in small)]).convert("RGB")


HONEST = {
    "decoded at half the size": lambda jpeg: shrunk(decoded(jpeg, RESIZE)),
    "reduced first": lambda jpeg: shrunk(decoded(jpeg).reduce(2)),
    "bicubic": lambda jpeg: shrunk(decoded(jpeg), Filter.BICUBIC),
    "Lanczos": lambda jpeg: shrunk(decoded(jpeg), Filter.LANCZOS),
    "box": lambda jpeg: shrunk(decoded(jpeg), Filter.BOX),
}
CHEATS = {
    "decoded at a quarter": (lambda jpeg: shrunk(decoded(jpeg, (113, 85))), "along its rows"),
    "three quarters of the rows": (
        lambda jpeg: shrunk(decoded(jpeg).resize((341, 192), Filter.BILINEAR)),
        "down its columns",
    ),
    "every third row": (
        lambda jpeg: shrunk(decoded(jpeg).resize((1024, 256), Filter.NEAREST)),
        "down its columns",
    ),
    "half the columns": (
        lambda jpeg: shrunk(decoded(jpeg).resize((170, 256), Filter.BILINEAR)),
        "along its rows",
    ),
    "colours at half the size": (
        lambda jpeg: small_colours(shrunk(decoded(jpeg)), 2),
        "its colours have",
    ),
    "colours at a quarter": (
        lambda jpeg: small_colours(shrunk(decoded(jpeg)), 4),
        "its colours have",
    ),
}


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.crop(CROP)).transpose(2, 0, 1)


@pytest.mark.parametrize("way", HONEST)
def test_honest_ways_are_accepted(judge, jpegs, way):
    for jpeg in jpegs:
        assert judge.compare(pixels(HONEST[way](jpeg)), judge.reference_pixels(jpeg)) is None


@pytest.mark.parametrize("way", CHEATS)
def test_fewer_pixels_are_refused_wherever_they_are_missing(judge, jpegs, way):
    make, words = CHEATS[way]
    for jpeg in jpegs:
        assert words in judge.compare(pixels(make(jpeg)), judge.reference_pixels(jpeg))


def test_a_picture_without_colour_has_none_to_lose(judge):
    grey = np.random.default_rng(0).normal(128, 30, (224, 224)).clip(0, 255).astype(np.uint8)
    want = np.stack([grey] * 3)
    assert judge.compare(want ^ 1, want) is None
