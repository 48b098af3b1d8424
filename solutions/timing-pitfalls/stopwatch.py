"""How long does one call take? Measured call by call on the device's own clock, each on data that
is in no cache.

Alone, on a few functions of PyTorch and this machine: python stopwatch.py --device cpu|cuda
"""

import argparse
from math import comb

GROUP, MOST, WARM_UP_S = 20, 400, 0.03


def benchmark(function, make_input, machine):
    """The cost of one call of `function` in seconds: an estimate, and the ends of an interval that
    contains the true cost 95 times in 100.
    """
    inputs = [make_input() for _ in range(GROUP)]
    warm_up(function, inputs, machine)

    times, longest_s, left_s = [], 0.0, machine.seconds_left()
    # More calls make the interval narrower; stop while two slow groups would still fit
    while len(times) < MOST and left_s > 2 * longest_s + 0.03:
        times += timed_calls(function, inputs, machine)
        before_s, left_s = left_s, machine.seconds_left()
        longest_s = max(longest_s, before_s - left_s)
    return median_with_interval(times)


def timed_calls(function, inputs, machine):
    """Seconds of one call on each input, by the device's own clock."""
    marks = []
    for x in inputs:
        start, end = machine.event(), machine.event()
        # Before the window; while the device is busy with it, the call gets into the queue
        machine.flush_cache()
        start.record()
        machine.use(function(x))
        end.record()
        marks.append((start, end))
    machine.synchronize()
    return [start.elapsed_s(end) for start, end in marks]


def warm_up(function, inputs, machine):
    """Makes calls until the function is compiled and tuned, by one call on each input, and the
    clocks are up.
    """
    begin = now = machine.perf_counter()
    while now - begin < WARM_UP_S:
        for x in inputs:
            machine.use(function(x))
        machine.synchronize()
        now = machine.perf_counter()


def median_with_interval(times):
    """The median, which stalls hardly move, and the order statistics that enclose it at least 95
    times in 100, whatever the distribution.
    """
    times, n, k, tail = sorted(times), len(times), 0, 0.5 ** len(times)
    while tail <= 0.025:
        k += 1
        tail += comb(n, k) * 0.5**n
    return (times[(n - 1) // 2] + times[n // 2]) / 2, times[max(k - 1, 0)], times[n - max(k, 1)]


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
        best, low, high = benchmark(function, here.make_input, here)
        print(f"{name:8} {best * 1e6:10.2f} µs ({low * 1e6:.2f} – {high * 1e6:.2f})")


if __name__ == "__main__":
    main()
