def benchmark(function, make_input, machine):
    for _ in range(20):
        machine.use(function(make_input()))
    times = []
    for _ in range(101):
        x = make_input()
        start, end = machine.event(), machine.event()
        start.record()
        machine.use(function(x))
        end.record()
        machine.synchronize()
        times.append(start.elapsed_s(end))
    times.sort()
    return times[50], times[40], times[60]
