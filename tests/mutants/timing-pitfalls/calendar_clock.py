def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(40)]
    for x in inputs[:20]:
        machine.use(function(x))
    machine.synchronize()
    times = []
    while len(times) < 19 and machine.seconds_left() > 0.15:
        begin = machine.time()
        for x in inputs[:6]:
            machine.use(function(x))
        machine.synchronize()
        times.append((machine.time() - begin) / 6)
    times.sort()
    n = len(times)
    middle = max(sum(times[n // 5 : n - n // 5]) / (n - 2 * (n // 5)), 1e-9)
    return middle, min(times[n // 4], middle), max(times[3 * n // 4], middle)
