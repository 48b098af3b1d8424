"""Measures on until the interval is as narrow as wanted, or the time is up; confidence kept up for looking more than once."""

from math import comb


def interval(values, miss):
    values, n = sorted(values), len(values)
    k, tail = 0, 0.5**n
    while tail <= miss / 2:
        k += 1
        tail += comb(n, k) * 0.5**n
    k = max(k, 1)
    return values[n // 2], values[k - 1], values[n - k]


def benchmark(function, make_input, machine):
    pool = [make_input() for _ in range(30)]
    begin = machine.perf_counter()
    for i in range(10**6):
        machine.use(function(pool[i % 30]))
        machine.synchronize()
        if i >= 16 and machine.perf_counter() - begin > 0.025:
            break
    values = []
    for look in (40, 80, 160, 320):
        while len(values) < look and machine.seconds_left() > 0.3:
            pairs = []
            for x in pool[: 10 if machine.seconds_left() > 0.6 else 3]:
                a, b = machine.event(), machine.event()
                machine.flush_cache()
                a.record()
                machine.use(function(x))
                b.record()
                pairs.append((a, b))
            machine.synchronize()
            values += [a.elapsed_s(b) for a, b in pairs]
        middle, low, high = interval(values, 0.0125)
        if (high - low) / 2 < 0.02 * middle or machine.seconds_left() < 0.3:
            break
    return middle, low, high
