"""What is right for this lab: a new picture for every call, and how far an answer may be from the reference's."""

from __future__ import annotations

import importlib.util
import random
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]

FLOOR = 1e-6
"""Probabilities below this are taken for this: half precision cannot tell them apart."""


def cases(rng: np.random.Generator, settings: dict[str, Any]) -> list[str]:
    """One case: photographs of the size that this device gets."""
    return [settings["photos"]]


@cache
def traffic() -> ModuleType:
    """This folder's traffic.py: the package's own, never the learner's."""
    spec = importlib.util.spec_from_file_location("resnet_latency_traffic", Path(__file__).with_name("traffic.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jpg"))


@lru_cache(maxsize=8)
def _photograph(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def make_inputs(rng: np.random.Generator, case: str, data: Path, settings: dict[str, Any]) -> list[bytes]:
    """A JPEG that nobody has seen: drawn from the traffic with a secret seed."""
    draw = random.Random(int(rng.integers(1 << 62)))
    photo = _photograph(draw.choice(_files(data / case)))
    return [traffic().request(photo, traffic().SIZES[case], draw)]


def judge(
    case: str, inputs: list[bytes], answer: list[Array], reference: list[Array], settings: dict[str, Any]
) -> str | None:
    """None when `answer` is right, else why not: its form, its five best classes, then its probabilities."""
    if len(answer) != 1 or np.shape(answer[0]) != (1000,):
        return f"The answer has the shape {[np.shape(part) for part in answer]}, not one array of 1,000 probabilities."
    got, want = (np.asarray(array, dtype=np.float64) for array in (answer[0], reference[0]))
    return _not_probabilities(got) or _other_classes(got, want, settings) or _too_far(got, want, settings)


def _not_probabilities(got: Array) -> str | None:
    if not np.isfinite(got).all() or got.min() < 0 or abs(got.sum() - 1) > 0.01:
        return "The answer is not 1,000 probabilities: each must be finite and at least 0, and they must add up to 1."
    return None


def _other_classes(got: Array, want: Array, settings: dict[str, Any]) -> str | None:
    """Classes whose reference probability is within `near_tie` of the fifth best may stand for it."""
    best = np.argsort(got)[::-1][:5]
    least = np.sort(want)[-5] * (1 - settings["near_tie"])
    strangers = [int(index) for index in best if want[index] < least]
    if strangers:
        return f"Class {strangers[0]} is among the answer's five best classes, but not among the reference's, not even nearly."
    return None


def disagreement(got: Array, want: Array) -> float:
    """How far two answers are apart, as a share of how much the reference tells the classes apart.

    Both as log-probabilities with their mean taken off, which gives back the logits; the distance over the reference's length.
    """
    ours, theirs = (np.log(np.maximum(array, FLOOR)) for array in (got, want))
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-9))


def _too_far(got: Array, want: Array, settings: dict[str, Any]) -> str | None:
    found, allowed = disagreement(got, want), settings["disagreement"]
    if found <= allowed:
        return None
    return (
        f"The probabilities are {found:.1%} away from the reference's; {allowed:.1%} is allowed. "
        "Was the picture resized otherwise, or is the precision too low?"
    )
