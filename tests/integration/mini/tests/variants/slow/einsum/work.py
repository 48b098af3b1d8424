"""The sum of the squares of an array."""

import numpy as np


def load(device):
    return lambda values: np.array(np.einsum("i,i->", values, values))


if __name__ == "__main__":
    print(load("cpu")(np.arange(10.0)))
