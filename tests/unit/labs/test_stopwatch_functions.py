"""`timing-pitfalls` on real work, with a stand-in for the device: the same judge and harness, and a
clock that only host and device move.
"""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant
from bottleneck_lab.measure.lab_rules.variants import variants

from ...modules import load_file
from .benches import GpuBench, StoodInBench
from .trials import failed, judge_answers

pytestmark = pytest.mark.long
LAB = find_lab("timing-pitfalls")


@pytest.fixture
def bench():
    return StoodInBench()


@pytest.fixture(params=[StoodInBench, GpuBench], ids=["cpu", "cuda"])
def either(request):
    """A bench of each device."""
    return request.param()


@pytest.fixture
def judge():
    """The lab's judge, whose real devices read the clock of their bench."""
    found = load_file(LAB.path / "judge.py", "judge of timing-pitfalls")
    real = found.beside("hardware").device_class(found.emulator())

    def device(function, rng, budget_s, bench):
        return real(function, rng, budget_s, bench, clock=bench.clock, computed=bench.clock)

    found.real_device = lambda: device
    return found


def settings_of(bench):
    return {**LAB.spec.devices[bench.device].settings["judge"], "bench": bench}


def check(judge, folder, bench, seed=1):
    """What the judge says of an entry file with `bench` as its device."""
    harness = load_file(LAB.path / "machine.py", "harness of timing-pitfalls")
    learners = load_file(folder / LAB.spec.entry, "entry of timing-pitfalls")
    return judge_answers(judge, harness, lambda: learners, settings_of(bench), seed)


@pytest.mark.parametrize(
    "folder", [LAB.solution, *variants(LAB, "cpu")], ids=lambda folder: folder.name
)
def test_right_benchmarks_pass(folder, judge, either):
    found = check(judge, folder, either)
    assert not failed(found), found
    assert set(found) == {criterion.id for criterion in LAB.spec.devices[either.device].criteria}


def test_the_starter_is_wrong(judge, either):
    kinds = {criterion.id: criterion.kind for criterion in LAB.spec.devices[either.device].criteria}
    assert "correctness" in {kinds[id_] for id_ in failed(check(judge, LAB.path, either))}


@pytest.mark.parametrize("mutant", load_mutants(LAB, "cpu"), ids=lambda mutant: mutant.id)
def test_a_wrong_answer_fails_its_own_criterion(mutant, judge, either, tmp_path):
    if mutant.id not in {declared.id for declared in load_mutants(LAB, either.device)}:
        pytest.skip("a check on this device does not show it every time")
    write_mutant(LAB, mutant, tmp_path)
    assert mutant.criterion in failed(check(judge, tmp_path, either))


@pytest.fixture
def machine(judge, bench):
    """What a benchmark is called with: a function of 1 ms on a device that is stood in for; and the
    trial.
    """
    function = judge.emulator().Function(
        1e-3, 0.0, 1e-5, 0.02, (1.0,), 2 << 20, 0.5, 0.1, lazy=False
    )
    device = judge.device_for(function, np.random.default_rng(0), 2.0, settings_of(bench))
    device._until_stall_s = 1e9
    trial = judge.Trial("one", function, device)
    harness = load_file(LAB.path / "machine.py", "harness of timing-pitfalls")
    return harness.Machine(lambda *values: trial.serve(list(values))), trial


def test_what_a_benchmark_computes_while_the_device_is_idle_takes_none_of_the_hosts_time(
    machine, bench
):
    machine, _ = machine
    before = machine.perf_counter()
    bench.now_s += 0.5
    assert machine.perf_counter() - before < 1e-4


def test_the_hosts_time_goes_on_while_the_device_has_work(machine, bench):
    machine, _ = machine
    x = machine.make_input()
    for _ in range(100):
        machine.use(machine.function(x))
    before = machine.perf_counter()
    bench.now_s += 0.02
    assert 0.02 < machine.perf_counter() - before < 0.021


def test_an_event_has_a_time_when_the_host_has_waited_for_it(machine):
    machine, _ = machine
    x, start, end = machine.make_input(), machine.event(), machine.event()
    for _ in range(40):
        machine.use(machine.function(x))  # until the clocks are up
    start.record()
    machine.use(machine.function(x))
    end.record()
    with pytest.raises(RuntimeError, match="synchronize first"):
        start.elapsed_s(end)
    machine.synchronize()
    assert start.elapsed_s(end) == pytest.approx(
        5e-4, rel=0.01
    )  # half of the cost: the input lies in the cache


def test_a_function_with_more_than_one_piece_in_twenty_off_its_time_does_not_count(machine, bench):
    machine, trial = machine

    def flush(stretch):
        bench.stretch = stretch
        machine.flush_cache()
        machine.synchronize()
        machine.perf_counter()

    for number in range(40):
        flush(2.0 if number < 2 else 1.0)
    assert not trial.device.disturbed
    flush(2.0)
    assert trial.device.disturbed == "5% of the work took at least 2.0 times as long as it should"


def hold_up(bench, seconds):
    """Have whatever waits for the device learn so much later that it is done."""
    report = type(bench).report

    def late():
        found = report(bench)
        bench.now_s += seconds
        bench.done_s = bench.now_s
        return found

    bench.report = late


@pytest.mark.parametrize("held_up_s", [5e-5, 1e-3])
def test_the_clock_stands_still_for_as_long_as_a_wait_is_held_up(machine, bench, held_up_s):
    machine, trial = machine

    def timed():
        before = machine.perf_counter()
        machine.flush_cache()
        machine.synchronize()
        return machine.perf_counter() - before

    undisturbed = [timed() for _ in range(100)][-1]  # the clocks are up by then
    hold_up(bench, held_up_s)
    assert [timed() for _ in range(20)] == pytest.approx([undisturbed] * 20, abs=1e-5)
    assert not trial.device.disturbed


def stretch(bench):
    """Have a piece take twice its time."""
    bench.notes[-1] = (bench.notes[-1][0], bench.notes[-1][1], bench.notes[-1][2] + 5e-4)
    bench.free_s += 5e-4


def pause(bench):
    """Have the next piece begin late, though the last one ended when it should."""
    bench.free_s += 4e-5


@pytest.mark.parametrize("disturb", [stretch, pause])
def test_pauses_that_few_calls_meet_but_every_batch_does_are_in_no_time(machine, bench, disturb):
    machine, trial = machine
    x, run = machine.make_input(), bench.work

    def work(seconds):
        run(seconds)
        if next(number) % 25 == 0:
            disturb(bench)

    def timed():
        start, end, before = machine.event(), machine.event(), machine.perf_counter()
        start.record()
        for _ in range(100):
            machine.use(machine.function(x))
        end.record()
        machine.synchronize()
        return machine.perf_counter() - before, start.elapsed_s(end)

    timed()
    undisturbed = timed()
    bench.work, number = work, count()
    for _ in range(20):
        assert timed() == pytest.approx(undisturbed, rel=1e-3)
    assert not trial.device.disturbed


def test_a_function_with_more_than_one_wait_in_twenty_lengthened_does_not_count(judge, bench):
    """A host that is held up before a wait has read its clock, which cannot be set back."""
    paused_s, run = 0.0, bench.work
    device = judge.beside("hardware").device_class(judge.emulator())(
        judge.emulator().Function(1e-3, 0.0, 1e-5, 0.02, (1.0,), 2 << 20, 0.5, 0.1, lazy=False),
        np.random.default_rng(0),
        2.0,
        bench,
        clock=bench.clock,
        computed=lambda: bench.clock() - paused_s,
    )
    harness = load_file(LAB.path / "machine.py", "harness of timing-pitfalls")
    trial = judge.Trial("one", None, device)
    machine = harness.Machine(lambda *values: trial.serve(list(values)))

    def wait(seconds):
        def work(due_s):
            nonlocal paused_s
            run(due_s)
            bench.now_s += seconds
            paused_s += seconds

        bench.work = work
        machine.flush_cache()
        machine.synchronize()
        machine.perf_counter()

    for number in range(20):
        wait(1e-2 if number < 1 else 0.0)
    assert not device.disturbed
    wait(1e-2)
    assert device.disturbed == "other programs lengthened 2 of 21 waits for the device"


def test_what_it_takes_to_hand_over_and_to_write_down_the_devices_notes_is_in_no_window(
    machine, bench
):
    machine, trial = machine
    report = bench.report

    def slow():
        found = report()
        bench.now_s += 0.5
        return found

    class SlowList(list):
        def append(self, found):
            bench.now_s += 0.5
            super().append(found)

    bench.report, trial.device._reports = slow, SlowList()
    before = machine.perf_counter()
    machine.flush_cache()
    machine.synchronize()
    assert machine.perf_counter() - before < 1e-2


def test_a_benchmark_that_is_late_on_a_disturbed_machine_does_not_fail(judge, bench, tmp_path):
    mutant = next(each for each in load_mutants(LAB, "cpu") if each.id == "out-of-time")
    write_mutant(LAB, mutant, tmp_path)
    bench.stretch = 10.0
    with pytest.raises(BusyMachineError, match="ran out of time while this machine disturbed it"):
        check(judge, tmp_path, bench)


def test_a_machine_that_does_not_keep_still_ends_the_check_early(judge, bench):
    bench.stretch = 1.5
    with pytest.raises(BusyMachineError, match="of 20 functions"):
        check(judge, LAB.solution, bench)
