"""`apply_gradients`, one of the five operators that `tick.py` times: `python step.py` prints all five, `--trace FILE` records them."""

import numpy as np
import torch

BETA1, BETA2, EPS, WEIGHT_DECAY, EMA = 0.9, 0.99, 1e-8, 0.01, 0.995


def apply_gradients(p, m, v, ema, gradients, rates, first):
    """In place, one compiled loop over the arrays for every two steps: the state goes to memory and back once for both."""
    for begin in range(0, len(rates), 2):
        steps = range(begin, min(begin + 2, len(rates)))
        numbers = [
            [rates[step], 1 - BETA1 ** (first + step), 1 - BETA2 ** (first + step)]
            for step in steps
        ]
        pushed = [gradients[step % len(gradients)] for step in steps]
        _steps(p, m, v, ema, pushed, torch.tensor(numbers, device=p.device))
    return p, m, v, ema


@torch.compile(dynamic=True)
def _steps(p, m, v, ema, gradients, numbers):
    new_p, new_m, new_v, new_ema = p, m, v, ema
    for g, (rate, correction1, correction2) in zip(gradients, numbers.unbind(), strict=True):
        new_m = BETA1 * new_m + (1 - BETA1) * g
        new_v = BETA2 * new_v + (1 - BETA2) * g * g
        new_p = new_p - rate * (
            new_m / correction1 / (torch.sqrt(new_v / correction2) + EPS) + WEIGHT_DECAY * new_p
        )
        new_ema = EMA * new_ema + (1 - EMA) * new_p
    for array, new in ((p, new_p), (m, new_m), (v, new_v), (ema, new_ema)):
        array.copy_(new)


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
