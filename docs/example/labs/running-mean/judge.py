"""What is right for this lab. Run by the verifier, never copied into a workspace."""

from bottleneck_lab.judging import answers, close


def cases(rng, settings):
    """Each case has to meet the target on its own."""
    return ["short window", "long window"]


def make_inputs(rng, case, data, settings):
    """A fresh trace for every call; its length and the window's width are secret draws."""
    low, high = (50, 100) if case == "short window" else (500, 1000)
    return [rng.normal(size=int(rng.integers(*settings["samples"]))), int(rng.integers(low, high))]


judge = answers(means=close(atol=1e-8))
