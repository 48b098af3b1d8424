"""Judge this lab: a new picture for every call, and how far an answer may be from the
reference's.
"""

from __future__ import annotations

import importlib.util
import io
import random
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from bottleneck_lab.grading.criteria import format_figure

Array = np.ndarray[Any, Any]

ALIKE = 8
LIKE_TIMED, SMALLEST = 0.1, "medium"
"""Of the untimed calls, the share whose pictures are of the timed ones' size, and the size of the
others.
"""
_latest: dict[str, bytes] = {}
"""The latest picture of each size that was drawn by itself."""
FLOOR = 1e-6
"""Probabilities below this are taken for this: half precision cannot tell them apart."""


def cases(rng: np.random.Generator, settings: dict[str, Any]) -> list[str]:
    """One case: photographs of the size that this device gets."""
    return [settings["photos"]]


@cache
def traffic() -> ModuleType:
    """This folder's traffic.py: the package's own, never the learner's."""
    spec = importlib.util.spec_from_file_location(
        "resnet_latency_traffic", Path(__file__).with_name("traffic.py")
    )
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


def make_inputs(
    rng: np.random.Generator, case: str, data: Path, settings: dict[str, Any]
) -> list[bytes]:
    """A JPEG that nobody has seen: drawn from the traffic with a secret seed. One in ALIKE looks
    like the one before from afar: an answer may not be kept by what is coarse about a picture.
    """
    draw = random.Random(int(rng.integers(1 << 62)))
    if case in _latest and not draw.randrange(ALIKE):
        return [_alike(_latest.pop(case))]  # once: made again, it would be the same
    photo = _photograph(draw.choice(_files(data / traffic().PHOTOS)))
    _latest[case] = traffic().request(photo, traffic().SIZES[case], draw)
    return [_latest[case]]


def untimed_inputs(
    rng: np.random.Generator, case: str, data: Path, settings: dict[str, Any]
) -> list[bytes]:
    """The same for a call that nobody times, mostly from a smaller picture: it is judged as
    strictly, and drawn and answered sooner.
    """
    size = case if rng.random() < LIKE_TIMED else SMALLEST
    return make_inputs(rng, size, data, settings)


def _alike(jpeg: bytes) -> bytes:
    """The picture with each of 8 x 8 tiles mirrored: every tile keeps its colours, but not what it
    shows.
    """
    picture = Image.open(io.BytesIO(jpeg))
    width, height = picture.width // 8, picture.height // 8
    for left, top in product(range(0, 8 * width, width), range(0, 8 * height, height)):
        box = (left, top, left + width, top + height)
        picture.paste(picture.crop(box).transpose(Image.Transpose.FLIP_LEFT_RIGHT), box)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=88, subsampling=2)
    return out.getvalue()


def judge(
    case: str,
    inputs: list[bytes],
    answer: list[Array],
    reference: list[Array],
    settings: dict[str, Any],
) -> str | None:
    """None when `answer` is right, else why not: its form, its five best classes, then its
    probabilities.
    """
    if len(answer) != 1 or np.shape(answer[0]) != (1000,):
        return (
            f"The answer has the shape {[np.shape(part) for part in answer]}, not one array of"
            " 1,000 probabilities."
        )
    got, want = (np.asarray(array, dtype=np.float64) for array in (answer[0], reference[0]))
    return (
        _not_probabilities(got)
        or _other_classes(got, want, settings)
        or _too_far(got, want, settings)
    )


def _not_probabilities(got: Array) -> str | None:
    if not np.isfinite(got).all() or got.min() < 0 or abs(got.sum() - 1) > 0.01:
        return (
            "The answer is not 1,000 probabilities: each must be finite and at least 0, and they"
            " must add up to 1."
        )
    return None


def _other_classes(got: Array, want: Array, settings: dict[str, Any]) -> str | None:
    """Accept any class whose reference probability is within `near_tie` of the fifth best."""
    best = np.argsort(got)[::-1][:5]
    least = np.sort(want)[-5] * (1 - settings["near_tie"])
    strangers = [int(index) for index in best if want[index] < least]
    if strangers:
        return (
            f"Class {strangers[0]} is among the answer's five best classes, but not among the"
            " reference's, not even nearly."
        )
    return None


def disagreement(got: Array, want: Array) -> float:
    """How far two answers are apart, as a share of how much the reference tells the classes apart.

    Both as log-probabilities with their mean taken off, which gives back the logits; the distance
    over the reference's length.
    """
    ours, theirs = (np.log(np.maximum(array, FLOOR)) for array in (got, want))
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-9))


def _too_far(got: Array, want: Array, settings: dict[str, Any]) -> str | None:
    """Of one answer: no way that the brief allows is so far off. How far answers may be on the
    whole, `overall` says.
    """
    distance, allowed = disagreement(got, want), settings["disagreement"]
    if distance <= allowed:
        return None
    return (
        f"The probabilities are {format_figure(distance, 'share', allowed)} away from the"
        f" reference's; {format_figure(allowed, 'share')} is allowed."
        " Was the picture resized otherwise, or is the precision too low?"
    )


class Compared(NamedTuple):
    """One answer's distances: from the reference's, from each of those with too few pixels, and
    from the one without antialiasing; and that of an answer all in bfloat16.
    """

    apart: float
    from_enlarged: list[float]
    from_aliased: float
    bfloat16: float


_compared: list[Compared] = []
"""What `compare` was given in this check."""
WORSE_THAN_BFLOAT16 = 1.3
"""How much further than bfloat16 throughout, in the mean over pictures, answers may be from the
reference's: another filter or decoder comes on top of it.

Seen over bfloat16 throughout: bfloat16 in other ways 0.75 to 1.0, a bicubic filter 1.05, weights in
int8 1.8, no antialiasing 2.5.
"""
NEAR_WRONG = 0.45
"""Answers this near to those made from too few pixels or without antialiasing, as a share of their
distance from the reference's, are made so. Honest ones: 0.6 or more.

Without antialiasing after a scaled decode, they are only 1.25 times as far off as bfloat16.
"""


def compare(answer: list[Array], reference: list[Array], standards: list[Array]) -> None:
    """Note how far an answer is from the reference's and from the five of standards.py."""
    bfloat16, *enlarged, aliased = standards[0]
    got, want = answer[0], reference[0]
    _compared.append(
        Compared(
            disagreement(got, want),
            [disagreement(got, one) for one in enlarged],
            disagreement(got, aliased),
            disagreement(bfloat16, want),
        )
    )


def overall(settings: dict[str, Any]) -> str | None:
    """Why all the compared answers together are not those of a way that the brief allows; None when
    they are.
    """
    if not _compared:
        return None
    apart, aliased, bfloat16 = (
        _mean([getattr(one, name) for one in _compared])
        for name in ("apart", "from_aliased", "bfloat16")
    )
    enlarged = min(
        _mean(list(distances))
        for distances in zip(*(one.from_enlarged for one in _compared), strict=True)
    )
    if apart > WORSE_THAN_BFLOAT16 * bfloat16:
        return (
            f"Over {len(_compared)} pictures the probabilities are {apart:.1%} away from the"
            f" reference's, where bfloat16 throughout is {bfloat16:.1%} away: the precision is"
            " lower than that, or the picture was resized otherwise."
        )
    if enlarged < NEAR_WRONG * apart:
        return (
            "The answers are those for pictures that were decoded to fewer pixels than the resize"
            " needs, and enlarged."
        )
    if aliased < NEAR_WRONG * apart:
        return "The answers are those for pictures that were resized without antialiasing."
    return None


def _mean(distances: list[float]) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(distances))))
