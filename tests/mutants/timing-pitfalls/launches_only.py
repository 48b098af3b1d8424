def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(100)]
    for x in inputs[:20]:
        machine.use(function(x))
    machine.synchronize()
    times = []
    for x in inputs:
        begin = machine.perf_counter()
        machine.use(function(x))
        times.append(machine.perf_counter() - begin)
    times.sort()
    return times[50], times[40], times[60]
