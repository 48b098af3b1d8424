"""`apply_gradients`, one of the five operators that `tick.py` times: `python step.py` prints all
five, `--trace FILE` records them.
"""

import numpy as np
import torch
from torch.optim.adamw import adamw

BETA1, BETA2, EPS, WEIGHT_DECAY, EMA = 0.9, 0.99, 1e-8, 0.01, 0.995
BLOCK = 524_288  # 2 MiB of each array. A GPU would wait for the launches.


def apply_gradients(p, m, v, ema, gradients, rates, first):
    """As shipped, in place: AdamW as the one operator that PyTorch has for it, and all steps of a
    block while its state is in the cache.
    """
    size = BLOCK if p.device.type == "cpu" else len(p)
    for begin in range(0, len(p), size):
        block = slice(begin, begin + size)
        number = torch.tensor(float(first - 1), device=p.device)
        for step, rate in enumerate(rates):  # the operator itself counts `number` up
            g = gradients[step % len(gradients), block]
            adamw(
                [p[block]], [g], [m[block]], [v[block]], [], [number],
                fused=True, lr=rate, beta1=BETA1, beta2=BETA2,
                weight_decay=WEIGHT_DECAY, eps=EPS, amsgrad=False, maximize=False,
            )  # fmt: skip
            ema[block].lerp_(p[block], 1 - EMA)
    return p, m, v, ema


def load(device):
    """The function that a check calls: `apply_gradients` on NumPy arrays; the answer is p, m, v and
    ema.
    """

    @torch.inference_mode()
    def answer(p, m, v, ema, gradients, rates, first):
        state = [torch.from_numpy(np.array(array)).to(device) for array in (p, m, v, ema)]
        gradients = torch.from_numpy(gradients).to(device)
        return apply_gradients(*state, gradients, rates.tolist(), int(first))

    return answer


if __name__ == "__main__":
    import tick

    tick.main(apply_gradients)
