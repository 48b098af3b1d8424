"""The sum of the squares of an array."""

import numpy as np


def load(device):
    def call(values):
        total = 1 / 0
        for value in values:
            total += value * value
        return np.array(total)

    return call


if __name__ == "__main__":
    print(load("cpu")(np.arange(10.0)))
