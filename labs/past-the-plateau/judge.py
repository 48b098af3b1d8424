"""Judge this lab: the pixels that the model must get. For calibration also the shipped
server's work, and the model itself on a GPU.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from bottleneck_lab.judging import colours_lost

HERE = Path(__file__).resolve().parent
RESIZE, CROP = (341, 256), (58, 16, 282, 240)
CLASSES = 10


def reference_pixels(jpeg: bytes) -> np.ndarray[Any, Any]:
    """Return the right pixels of a picture, uint8 3x224x224.

    They come from a full decode, an antialiased resize and a crop of the middle.
    """
    with Image.open(io.BytesIO(jpeg)) as file:
        image = file.convert("RGB").resize(RESIZE, Image.Resampling.BILINEAR).crop(CROP)
    return np.asarray(image).transpose(2, 0, 1)


# Limits between what honest ways reach and what cheats do; solutions/past-the-plateau/README.md has
# the table.
LIGHT_AT_MOST = 3.0
LIKENESS_AT_LEAST = 0.75
SHARPNESS_BETWEEN = {"": (0.65, 2.1), "_down": (0.65, 1.8)}
LEVELS_AT_LEAST = 0.5
BLOCK = 16
# Cycles a pixel, along the rows, and down the columns of each strip: the seams between a picture's
# strips outweigh what the photographs show.
FINE = (0.38, 0.5)
STRIP = 32


def compare(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> str | None:
    """None when `got` shows what `want` shows (both uint8 3×224×224), else one sentence on the
    difference.
    """
    seen = distances(got, want)
    if seen["light"] > LIGHT_AT_MOST:
        return f"its light or colour differs by {seen['light']:.1f} levels of 255"
    if seen["levels"] < LEVELS_AT_LEAST:
        return f"it has {seen['levels']:.2f} times the distinct levels: it was stored in fewer bits"
    for way, where in (("", "along its rows"), ("_down", "down its columns")):
        likeness, sharpness = seen[f"likeness{way}"], seen[f"sharpness{way}"]
        least, most = SHARPNESS_BETWEEN[way]
        if not least <= sharpness <= most:
            return (
                f"it has {sharpness:.2f} times the fine detail {where}: it was enlarged from fewer"
                " pixels, or shrunk without antialiasing"
            )
        if likeness < LIKENESS_AT_LEAST:
            return (
                f"its fine detail {where} differs (correlation {likeness:.2f}): the crop is off by"
                " a pixel, or it was enlarged from fewer pixels"
            )
    return colours_lost(got, want)


def distances(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> dict[str, float]:
    """How far two pictures (uint8 3×224×224) are apart.

    `light`: mean absolute difference of 16×16 block means, in levels of 255. `likeness`:
    correlation of the finest detail along the rows. `sharpness`: the strength of that detail, got
    over want. `likeness_down` and `sharpness_down`: the same down the columns of each strip.
    `levels`: the number of distinct values, got over want.
    """
    seen = {
        "light": float(np.abs(_blocks(got) - _blocks(want)).mean()),
        "levels": len(np.unique(got)) / len(np.unique(want)),
    }
    for way, lines in (("", lambda pixels: pixels), ("_down", _columns)):
        ours, theirs = _detail(lines(got)), _detail(lines(want))
        power, right_power = (float((abs(detail) ** 2).sum()) + 1e-9 for detail in (ours, theirs))
        alike = float((ours * theirs.conj()).real.sum()) / (power * right_power) ** 0.5
        seen |= {f"likeness{way}": alike, f"sharpness{way}": (power / right_power) ** 0.5}
    return seen


def _columns(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The columns of the whole strips in a crop, 3×6×224×STRIP: half a strip is left out above."""
    strips = pixels[:, STRIP // 2 : -STRIP // 2].reshape(3, -1, STRIP, pixels.shape[-1])
    return strips.swapaxes(2, 3)


def _blocks(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Means of BLOCK×BLOCK pixels."""
    channels, height, width = pixels.shape
    return pixels.reshape(channels, height // BLOCK, BLOCK, width // BLOCK, BLOCK).mean(axis=(2, 4))


def _detail(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The spectrum of each line (along the last axis) in the band FINE, complex; faded out at the
    ends, whose jump would fill every band.
    """
    width = pixels.shape[-1]
    frequency = np.fft.rfftfreq(width)
    band: np.ndarray[Any, Any] = np.fft.rfft(pixels * np.hanning(width))[
        ..., (frequency >= FINE[0]) & (frequency < FINE[1])
    ]
    return band


def load(device: str) -> Any:
    """Entry point of the reference worker, which calibrates: CPU seconds that a server's shipped
    pre-processing ("python", "triton") needs for a picture.
    """
    preprocess = {
        "python": _shipped("serve.py").preprocess,
        "triton": _shipped("models/decode/1/pictures.py").preprocess,
    }

    def timed(server: str, *jpegs: bytes) -> float:
        # of this thread alone: the others of PyTorch's spin between its operators, the more so on a
        # quiet machine
        began_s = time.thread_time()
        for jpeg in jpegs:
            preprocess[server](jpeg)
        return (time.thread_time() - began_s) / len(jpegs)

    return timed


def _shipped(name: str) -> ModuleType:
    """A shipped file, which may import the recipe: the package's own, never the learner's."""
    sys.path.append(str(HERE))
    spec = importlib.util.spec_from_file_location(f"shipped_{Path(name).stem}", HERE / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SEEN = 16
# Sides of the coarse noise that a made-up picture is the sum of, and the weight of each:
# photographs too have less contrast the finer the detail.
NOISE = {side: 1.4 / side**0.5 for side in (2, 4, 8, 16, 32, 64, 128)}


def member() -> Callable[[Any], Any]:
    """One network of the ensemble that is the model on a GPU: a ResNet-50 with random weights,
    drawn with torch's generator.

    Called with images, N×3×224×224, float32 normalised, it returns N×10 scores with a spread of
    about 1 over pictures. Untrained weights alone would give all pictures similar scores, so the
    statistics of batch normalisation and the last layer's scale are set on made-up pictures.
    """
    import torch
    import torchvision

    with torch.device("cuda"):  # which draws the weights much faster
        network = torchvision.models.resnet50(num_classes=CLASSES)
    network.requires_grad_(requires_grad=False)
    pictures = made_up_pictures()
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None  # the mean over what it sees, and not a running one
    network.train()(pictures)
    network.eval()
    scores, last = network(pictures), list(network.modules())[-1]
    last.weight /= scores.std(0)[:, None]
    last.bias.copy_((last.bias - scores.mean(0)) / scores.std(0))
    return network


def made_up_pictures() -> Any:
    """SEEN normalised images on the GPU, with coarse and fine detail in every channel."""
    import torch
    from torch.nn.functional import interpolate

    drawn = (
        weight * torch.randn(SEEN, 3, side, side, device="cuda") for side, weight in NOISE.items()
    )
    return sum(interpolate(noise, size=(224, 224), mode="bilinear") for noise in drawn)
