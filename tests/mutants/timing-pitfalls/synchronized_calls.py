def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(100)]
    for x in inputs[:20]:
        machine.use(function(x))
    times = []
    for x in inputs:
        machine.flush_cache()
        machine.synchronize()
        begin = machine.perf_counter()
        machine.use(function(x))
        machine.synchronize()
        times.append(machine.perf_counter() - begin)
    times.sort()
    return times[50], times[40], times[60]
