def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(20)]
    for x in inputs[:14]:
        machine.use(function(x))
    machine.synchronize()
    times = []
    for x in inputs:
        begin = machine.perf_counter()
        machine.use(function(x))
        times.append(machine.perf_counter() - begin)
    times.sort()
    return times[10], times[5], times[15]
