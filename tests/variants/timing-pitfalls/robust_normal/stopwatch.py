"""The median, and a normal interval whose scale is that of the middle half of the calls."""

from statistics import quantiles


def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(12)]
    calls = [0]

    def group():
        pairs = [(machine.event(), machine.event()) for _ in inputs]
        for x, (begin, end) in zip(inputs, pairs):
            machine.flush_cache()
            begin.record()
            machine.use(function(x))
            end.record()
        machine.synchronize()
        calls[0] += len(inputs)
        return [begin.elapsed_s(end) for begin, end in pairs]

    start = machine.perf_counter()
    while calls[0] < 14 or machine.perf_counter() - start < 0.02:
        group()
    seconds, first = [], machine.seconds_left()
    while len(seconds) < 12 or (
        len(seconds) < 300
        and machine.seconds_left() > 20 * (first - machine.seconds_left()) / len(seconds) + 0.06
    ):
        seconds += group()
    low, middle, high = quantiles(seconds, n=4)
    error = 1.2533 * (high - low) / 1.349 / len(seconds) ** 0.5
    return middle, middle - 2 * error, middle + 2 * error
