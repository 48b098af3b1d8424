"""Building blocks for a lab's judge.py: rules for the parts of an answer, and a `judge` that
applies them.

from bottleneck_lab.judging import answers, close, exact

judge = answers(confusion=exact, loss=close(atol=1e-5))
"""

from __future__ import annotations

import json as json_
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Rule = Callable[[Any, Any], str | None]
"""Given a part of the answer and the reference's: None when it is right, else what is wrong with
it, as it follows the part's name.
"""
Judge = Callable[[str, list[Any], list[Any], list[Any], dict[str, Any]], str | None]


def answers(**parts: Rule) -> Judge:
    """Return the `judge` of a lab whose answer has these parts, in this order; each rule compares
    one with the reference's.

    An answer with more or fewer parts is wrong, and so is a part of another shape, or with a NaN
    that the reference has not.
    """

    def judge(
        _case: str,
        _inputs: list[Any],
        answer: list[Any],
        reference: list[Any],
        _settings: dict[str, Any],
    ) -> str | None:
        if len(answer) != len(parts):
            return f"The answer has {len(answer)} parts, not {len(parts)}: {', '.join(parts)}."
        problems = (
            (name, rule(got, want))
            for (name, rule), got, want in zip(parts.items(), answer, reference, strict=True)
        )
        return next((f"`{name}` {wrong}." for name, wrong in problems if wrong), None)

    return judge


def exact(got: Any, want: Any) -> str | None:
    """Require equality to the last bit of numbers, text, bytes or arrays. NaN equals NaN."""
    if not isinstance(want, np.ndarray | int | float):
        if type(got) is type(want) and got == want:
            return None
        return "is not the reference's answer"
    if wrong := _form(got, want):
        return wrong
    ours, theirs = np.asarray(got), np.asarray(want)
    differ = ~((ours == theirs) | (_nan(ours) & _nan(theirs)))
    if differ.any():
        return f"differs in {int(differ.sum())} of {differ.size} numbers"
    return None


def close(*, atol: float = 0.0, rtol: float = 0.0) -> Rule:
    """Require numbers to differ by at most `atol` plus `rtol` of the reference's. What is not
    finite must be the same in the reference.
    """

    def rule(got: Any, want: Any) -> str | None:
        if wrong := _form(got, want):
            return wrong
        ours, theirs = np.asarray(got), np.asarray(want)
        finite = np.isfinite(theirs)
        if not np.isfinite(ours[finite]).all():
            return "has numbers that are not finite where the reference's are"
        if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
            return "has finite numbers where the reference has none"
        # In float64: integers of 8 bits would wrap around.
        exact = theirs[finite].astype(np.float64)
        apart = np.abs(ours[finite].astype(np.float64) - exact)
        beyond = apart[apart > atol + rtol * np.abs(exact)]
        if beyond.size:
            over = f"{beyond.max():.3g}"
            return f"is off by {over}; the limits are {atol:g} and {rtol:g} of the value"
        return None

    return rule


def _form(got: Any, want: Any) -> str | None:
    """Return what is wrong with the form of a part that is to be numbers of the reference's
    shape.
    """
    if not isinstance(got, np.ndarray | int | float) or np.asarray(got).dtype.kind not in "biuf":
        return f"is a {type(got).__name__}, not numbers"
    if np.shape(got) != np.shape(want):
        return f"has the shape {np.shape(got)}, not {np.shape(want)}"
    return None


def _nan(array: Any) -> Any:
    if array.dtype.kind == "f":
        return np.isnan(array)
    return np.zeros(array.shape, bool)


@dataclass(frozen=True)
class Request:
    """A request of HTTP, as the judge of a server makes it."""

    method: str = "GET"
    path: str = "/"
    body: bytes = b""
    content_type: str = "application/octet-stream"


def get(path: str) -> Request:
    """Return a request without a body."""
    return Request(path=path)


def post(path: str, body: bytes = b"", *, json: Any = None, content_type: str = "") -> Request:
    """Return a request with a body: these bytes, or a value as JSON."""
    if json is not None:
        return Request("POST", path, json_.dumps(json).encode(), content_type or "application/json")
    return Request("POST", path, body, content_type or "application/octet-stream")


def parsed(reply: bytes) -> Any:
    """Return a reply as the value that its JSON stands for; None, too, where it is no JSON."""
    try:
        return json_.loads(reply)
    except (ValueError, RecursionError):
        return None


CHROMA_BAND = (1 / 8, 1 / 4)
"""Cycles a pixel. Colour that was stored at half the size has half of this octave, at most; above
it even honest filters leave little but rounding.
"""
CHROMA_LIKENESS, CHROMA_STRENGTH = 0.8, (0.75, 1.4)
"""Honest filters, decoders and a JPEG of quality 98 with full-resolution colour were seen at
correlations from 0.95 and strengths of 0.96-1.21; colour at half the size at 0.45-0.95.
"""
LEAST_CHROMA = 1.0
"""Levels of 255 in the band below which a picture has too little colour to judge: rounding alone
makes 0.18.
"""


def colours_lost(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> str | None:
    """Return how the colours' detail in `got` differs from that in `want` (both uint8 3×H×W, RGB),
    None where it does not.

    Brightness outweighs colour in RGB, so that a judge of RGB alone sees no colour that was
    enlarged from fewer pixels.
    """
    ours, theirs = (_chroma_detail(pixels) for pixels in (got, want))
    power, right_power = (float((abs(detail) ** 2).sum()) + 1e-9 for detail in (ours, theirs))
    likeness = float((ours * theirs.conj()).real.sum()) / (power * right_power) ** 0.5
    strength, (least, most) = (power / right_power) ** 0.5, CHROMA_STRENGTH
    if right_power / theirs.size < LEAST_CHROMA**2:
        return None
    if likeness >= CHROMA_LIKENESS and least <= strength <= most:
        return None
    return (
        f"its colours have {strength:.2f} times the detail (correlation {likeness:.2f}): enlarged"
        " from fewer pixels, or stored with loss"
    )


def _chroma_detail(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the spectrum of both colour differences in CHROMA_BAND, complex 2×K, in levels."""
    red, green, blue = pixels.astype(np.float32)
    # ITU-R BT.601, as JPEG has it (JFIF 1.02): Cb and Cr are blue and red less the luma, scaled.
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    chroma = np.stack([(blue - luma) / 1.772, (red - luma) / 1.402])
    _, height, width = chroma.shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    within = (frequency >= CHROMA_BAND[0]) & (frequency < CHROMA_BAND[1])
    # Faded out at the borders, whose jump would fill every band.
    window = np.outer(np.hanning(height), np.hanning(width))
    spectrum = np.fft.rfft2(chroma * window) / np.linalg.norm(window)
    detail: np.ndarray[Any, Any] = spectrum[:, within]
    return detail


Shipped = Callable[[Path, list[int], int], tuple[Any, list[Any]]]
"""Given the folder of the data, indices and a seed: the shipped data set, and by which keys these
samples are read from it.
"""


def loader_time(shipped: Shipped) -> Callable[[str], Callable[[str, Any, int], float]]:
    """Return the `load` of a lab that feeds a device: CPU seconds that one worker of a `DataLoader`
    needs for a sample of the shipped data set.

    In a worker, because the same code takes a tenth longer there than in this process. Its first
    batch warms it up and does not count.
    """

    def seconds(data: str, indices: Any, seed: int) -> float:
        from torch.utils.data import DataLoader  # noqa: PLC0415 - other judges do without torch

        dataset, keys = shipped(Path(data), [int(index) for index in indices], seed)
        timed: Any = _TimedReading(dataset)
        loader: Any = DataLoader(
            timed, batch_sampler=[keys[:2], keys], num_workers=1, collate_fn=timed.collate
        )
        return float(list(loader)[-1])

    return lambda _device: seconds


class _TimedReading:
    """A data set, read a batch at a time, with the loader's own CPU time for it in place of the
    batch.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.began_s = 0.0

    def __getitems__(self, keys: list[Any]) -> list[Any]:
        self.began_s = time.process_time()
        return [self.dataset[key] for key in keys]

    def collate(self, samples: list[Any]) -> float:
        """Return CPU seconds per sample, from the first file opened to the whole batch in shared
        memory.
        """
        from torch.utils.data import default_collate  # noqa: PLC0415 - as above

        default_collate(samples)
        return (time.process_time() - self.began_s) / len(samples)
