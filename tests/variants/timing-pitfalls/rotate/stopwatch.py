"""Events, without flushing: more inputs in turn than the cache holds."""

import itertools


def benchmark(function, make_input, machine):
    inputs = itertools.cycle([make_input() for _ in range(40)])
    start = machine.perf_counter()
    for i in itertools.count():
        if i >= 14 and machine.perf_counter() - start > 0.03:
            break
        machine.use(function(next(inputs)))
        machine.synchronize()
    lengths, slowest, left = [], 0.0, machine.seconds_left()
    while left > 3 * slowest and len(lengths) < (200 if slowest < 0.02 else 2000):
        events = [machine.event() for _ in range(10)]
        for event in events:
            event.record()
            machine.use(function(next(inputs)))
        machine.synchronize()
        # The first call is launched into an empty queue
        lengths += [a.elapsed_s(b) for a, b in itertools.pairwise(events[1:])]
        before, left = left, machine.seconds_left()
        slowest = max(slowest, before - left)
    lengths.sort()
    m = len(lengths)
    reach = int(0.98 * m**0.5) + 1
    return lengths[m // 2], lengths[max(0, m // 2 - reach)], lengths[min(m - 1, m // 2 + reach)]
