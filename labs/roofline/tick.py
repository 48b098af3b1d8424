"""One tick of a parameter server: its five operators, timed one by one. `apply_gradients` comes
from `step.py`.
"""

import argparse
import ctypes
import json
import os
import time

import torch

# Sizes of the five operators. A GPU gets more counters: its L2 cache is larger.
FEATURES = 2048  # rows and columns of both matrices of `mail`
TABLE = (16384, 4096)  # of `ads`
PARAMETERS, PUSHED = 8_388_608, 4  # of `apply_gradients`
REQUESTS, WIDTH = 512, 64  # of `feed`
COUNTERS, TICKS = {"cpu": 262_144, "cuda": 4_194_304}, 100  # of `search`

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)


def mail(x, weight):
    """Projects the features of a batch: [2048, 2048] x [2048, 2048]."""
    return x @ weight


def ads(table, query):
    """Scores every row against one query: [16384, 4096] x [4096]."""
    return table @ query


def feed(requests, scale, shift):
    """Calibrates the requests [512, 64] for the expert that receives them."""
    routed = []
    for request in requests:
        routed.append(request * scale + shift)
    return torch.stack(routed)


def search(counters):
    """Decays the use counters of the rows, tick by tick."""
    for _ in range(TICKS):
        counters.mul_(0.99).add_(0.01)
    return counters


def operators(device, apply_gradients):
    """The five operators by name, each ready to be called on its own data."""
    x, weight = (
        torch.randn(FEATURES, FEATURES, device=device),
        torch.randn(FEATURES, FEATURES, device=device),
    )
    table, query = torch.randn(*TABLE, device=device), torch.randn(TABLE[1], device=device)
    p, m, ema = (torch.randn(PARAMETERS, device=device) for _ in range(3))
    v, gradients = (
        torch.rand(PARAMETERS, device=device),
        torch.randn(PUSHED, PARAMETERS, device=device),
    )
    requests, scale, shift = (
        torch.randn(*size, device=device) for size in ((REQUESTS, WIDTH), (WIDTH,), (WIDTH,))
    )
    counters = torch.ones(COUNTERS[device], device=device)
    return {
        "mail": lambda: mail(x, weight),
        "ads": lambda: ads(table, query),
        "apply_gradients": lambda: apply_gradients(p, m, v, ema, gradients, [1e-3] * PUSHED, 1),
        "feed": lambda: feed(requests, scale, shift),
        "search": lambda: search(counters),
    }


def keep_pages():
    """Has the allocator (glibc's) keep the memory that is freed, as a server's does.

    Otherwise each new array of this size gets fresh pages, and the time goes into the kernel, which
    clears them.
    """
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        allocator.mallopt(M_MMAP_MAX, 0)
        allocator.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def milliseconds(call, device):
    """The median of five calls, each timed until it is done."""
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times[1:])[2]


def record(calls, file):
    """Records one call of each under torch.profiler, with shapes, as a trace."""
    with torch.profiler.profile(record_shapes=True) as profiler:
        for name, call in calls.items():
            with torch.profiler.record_function(name):
                call()
    profiler.export_chrome_trace(file)


def main(apply_gradients):
    """Prints the milliseconds of each, on one thread."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default=os.environ.get("LAB_DEVICE", "cpu"))
    parser.add_argument("--trace", help="write a trace of one call of each to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_pages()
    with torch.inference_mode():
        calls = operators(options.device, apply_gradients)
        print(
            json.dumps(
                {
                    name: round(milliseconds(call, options.device), 3)
                    for name, call in calls.items()
                },
                indent=1,
            )
        )
        if options.trace:
            record(calls, options.trace)
