"""The inputs of the update, and what is right. Trusted: runs in the verifier, never in a workspace.

The truth is the shipped update in float64, computed at secret places of the arrays and at both
ends, since it is elementwise. An answer may be off by what float32 arithmetic in any order allows;
half precision is off by a thousand times more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bottleneck_lab.grading.criteria import format_beside

Array = np.ndarray[Any, Any]

BETA1, BETA2, EPS, WEIGHT_DECAY, EMA = 0.9, 0.99, 1e-8, 0.01, 0.995
NAMES = ("p", "m", "v", "ema")
PLACES, ENDS = 8_000, 4_096
"""How many secret places are computed, and how many at either end of the arrays. An error in one
place of a thousand escapes 8,000 of them in one answer out of 3,000, and over a hundred are judged.
"""
LIKE_TIMED, SHORTEST = 0.1, 1_000
"""Of the untimed calls, the share whose arrays are as long as those of the timed ones, and the
least numbers of the others.
"""
SLACK = 1 << 16
"""Numbers that the drawn ones are more than a call takes: each of its arrays begins elsewhere."""
ROUNDING = 2.0**-21
"""The error allowed per step, for values near 1: a few roundings of float32. It adds up like a
random walk.
"""


def cases(rng: np.random.Generator, settings: dict[str, Any]) -> list[str]:
    """The only case: gradients to apply."""
    return ["update"]


def threads(case: str) -> int | None:
    """One thread, like the additions that the code is compared with."""
    return 1


def make_inputs(
    rng: np.random.Generator, case: str, data: Path, settings: dict[str, Any]
) -> list[Any]:
    """Return state and gradients that no call had before. How many gradients, how long the arrays
    are, the rates and the number of the first step are drawn in secret.
    """
    return _windows(rng, int(rng.integers(*settings["parameters"])), settings, settings["rounds"])


def untimed_inputs(
    rng: np.random.Generator, case: str, data: Path, settings: dict[str, Any]
) -> list[Any]:
    """Return the inputs of a call that nobody times: arrays of any length up to the longest timed
    one, most of them far shorter, and a step or two for each gradient.

    A step is judged as strictly in a short call as in a long one, and takes as long.
    """
    low, longest = settings["parameters"]
    if rng.random() < LIKE_TIMED:
        size = int(rng.integers(low, longest))
    else:
        size = int(np.exp(rng.uniform(np.log(SHORTEST), np.log(longest))))
    return _windows(rng, size, settings, int(rng.integers(1, 3)))


_drawn: dict[int, list[Array]] = {}


def _windows(
    rng: np.random.Generator, size: int, settings: dict[str, Any], rounds: int
) -> list[Any]:
    """Return a call whose arrays are windows into numbers that are drawn once, each from a secret
    place on: drawing them anew takes longer than a call. Since every array begins elsewhere, no
    number of an answer occurs in another.
    """
    pushed = int(rng.integers(*settings["pushed"], endpoint=True))
    most = settings["parameters"][1] + SLACK
    if most not in _drawn:
        p, m, ema = (_centred(rng, most) for _ in range(3))
        gradients = _centred(rng, settings["pushed"][1], most)
        _drawn[most] = [p, m, _positive(rng, most), ema, gradients]
    begins = rng.integers(SLACK + 1, size=len(_drawn[most])).tolist()
    p, m, v, ema, gradients = (
        numbers[..., begin : begin + size]
        for numbers, begin in zip(_drawn[most], begins, strict=True)
    )
    return [p, m, v, ema, gradients[:pushed], *_schedule(rng, int(rounds) * pushed)]


def _call(rng: np.random.Generator, size: int, pushed: int, steps: int) -> list[Any]:
    p, m, ema = (_centred(rng, size) for _ in range(3))
    gradients = _centred(rng, pushed, size)
    return [p, m, _positive(rng, size), ema, gradients, *_schedule(rng, steps)]


def _schedule(rng: np.random.Generator, steps: int) -> tuple[Array, int]:
    """Draw the learning rate of each step, and the number of the first."""
    return rng.uniform(1e-4, 3e-2, steps), int(rng.integers(1, 2000))


def _positive(rng: np.random.Generator, size: int) -> Array:
    return rng.random(size, dtype=np.float32) + np.float32(0.01)


def _centred(rng: np.random.Generator, *shape: int) -> Array:
    """Draw uniform numbers between -2 and 2, which take a third of the time of normal ones."""
    numbers = rng.random(shape, dtype=np.float32)
    numbers -= np.float32(0.5)
    numbers *= np.float32(4)
    return numbers


def adversarial(rng: np.random.Generator, settings: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    """Untimed calls: lengths that no block size divides, the first step, where the corrections are
    largest, gradients of zero, and parameters hardly used.
    """
    hard = []
    for size in (1, 31, 4_097, 100_003):
        inputs = _call(rng, size, int(rng.integers(1, 6)), int(rng.integers(6, 12)))
        inputs[6] = 1
        hard.append((f"update of {size}", inputs))
    zero = _call(rng, 5_000, 3, 6)
    zero[4][1] = 0.0
    return [
        *hard,
        ("update with gradients of zero", zero),
        ("update of unused parameters", _hardly_used(rng)),
    ]


def _hardly_used(rng: np.random.Generator) -> list[Any]:
    """A call in which a third of the parameters never had a gradient, and a third has its first, as
    small as EPS: there the update depends on it.
    """
    inputs = _call(rng, 5_000, 3, 6)
    _, m, v, _, gradients, _, _ = inputs
    for array in (m, v):
        array[0::3] = array[1::3] = 0.0
    gradients[:, 0::3] = 0.0
    gradients[:, 1::3] *= np.float32(EPS)
    return [*inputs[:6], 1]


def judge(
    case: str,
    inputs: list[Any],
    answer: list[Array],
    reference: list[Array],
    settings: dict[str, Any],
) -> str | None:
    """None if all four arrays are right, else one sentence about the first that is not."""
    size = len(inputs[0])
    if len(answer) != len(NAMES) or any(np.shape(part) != (size,) for part in answer):
        return (
            f"The answer has the shapes {[np.shape(part) for part in answer]}, not p, m, v and ema"
            f" of {size} numbers each."
        )
    places = _places(size)
    wanted = exact(*(np.asarray(array)[..., places] for array in inputs[:5]), inputs[5], inputs[6])
    allowed = ROUNDING * (4 + len(inputs[5]) ** 0.5)
    for name, got, want in zip(NAMES, answer, wanted, strict=True):
        error = np.abs(np.asarray(got, dtype=np.float64)[places] - want) / (1 + np.abs(want))
        finite = np.isfinite(got).all()
        if not finite or error.max() > allowed:
            figure, limit = format_beside(error.max(), allowed)
            how = f"is off by {figure}" if finite else "is not finite everywhere"
            return (
                f"`{name}` {how} after {len(inputs[5])} steps; float32 arithmetic may be off by"
                f" {limit}. Apply every gradient in order, with its own learning rate and"
                " step number, in single precision."
            )
    return None


def _places(size: int) -> Array:
    """Drawn afresh after each answer has arrived. Both ends are always included."""
    drawn = np.random.default_rng().integers(size, size=min(PLACES, size))
    ends = np.arange(min(ENDS, size))
    return np.unique(np.concatenate([drawn, ends, size - 1 - ends]))


def exact(
    p: Array, m: Array, v: Array, ema: Array, gradients: Array, rates: Array, first: int
) -> tuple[Array, Array, Array, Array]:
    """The update in float64: AdamW's (Loshchilov, Hutter 2019) and the running mean of its
    parameters.
    """
    p, m, v, ema, gradients = (
        np.asarray(array, dtype=np.float64) for array in (p, m, v, ema, gradients)
    )
    for step, rate in enumerate(np.asarray(rates).tolist()):
        g, t = gradients[step % len(gradients)], first + step
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g**2
        p = p - rate * (m / (1 - BETA1**t) / (np.sqrt(v / (1 - BETA2**t)) + EPS) + WEIGHT_DECAY * p)
        ema = EMA * ema + (1 - EMA) * p
    return p, m, v, ema
