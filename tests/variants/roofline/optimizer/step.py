"""`apply_gradients`, one of the five operators that `tick.py` times: `python step.py` prints all five, `--trace FILE` records them."""

import numpy as np
import torch

BETA1, BETA2, EPS, WEIGHT_DECAY, EMA = 0.9, 0.99, 1e-8, 0.01, 0.995


def apply_gradients(p, m, v, ema, gradients, rates, first):
    """The optimizer itself, given the state that the server keeps."""
    optimizer = torch.optim.AdamW(
        [p], lr=1.0, betas=(BETA1, BETA2), eps=EPS, weight_decay=WEIGHT_DECAY, fused=True
    )
    optimizer.state[p] = {
        "step": torch.tensor(float(first - 1), device=p.device),
        "exp_avg": m,
        "exp_avg_sq": v,
    }
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        p.grad = gradients[step % len(gradients)]
        optimizer.step()
        ema.lerp_(p, 1 - EMA)
    return p.detach(), m, v, ema


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
