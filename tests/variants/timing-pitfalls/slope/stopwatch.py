"""Two batches of different length: what launching and waiting cost is in both, and their difference has it no more."""

from statistics import median


def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(32)]
    k = 0

    def timed(n):
        nonlocal k
        t = machine.perf_counter()
        for _ in range(n):
            machine.use(function(inputs[k % 32]))
            k += 1
        machine.synchronize()
        return machine.perf_counter() - t

    for _ in range(4):
        timed(5)
    rough = timed(8) / 8
    if rough > 4e-3:
        short, long = 0, 1
    elif rough > 1.2e-3:
        short, long = 1, 12
    else:
        short, long = 2, 2 + max(4, int(3e-3 / rough))
    slopes, most = [], 300 if rough < 1e-3 else 2000
    while len(slopes) < most and machine.seconds_left() > 0.1 + 3 * long * rough:
        slopes.append((timed(long) - timed(short)) / (long - short))
    slopes.sort()
    n = len(slopes)
    r = max(0, int(n / 2 - 0.98 * n**0.5) - 1)
    return median(slopes), slopes[r], slopes[n - 1 - r]
