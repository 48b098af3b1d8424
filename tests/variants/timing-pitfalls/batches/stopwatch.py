"""The host's clock around batches of calls, on more data than the cache holds."""

import itertools


def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(40)]
    for x in inputs[:20]:
        machine.use(function(x))
    machine.synchronize()

    turn = itertools.cycle(inputs)

    def timed(n):
        begin = machine.perf_counter()
        for _ in range(n):
            machine.use(function(next(turn)))
        machine.synchronize()
        return (machine.perf_counter() - begin) / n

    one = timed(8)
    n = 1 if one > 16e-3 else max(4, int(16e-3 / one))
    results = [timed(n)]
    while len(results) < 120 and machine.seconds_left() > 2 * n * one + 0.08:
        results.append(timed(n))
    results.sort()
    m = len(results)
    rank = max(0, int(m / 2 - 0.98 * m**0.5))
    return results[m // 2], results[rank], results[m - 1 - rank]
