"""What is right for this lab. Run by the verifier, never copied into a workspace."""

import numpy as np


def cases(rng, settings):
    """Each case has to meet the target on its own."""
    return ["short window", "long window"]


def make_inputs(rng, case, data, settings):
    """A fresh trace for every call; its length and the window's width are secret draws."""
    low, high = (50, 100) if case == "short window" else (500, 1000)
    return [rng.normal(size=int(rng.integers(*settings["samples"]))), int(rng.integers(low, high))]


def judge(case, inputs, answer, reference, settings):
    """None when the answer is right, else one sentence on what is wrong."""
    if len(answer) != 1 or not isinstance(answer[0], np.ndarray) or answer[0].shape != reference[0].shape:
        return f"expected one array of shape {reference[0].shape}"
    worst = float(np.abs(answer[0] - reference[0]).max())
    return None if worst < 1e-8 else f"a mean is off by {worst:.3g}"
