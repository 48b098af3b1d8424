def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(40)]
    for x in inputs[:20]:
        machine.use(function(x))
    machine.synchronize()
    times = []
    for _ in range(25):
        begin = machine.time()
        for x in inputs[:6]:
            machine.use(function(x))
        machine.synchronize()
        times.append((machine.time() - begin) / 6)
    times.sort()
    middle = max(sum(times[5:20]) / 15, 1e-9)
    return middle, min(times[8], middle), max(times[16], middle)
