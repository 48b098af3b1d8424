"""The limit of each operator of a tick on this machine: `python key.py` measures them as shipped
and prints the answers as JSON. Trusted, and never handed out.

Times are CPU times of the one thread that works, so other programs hardly count.
"""

import argparse
import json
import time

import tick
import torch

FAR = 1 / 3
"""Below this share of every line, it is the overhead that counts: as the questions say."""
ABOVE = 1.25
"""Above memory's line by this factor, the data come from a cache."""


def seconds(call, device, times=5):
    """The shortest of several calls, s: of the thread on a CPU, until it is done on a GPU."""
    taken, clock = [], time.thread_time if device == "cpu" else time.perf_counter
    for _ in range(times + 1):
        begin = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(clock() - begin)
    return min(taken[1:])


def limit(flop, moved, taken, memory, cache, peak):
    """The limit of an operator that does `flop` operations and moves `moved` bytes in `taken`
    seconds, where memory and the fastest cache deliver so many bytes/s and arithmetic reaches
    `peak` operations/s.
    """
    if flop / moved * cache >= peak and flop / moved * memory >= FAR * peak:
        return "compute-bound" if flop / taken >= FAR * peak else "overhead-bound"
    if moved / taken < FAR * memory:
        return "overhead-bound"
    return "cache-bound" if moved / taken > ABOVE * memory else "memory-bound"


def additions(size, device):
    """Bytes per second of `a += b` on two arrays of `size` numbers each."""
    a, b, calls = (*torch.ones(2, size, device=device), max(1, 2**24 // size))
    return 12 * size * calls / seconds(lambda: [a.add_(b) for _ in range(calls)], device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    tick.keep_pages()
    numbers = tick.REQUESTS * tick.WIDTH
    rows, columns = tick.TABLE
    decayed = tick.TICKS * tick.COUNTERS[device]
    work = {  # operations and bytes, as the solution counts them
        "mail": (2 * tick.FEATURES**3, 12 * tick.FEATURES**2),
        "ads": (2 * rows * columns, 4 * rows * columns),
        "feed": (2 * numbers, 24 * numbers),
        "search": (2 * decayed, 16 * decayed),
    }
    with torch.inference_mode():
        a, b = torch.rand(2, 2048, 2048, device=device)
        lines = (
            additions(2**25, device),
            max(additions(2**power, device) for power in (16, 18, 20)),
            2 * 2048**3 / seconds(lambda: a @ b, device),
        )
        limits = {
            name: limit(*work[name], seconds(call, device), *lines)
            for name, call in tick.operators(device, None).items()
            if name in work
        }
    print(json.dumps(limits))


if __name__ == "__main__":
    main()
