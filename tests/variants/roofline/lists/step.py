"""`apply_gradients`, one of the five operators that `tick.py` times: `python step.py` prints all five, `--trace FILE` records them."""

import numpy as np
import torch
from torch.optim.adamw import adamw

BETA1, BETA2, EPS, WEIGHT_DECAY, EMA = 0.9, 0.99, 1e-8, 0.01, 0.995
PART = 1_048_576  # parameters


def apply_gradients(p, m, v, ema, gradients, rates, first):
    """In place, the arrays as lists of parts, each step one call for all parts: how an optimizer meets a model of many layers."""
    ps, ms, vs, emas = (list(array.split(PART)) for array in (p, m, v, ema))
    pushed = [list(gradient.split(PART)) for gradient in gradients]
    numbers = [torch.tensor(float(first - 1), device=p.device) for _ in ps]
    for step, rate in enumerate(rates):
        adamw(
            ps, pushed[step % len(pushed)], ms, vs, [], numbers, fused=True, lr=rate, beta1=BETA1, beta2=BETA2,
            weight_decay=WEIGHT_DECAY, eps=EPS, amsgrad=False, maximize=False,
        )  # fmt: skip
        torch._foreach_lerp_(emas, ps, 1 - EMA)
    return p, m, v, ema


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
