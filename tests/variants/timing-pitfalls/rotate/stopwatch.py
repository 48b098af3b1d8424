"""Events, without flushing: more inputs in turn than the cache holds."""

import random


def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(60)]
    start = machine.perf_counter()
    i = 0
    while i < 20 or machine.perf_counter() - start < 0.03:
        machine.use(function(inputs[i % 60]))
        machine.synchronize()
        i += 1
    mean_call = (machine.perf_counter() - start) / i
    n = 300 if mean_call < 2e-3 else min(300, int(0.65 * machine.seconds_left() / mean_call))
    events = [machine.event() for _ in range(n + 21)]
    for j, event in enumerate(events):
        event.record()
        machine.use(function(inputs[(i + j) % 60]))
    machine.synchronize()
    lengths = [
        a.elapsed_s(b)
        for a, b in zip(
            events[20 if mean_call < 2e-3 else 0 :], events[21 if mean_call < 2e-3 else 1 :]
        )
    ]
    lengths.sort()
    m = len(lengths)
    reach = int(0.98 * m**0.5) + 1
    return lengths[m // 2], lengths[max(0, m // 2 - reach)], lengths[min(m - 1, m // 2 + reach)]
