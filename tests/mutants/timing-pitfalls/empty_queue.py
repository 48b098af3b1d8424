def benchmark(function, make_input, machine):
    for _ in range(14):
        machine.use(function(make_input()))
    times = []
    while len(times) < 101 and machine.seconds_left() > 0.05:
        x = make_input()
        start, end = machine.event(), machine.event()
        start.record()
        machine.use(function(x))
        end.record()
        machine.synchronize()
        times.append(start.elapsed_s(end))
    times.sort()
    n = len(times)
    return times[n // 2], times[n // 2 - int(n**0.5)], times[n // 2 + int(n**0.5)]
