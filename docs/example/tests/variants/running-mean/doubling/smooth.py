"""Smooth a sensor trace with a running mean. Alone: python smooth.py"""

import numpy as np


def running_mean(trace, width):
    """`trace`: n float64 samples. Returns the n - width + 1 means of `width` neighbours."""
    # Sums of 1, 2, 4, … neighbours, each from the one before; the wanted width is put together from
    # them.
    sums, done, block, size = np.zeros(len(trace) - width + 1), 0, trace, 1
    while size <= width:
        if width & size:
            sums += block[done : done + len(sums)]
            done += size
        block, size = block[:-size] + block[size:], 2 * size
    return sums / width


def load(device):
    return running_mean
