"""Judge this lab: the pixels and the class of any sample, and the shipped loader's
work, for calibration.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from bottleneck_lab.judging import colours_lost, loader_time

HERE = Path(__file__).resolve().parent


def _load(name: str) -> ModuleType:
    """A file of this folder as a module: the package's own, never the learner's."""
    spec = importlib.util.spec_from_file_location(f"dataloader_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _photographs(photos: Path) -> list[tuple[Path, int]]:
    manifest = json.loads((photos / "manifest.json").read_text(encoding="utf-8"))
    return [
        (photos / photo["name"], photo["label"])
        for photo in manifest["photos"]
        if photo["set"] == "large"
    ]


@cache
def _recipe() -> ModuleType:
    return _load("recipe")


def count(photos: Path) -> int:
    """Number of training photographs."""
    return len(_photographs(photos))


def label(photos: Path, index: int) -> int:
    """Class of a sample, from the manifest."""
    return _photographs(photos)[index][1]


def reference_sample(photos: Path, index: int, seed: int, epoch: int) -> np.ndarray[Any, Any]:
    """The right pixels of a sample, uint8 3×224×224: full decode, antialiased resize, crop, flip,
    jitter, all by Pillow.
    """
    recipe = _recipe()
    draw = recipe.augmentation(seed, epoch, index)
    with Image.open(_photographs(photos)[index][0]) as file:
        image = file.convert("RGB").resize(recipe.resized(*file.size), Image.Resampling.BILINEAR)
    left, top = recipe.crop_corner(*image.size, draw)
    return augmented(image.crop((left, top, left + recipe.CROP, top + recipe.CROP)), draw)


def augmented(image: Image.Image, draw: Any) -> np.ndarray[Any, Any]:
    """Flip and jitter of a crop, uint8 3×H×W."""
    if draw.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = ImageEnhance.Brightness(image).enhance(draw.brightness)
    image = ImageEnhance.Contrast(image).enhance(draw.contrast)
    image = ImageEnhance.Color(image).enhance(draw.saturation)
    return np.asarray(image).transpose(2, 0, 1)


# Limits between what honest ways reach and what cheats do, measured over 40 photographs;
# solutions/idle-gpu/README.md has the table.
LIGHT_AT_MOST = 2.5
LIKENESS_AT_LEAST = 0.72
SHARPNESS_BETWEEN = (0.68, 1.72)
LEVELS_AT_LEAST = 0.5
BLOCK = 16
# Cycles a pixel. Enlarging from 192 pixels or fewer leaves nothing true above 0.375, however it is
# sharpened; above 0.5 even honest filters differ.
FINE = (0.35, 0.5)


class Octave(NamedTuple):
    """Detail from `least` cycles a pixel to twice that: how much of it may be another's
    (correlation), and how strong it may be, got over want.

    Honest filters, decoders and a JPEG of quality 95, its colours at full resolution, were seen at
    correlations of 1.00, 1.00, 0.99 and 0.90 or more, from the coarsest octave on, and at strengths
    of 0.99-1.01, 0.98-1.04, 0.96-1.12 and 0.84-1.42. With a third of an octave taken out,
    correlations were at most 0.92, 0.91, 0.82 and 0.74 in the octave that it was taken from.
    """

    least: float
    likeness: float
    strength: tuple[float, float]


OCTAVES = (
    Octave(1 / 32, 0.96, (0.92, 1.08)),
    Octave(1 / 16, 0.95, (0.85, 1.15)),
    Octave(1 / 8, 0.88, (0.72, 1.3)),
    Octave(1 / 4, 0.76, (0.6, 1.8)),
)
"""Together all detail from 32 pixels a cycle to the finest that there is; what is coarser shows as
light.
"""


def as_pixels(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 3×224×224 from what the device was given: already so, or float32 normalised with
    ImageNet's mean and deviation.
    """
    if image.dtype == np.uint8:
        return image
    mean, std = (
        np.array(values, np.float32).reshape(3, 1, 1) for values in (_recipe().MEAN, _recipe().STD)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        return np.nan_to_num(np.clip((image * std + mean) * 255, 0, 255).round()).astype(np.uint8)


def compare(given: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> str | None:
    """None when what the device was given shows what `want` shows (uint8 3×224×224), else one
    sentence on the difference.
    """
    got = as_pixels(given)
    if got.shape != want.shape:
        return (
            f"the picture is {'×'.join(map(str, got.shape))}, not {'×'.join(map(str, want.shape))}"
        )
    seen = distances(got, want)
    lit, alike = seen["light"] <= LIGHT_AT_MOST, seen["likeness"] >= LIKENESS_AT_LEAST
    if not lit and not alike:
        return (
            "it shows something else: another photograph, another place of the crop, or mirrored"
            " the other way"
        )
    if not lit:
        return (
            f"light or colour differ by {seen['light']:.1f} levels of 255: is every jitter applied,"
            " in the recipe's order?"
        )
    if seen["levels"] < LEVELS_AT_LEAST:
        return f"it has {seen['levels']:.2f} times the distinct levels: stored in fewer bits"
    if not SHARPNESS_BETWEEN[0] <= seen["sharpness"] <= SHARPNESS_BETWEEN[1]:
        return (
            f"it has {seen['sharpness']:.2f} times the fine detail: enlarged from fewer pixels, or"
            " shrunk without antialiasing"
        )
    if not alike:
        return (
            f"its fine detail is another (correlation {seen['likeness']:.2f}): a crop off by a"
            " pixel, stored with loss, or enlarged"
        )
    return _octave_off(got, want) or colours_lost(got, want)


def _octave_off(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> str | None:
    """Which octave of detail is missing, added or another's, as a sentence; None where all are
    there.
    """
    for octave in OCTAVES:
        band = (octave.least, 2 * octave.least)
        likeness, strength = likeness_and_strength(_detail(got, band), _detail(want, band))
        if likeness < octave.likeness or not octave.strength[0] <= strength <= octave.strength[1]:
            return (
                f"its detail of {1 / band[1]:.0f} to {1 / band[0]:.0f} pixels a cycle is not the"
                f" photograph's (correlation {likeness:.2f}, {strength:.2f} times as strong):"
                " filtered, or stored with loss"
            )
    return None


def likeness_and_strength(
    ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]
) -> tuple[float, float]:
    """Correlation of two spectra, and the strength of the first over the second's."""
    power, right_power = (float((abs(detail) ** 2).sum()) + 1e-9 for detail in (ours, theirs))
    alike = float((ours * theirs.conj()).real.sum()) / (power * right_power) ** 0.5
    return alike, float((power / right_power) ** 0.5)


def distances(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> dict[str, float]:
    """How far two pictures (uint8 3×224×224) are apart.

    `light`: mean absolute difference of 16×16 block means, in levels of 255: exposure and colour,
    whatever the resize filter. `likeness`: correlation of the finest detail, FINE in cycles a
    pixel. `sharpness`: the strength of that detail, got over want. `levels`: the number of distinct
    values, got over want.
    """
    likeness, sharpness = likeness_and_strength(_detail(got, FINE), _detail(want, FINE))
    return {
        "light": float(np.abs(_blocks(got) - _blocks(want)).mean()),
        "likeness": likeness,
        "sharpness": sharpness,
        "levels": len(np.unique(got)) / len(np.unique(want)),
    }


def _blocks(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Means of BLOCK×BLOCK pixels."""
    channels, height, width = pixels.shape
    return pixels.reshape(channels, height // BLOCK, BLOCK, width // BLOCK, BLOCK).mean(axis=(2, 4))


def _detail(pixels: np.ndarray[Any, Any], band: tuple[float, float]) -> np.ndarray[Any, Any]:
    """The spectrum of each channel in a band of cycles a pixel, complex 3×K; faded out at the
    borders, whose jump would fill every band.
    """
    _, height, width = pixels.shape
    faded = pixels * np.outer(np.hanning(height), np.hanning(width))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    within: np.ndarray[Any, Any] = np.fft.rfft2(faded)[
        :, (frequency >= band[0]) & (frequency < band[1])
    ]
    return within


def _as_shipped(photos: Path, indices: list[int], seed: int) -> tuple[Any, list[Any]]:
    """The shipped data set, and the samples with these indices."""
    return _shipped().Photographs(photos), [_recipe().Sample(index, seed, 0) for index in indices]


load = loader_time(_as_shipped)


def training_step() -> Callable[[Any, Any], None]:
    """A training step of ResNet-50 on this machine's GPU: called with a batch of images and its
    labels, both there.
    """
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mean, std = (
        torch.tensor(values).view(3, 1, 1).cuda() for values in (_recipe().MEAN, _recipe().STD)
    )

    def step(images: Any, labels: Any) -> None:
        if images.dtype == torch.uint8:
            images = (images.float() / 255 - mean) / std
        loss = torch.nn.functional.cross_entropy(model(images), labels % 1000)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


@cache
def _shipped() -> ModuleType:
    """The shipped training script, with the recipe that it imports."""
    sys.modules.setdefault("recipe", _recipe())
    return _load("train")
