"""What is right: the sum of squares, to the last bit."""

import numpy as np

from bottleneck_lab.judging import answers, exact


def cases(rng, settings):
    return ["numbers"]


def make_inputs(rng, case, data, settings):
    return [rng.integers(0, 1000, size=settings.get("size", 50_000)).astype(np.float64)]


judge = answers(total=exact)
