"""Smooth a sensor trace with a running mean. Alone: python smooth.py"""

import numpy as np


def running_mean(trace, width):
    """`trace`: n float64 samples. Returns the n - width + 1 means of `width` neighbours."""
    size = 1 << (len(trace) + width - 1).bit_length()
    spectrum = np.fft.rfft(trace, size) * np.fft.rfft(np.full(width, 1 / width), size)
    return np.fft.irfft(spectrum, size)[width - 1 : len(trace)]


def load(device):
    return running_mean
