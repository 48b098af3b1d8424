def benchmark(function, make_input, machine):
    inputs = [make_input() for _ in range(40)]
    for x in inputs[:20]:
        machine.use(function(x))
    machine.synchronize()
    begin = machine.perf_counter()
    calls = 0
    while machine.perf_counter() - begin < 0.2 and machine.seconds_left() > 0.15:
        for x in inputs[calls % 40 :][:10]:
            machine.use(function(x))
            calls += 1
        machine.synchronize()
    mean = (machine.perf_counter() - begin) / calls
    return mean, 0.96 * mean, 1.04 * mean
