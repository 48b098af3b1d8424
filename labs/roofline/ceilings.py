"""Measure what this machine can do, on one core or on its GPU: `python ceilings.py`. A check
compares your code with `load` in this file.

Bandwidth is measured with `a += b`, which reads two numbers and writes one per element. A copy
would show too little: on a CPU, writing to an array first fetches what it overwrites, so a copy
moves three bytes for every two that you count.
"""

import argparse
import os
import time

import numpy as np
import torch

ARRAYS_MOVED = 9
"""The least that one step of `apply_gradients` must move: five arrays read (p, m, v, ema, g), four
written (p, m, v, ema).
"""


def load(device):
    """Additions in place that move as many bytes as `apply_gradients` must, on arrays of the same
    size. Nobody looks at the answer.
    """

    @torch.inference_mode()
    def add(p, m, v, ema, gradients, rates, first):
        arrays = [torch.from_numpy(np.array(array)).to(device) for array in (p, m, v, ema)]
        gradients = torch.from_numpy(gradients).to(device)
        for step in range(len(rates)):
            arrays[0].add_(gradients[step % len(gradients)])  # three of the nine
            arrays[1].add_(arrays[2])
            arrays[2].add_(arrays[3])
        return tuple(arrays)

    return add


def best_s(call, device):
    """The shortest of ten calls: a ceiling is the best that is possible."""
    times = []
    for _ in range(11):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default=os.environ.get("LAB_DEVICE", "cpu"))
    device = parser.parse_args().device
    torch.set_num_threads(1)
    for working_set in (2**17, 2**19, 2**21, 2**23, 2**25, 2**27, 2**29):
        source = torch.ones(working_set // 8, device=device)
        target = torch.ones_like(source)
        calls = max(1, 2**25 // working_set)
        seconds = best_s(lambda: [target.add_(source) for _ in range(calls)], device)
        # Moves three numbers for every two that the arrays hold.
        rate = 1.5 * calls * working_set / seconds
        print(
            f"a += b, both arrays together {working_set / 2**20:8.3f} MiB: {rate / 1e9:8.1f} GB/s"
        )
    a, b = torch.rand(2048, 2048, device=device), torch.rand(2048, 2048, device=device)
    print(
        f"product of fp32 matrices: {2 * 2048**3 / best_s(lambda: a @ b, device) / 1e9:.0f} GFLOP/s"
    )


if __name__ == "__main__":
    main()
