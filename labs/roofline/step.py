"""`apply_gradients`, one of the five operators that `tick.py` times: `python step.py` prints all
five, `--trace FILE` records them.
"""

import numpy as np
import tick
import torch

BETA1, BETA2, EPS, WEIGHT_DECAY, EMA = 0.9, 0.99, 1e-8, 0.01, 0.995


def apply_gradients(p, m, v, ema, gradients, rates, first):
    """Applies the gradients [K, N] that the workers pushed, one after another, to the parameters
    [N], and updates their running mean.

    `rates` [R] are the learning rates of the steps; if R > K, the gradients repeat. `first` is the
    number of the first step.
    """
    for step, rate in enumerate(rates):
        g, t = gradients[step % len(gradients)], first + step
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g**2
        m_hat = m / (1 - BETA1**t)
        v_hat = v / (1 - BETA2**t)
        p = p - rate * (m_hat / (torch.sqrt(v_hat) + EPS) + WEIGHT_DECAY * p)
        ema = EMA * ema + (1 - EMA) * p
    return p, m, v, ema


def load(device):
    """The function that a check calls: `apply_gradients` on NumPy arrays; the answer is p, m, v and
    ema.
    """

    tick.keep_pages()

    @torch.inference_mode()
    def answer(p, m, v, ema, gradients, rates, first):
        state = [torch.from_numpy(np.array(array)).to(device) for array in (p, m, v, ema)]
        gradients = torch.from_numpy(gradients).to(device)
        return apply_gradients(*state, gradients, rates.tolist(), int(first))

    return answer


if __name__ == "__main__":
    tick.main(apply_gradients)
