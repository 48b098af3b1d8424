"""`apply_gradients`, one of the five operators that `tick.py` times: `python step.py` prints all five, `--trace FILE` records them."""

import numpy as np
import torch

BETA1, BETA2, EPS, WEIGHT_DECAY, EMA = 0.9, 0.99, 1e-8, 0.01, 0.995


def apply_gradients(p, m, v, ema, gradients, rates, first):
    """In place, each step one compiled loop over the arrays."""
    for step, rate in enumerate(rates):
        t = first + step
        numbers = torch.tensor([rate, 1 - BETA1**t, 1 - BETA2**t], device=p.device)
        _one_step(p, m, v, ema, gradients[step % len(gradients)], numbers)
    return p, m, v, ema


@torch.compile(dynamic=True)
def _one_step(p, m, v, ema, g, numbers):
    rate, correction1, correction2 = numbers.unbind()
    m.copy_(BETA1 * m + (1 - BETA1) * g)
    v.copy_(BETA2 * v + (1 - BETA2) * g * g)
    p.copy_(p - rate * (m / correction1 / (torch.sqrt(v / correction2) + EPS) + WEIGHT_DECAY * p))
    ema.copy_(EMA * ema + (1 - EMA) * p)


def load(device):
    """The function that a check calls: `apply_gradients` on NumPy arrays; the answer is p, m, v and ema."""

    @torch.inference_mode()
    def answer(p, m, v, ema, gradients, rates, first):
        state = [torch.from_numpy(np.array(array)).to(device) for array in (p, m, v, ema)]
        gradients = torch.from_numpy(gradients).to(device)
        return apply_gradients(*state, gradients, rates.tolist(), int(first))

    return answer


if __name__ == "__main__":
    import tick

    tick.main(apply_gradients)
