"""How long does one call take? Three of us measured it.

Alone, on a few functions of PyTorch and this machine: python stopwatch.py --device cpu|cuda
"""

import argparse


def notebook(function, make_input, machine):
    """From Ada's notebook."""
    for _ in range(10):
        machine.use(function(make_input()))
    machine.synchronize()
    times = []
    for _ in range(20):
        start, end = machine.event(), machine.event()
        start.record()
        machine.flush_cache()
        machine.use(function(make_input()))
        end.record()
        machine.synchronize()
        times.append(start.elapsed_s(end))
    return sum(times) / len(times)


def nightly(function, make_input, machine):
    """From the nightly build, which keeps the best of fifty."""
    x = make_input(fill=0.0)
    machine.use(function(x))
    machine.synchronize()
    best = float("inf")
    for _ in range(50):
        start = machine.perf_counter()
        machine.use(function(x))
        machine.synchronize()
        best = min(best, machine.perf_counter() - start)
    return best


def paper(function, make_input, machine):
    """From the paper's appendix."""
    x = make_input()
    for _ in range(10):
        machine.use(function(x))
    machine.synchronize()
    start = machine.time()
    for _ in range(1000):
        function(x)
    return (machine.time() - start) / 1000


def benchmark(function, make_input, machine):
    """The cost of one call of `function` in seconds: an estimate, and the ends of an interval that
    contains the true cost 95 times in 100.
    """
    best = nightly(function, make_input, machine)
    return best, 0.98 * best, 1.02 * best


def main():
    import torch
    from machine import Here

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)  # threads that wait for each other measure the neighbours
    functions = {
        "matmul": lambda x: x @ x,
        "softmax": lambda x: torch.softmax(x, 1),
        "add": lambda x: x + 1,
    }
    for name, function in functions.items():
        here = Here(device, function, lambda: torch.randn(512, 512, device=device))
        for way in (notebook, nightly, paper, benchmark):
            result = way(function, here.make_input, here)
            best, *ends = result if isinstance(result, tuple) else (result,)
            print(
                f"{name:8} {way.__name__:10} {best * 1e6:10.2f} µs",
                *(f"{end * 1e6:.2f}" for end in ends),
            )


if __name__ == "__main__":
    main()
