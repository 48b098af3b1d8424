"""The same loop, only shorter to read: right, and no faster."""

import numpy as np


def running_mean(trace, width):
    return np.array(
        [trace[start : start + width].mean() for start in range(len(trace) - width + 1)]
    )


def load(device):
    return running_mean
