def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(60)]
    for x in inputs[:14]:
        machine.use(function(x))
    times = []
    for x in inputs:
        if machine.seconds_left() < 0.05:
            break
        machine.flush_cache()
        machine.synchronize()
        begin = machine.perf_counter()
        machine.use(function(x))
        machine.synchronize()
        times.append(machine.perf_counter() - begin)
    times.sort()
    n = len(times)
    return times[n // 2], times[n // 2 - int(n**0.5)], times[n // 2 + int(n**0.5)]
