"""A trimmed mean and its bootstrap interval."""

import numpy as np


def trimmed(values):
    values = np.sort(values, axis=-1)
    cut = values.shape[-1] // 5
    return values[..., cut : values.shape[-1] - cut].mean(axis=-1)


def benchmark(function, make_input, machine):
    xs = [make_input() for _ in range(64)]
    t, i = machine.perf_counter(), 0
    while i < 14 or machine.perf_counter() - t < 0.02:
        machine.use(function(xs[i % 64]))
        i += 1
        if i % 7 == 0:
            machine.synchronize()
    machine.synchronize()
    marks = []
    t = machine.perf_counter()
    while machine.seconds_left() > 0.2 and (len(marks) < 256 or machine.perf_counter() - t > 0.3):
        for x in xs:
            if machine.seconds_left() < 0.2:
                break
            a, b = machine.event(), machine.event()
            machine.flush_cache()
            a.record()
            machine.use(function(x))
            b.record()
            marks.append((a, b))
            if len(marks) % 8 == 0:
                machine.synchronize()
    machine.synchronize()
    values = np.array([a.elapsed_s(b) for a, b in marks])
    rng = np.random.default_rng(1)
    again = trimmed(values[rng.integers(0, len(values), (500, len(values)))])
    low, high = np.quantile(again, [0.02, 0.98])
    best = float(trimmed(values))
    return best, min(float(low), best), max(float(high), best)
