"""What is right: the sum of squares, to the last bit."""

import numpy as np


def cases(rng, settings):
    return ["numbers"]


def make_inputs(rng, case, data, settings):
    return [rng.integers(0, 1000, size=settings.get("size", 200_000)).astype(np.float64)]


def judge(case, inputs, answer, reference, settings):
    if len(answer) != 1 or answer[0].shape != ():
        return "The answer is not one number."
    return None if float(answer[0]) == float(reference[0]) else "The sum is wrong."
