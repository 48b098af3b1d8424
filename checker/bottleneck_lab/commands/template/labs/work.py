"""The sum of the squares of an array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def load(device: str) -> Callable[[np.ndarray], np.ndarray]:
    """Called once; the function that it returns is what is timed."""

    def total_of(values: np.ndarray) -> np.ndarray:
        total = 0.0
        for value in values:
            total += value * value
        return np.array(total)

    return total_of


if __name__ == "__main__":
    numbers = np.arange(200_000, dtype=np.float64)
    print(load("cpu")(numbers))
