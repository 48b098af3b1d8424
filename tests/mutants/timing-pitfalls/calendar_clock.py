def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(40)]
    for x in inputs[:20]:
        machine.use(function(x))
    machine.synchronize()
    times = []
    for _ in range(19):
        begin = machine.time()
        for x in inputs[:6]:
            machine.use(function(x))
        machine.synchronize()
        times.append((machine.time() - begin) / 6)
    times.sort()
    middle = max(sum(times[4:15]) / 11, 1e-9)
    return middle, min(times[5], middle), max(times[13], middle)
