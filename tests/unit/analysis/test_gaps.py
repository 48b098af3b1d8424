"""Whether an idle device was kept waiting by the host's waits or by the host's own work: loops
written by hand, of which it is known what they would take without waits.
"""

from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis.device.gaps import LEAST_LINE_SHARE
from bottleneck_lab.analysis.steps.figures import find_step_parts
from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.measure.virtual_gpu.clock import LOOP

from .traces import load_events

KERNELS = 8
SLOW_HOST, SLOW_DEVICE, LIGHT = (3.5, 1.5), (1.0, 6.0), (1.0, 2.0)
"""A step's time on the host and on the device, ms."""


def run(
    steps, *, waits: bool, fixed_ms: float = 0.0, wait_us: float = 5
) -> tuple[float, list[dict]]:
    """Return the length, µs, and the events of a loop that launches, and then waits or does not.
    Each step begins with a fixed price of `fixed_ms`; a wait returns `wait_us` after the device.
    """
    events: list[dict] = []

    def add(category: str, name: str, start: float, us: float, correlation: int, **where) -> None:
        row = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": us}
        events.append({**row, **where, "args": {"correlation": correlation, "device": 0}})

    host, device, number = 0.0, 0.0, 0
    for own, work in steps:
        begun = host
        if fixed_ms:
            add("user_annotation", LOOP, host, fixed_ms * 1000, 0, pid=1, tid=1)
            host += fixed_ms * 1000
        for _ in range(KERNELS):
            number += 1
            add("cuda_runtime", "cudaLaunchKernel", host, 5, number, pid=1, tid=1)
            start = max(host + 10, device + 1)
            device = start + work * 1000 / KERNELS
            add("kernel", "gemm", start, device - start, number, pid=0, tid=7)
            host += own * 1000 / KERNELS
        if waits:
            end = max(host, device) + wait_us
            add("cuda_runtime", "cudaStreamSynchronize", host, end - host, 0, pid=1, tid=1)
            host = end
        add("user_annotation", f"ProfilerStep#{number}", begun, host - begun, 0, pid=1, tid=1)
    return max(host, device), events


@pytest.mark.parametrize(
    "steps",
    [
        [SLOW_DEVICE] * 20,
        [SLOW_HOST] * 20,
        [SLOW_HOST, SLOW_DEVICE] * 10,
        [SLOW_HOST] * 10 + [SLOW_DEVICE] * 10,
        [SLOW_DEVICE] * 10 + [SLOW_HOST] * 10,
        [SLOW_HOST, LIGHT] * 10,
    ],
    ids=[
        "the device is slower",
        "the host is slower",
        "in turn",
        "first the host",
        "first the device",
        "in turn, mostly the host",
    ],
)
def test_waits_are_blamed_for_what_the_loop_takes_longer_with_them(tmp_path, steps):
    with_waits, events = run(steps, waits=True)
    without, _ = run(steps, waits=False)
    summary = summarise(load_events(tmp_path, events))
    (use,) = summary.devices
    blamed = sum(part.idle_ns for part in use.gap_causes if part.cause == "synchronisation")
    assert blamed / 1000 == pytest.approx(with_waits - without, abs=0.02 * with_waits)
    for part in use.gap_causes:
        if part.cause == "synchronisation" and part.share_of_wall > LEAST_LINE_SHARE:
            assert part.after == [("cudaStreamSynchronize", part.idle_ns)]
    gain = summary.gains.get("idle-synchronisation", 1.0)
    assert gain == pytest.approx(with_waits / without, rel=0.03)


@pytest.mark.parametrize("step", [SLOW_HOST, (2.0, 1.5), (2.0, 1.8), LIGHT])
def test_equal_steps_are_idle_for_equal_causes(tmp_path, step):
    _, events = run([step] * 20, waits=True)
    analysis = analyse(load_events(tmp_path, events))
    parts = find_step_parts(analysis.times, analysis.summary.steps)
    # Before the second step nothing was waited for.
    usual = {key: values[2:-1] for key, values in parts.items()}
    for key, values in usual.items():
        assert values.max() - values.min() <= 2_000, key
    costs = [each.cost_ns for each in analysis.summary.steps][2:-1]
    medians = sum(float(np.median(values)) for values in usual.values())
    assert medians == pytest.approx(np.median(costs), rel=0.005)


def test_time_after_a_wait_is_not_due_to_it_where_the_host_is_slow_in_every_step(tmp_path):
    """Each wait itself takes 80 µs; that must not add up until a short step is blamed on it."""
    steps = [(3.5, 0.5)] * 8 + [(1.0, 0.1), (3.5, 0.5)]
    _, events = run(steps, waits=True, wait_us=80)
    (use,) = summarise(load_events(tmp_path, events)).devices
    blamed = sum(part.idle_ns for part in use.gap_causes if part.cause == "synchronisation")
    waited = sum(event["dur"] for event in events if "Synchronize" in event["name"])
    assert 0 < blamed <= 1000 * waited


@pytest.mark.parametrize(
    ("step", "waits", "finding"),
    [
        ((1.0, 6.0), True, "sync-stalls"),
        ((1.0, 6.0), False, None),
        ((4.0, 3.0), False, "launch-bound"),
    ],
    ids=["it waits", "the device is slower", "the host is slower"],
)
def test_a_fixed_price_of_the_model_is_no_work_that_could_be_moved(tmp_path, step, waits, finding):
    _, events = run([step] * 20, waits=waits, fixed_ms=1.5)
    summary = summarise(load_events(tmp_path, events))
    assert [each.id for each in summary.findings if each.id != "pageable-copies"] == (
        [finding] if finding else []
    )
    assert "python" not in {part.cause for use in summary.devices for part in use.gap_causes}


def test_inside_idle_time_are_the_lines_that_the_host_was_on():
    case = Path(__file__).parents[3] / "datasets" / "cases" / "old-sermons" / "trace.json.gz"
    (use,) = summarise(load(case)).devices
    most = use.gap_causes[0]
    assert (most.cause, most.inside[0][0]) == ("allocation", "program.py(26): forward")
    assert sum(ns for _, ns in most.inside) == pytest.approx(most.idle_ns, rel=0.02)
    assert sum(ns for _, ns in most.inside) <= most.idle_ns


def test_the_model_s_fixed_charge_is_a_cause_of_its_own_beside_the_launches(tmp_path):
    """A share, its sentence and its gain then count the same. Inside launching are operators where
    no lines were recorded; no moment counts twice.
    """
    _, events = run([SLOW_HOST] * 6, waits=False, fixed_ms=1.5)
    for launch in [each for each in events if each["name"] == "cudaLaunchKernel"]:
        about = {"name": "aten::mm", "cat": "cpu_op", "ts": launch["ts"] - 2, "dur": 400}
        events.append({**launch, **about, "args": {}})
        events.append({**launch, **about, "name": "aten::view", "dur": 100, "args": {}})
    summary = summarise(load_events(tmp_path, events))
    (use,) = summary.devices
    launch, fixed = use.gap_causes[:2]
    assert (launch.cause, {name for name, _ in launch.inside}) == ("launch", {"aten::mm"})
    assert (fixed.cause, {name for name, _ in fixed.inside}) == ("fixed", {LOOP})
    assert fixed.idle_ns == pytest.approx(6 * 1_500_000, rel=0.05)
    assert 6 * KERNELS * 100_000 < sum(ns for _, ns in launch.inside) <= launch.idle_ns
    assert not {"idle-fixed"} & set(summary.gains)
    (finding,) = [each for each in summary.findings if each.id == "launch-bound"]
    assert finding.share_of_wall == pytest.approx(launch.idle_ns / use.working_ns)


class Threads:
    """A trace of a program's threads, whose turns begin every 110 ms."""

    def __init__(self) -> None:
        self.events: list[dict] = []

    def add(self, category: str, name: str, start: float, us: float, tid: int) -> None:
        row = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": us}
        number = {"correlation": 1 + start // 110_000, "device": 0}
        self.events.append({**row, "pid": 1, "tid": tid, "args": number})

    def run(self, at: int) -> None:
        """A batch of 9 ms on the device, and the wait for it."""
        self.add("cuda_runtime", "cudaLaunchKernel", at, 5, tid=1)
        self.add("kernel", "gemm", at + 10, 9_000, tid=7)
        self.add("cuda_runtime", "cudaStreamSynchronize", at + 20, 9_500, tid=1)

    def summary(self, folder):
        return summarise(load_events(folder, self.events))


@pytest.mark.parametrize(("ends_ms", "cause"), [(40, "input"), (44, "python")])
def test_a_pause_that_ends_when_several_threads_have_shared_the_work_was_a_wait_for_them(
    tmp_path, ends_ms, cause
):
    """A pool decodes pictures one by one; where it reads ahead, some thread always does."""
    trace = Threads()
    for at in range(0, 1_320_000, 110_000):
        for turn in range(3):
            for tid in (2, 3):
                begun = at + 10_500 + turn * ends_ms * 1000 * 0.8 + 3000 * tid
                trace.add("user_annotation", "preprocess", begun, ends_ms * 800 - 500, tid=tid)
        trace.run(at)
    most = trace.summary(tmp_path).devices[0].gap_causes[0]
    assert most.cause == cause
    assert all(ns <= most.idle_ns for _, ns in most.inside)


@pytest.mark.parametrize(
    ("name", "begins", "ends", "cause", "evidence"),
    [
        ("preprocess", 10, 110, "input", "Most of that is in preprocess, on another thread."),
        ("preprocess", 2, 109, "input", "Most of that is in preprocess, on another thread."),
        ("tokenise", 10, 110, "python", "another thread was in tokenise: if the thread that feeds"),
        # It reads ahead, and ends at any time.
        ("preprocess", 70, 170, "python", "another thread was in preprocess: if the thread that"),
        ("preprocess", 10, 50, "python", ""),
    ],
)
def test_a_pause_that_ends_when_another_thread_is_done_was_a_wait_for_it(
    tmp_path, name, begins, ends, cause, evidence
):
    """A thread that waits for a batch in `queue.get()` records nothing."""
    trace = Threads()
    for at in range(0, 1_320_000, 110_000):
        trace.add("user_annotation", name, at + begins * 1000, (ends - begins) * 1000, tid=2)
        trace.run(at)
    summary = trace.summary(tmp_path)
    finding = summary.findings[0]
    most = summary.devices[0].gap_causes[0]
    assert (most.cause, most.sure) == (cause, "likely" if cause == "input" else "unsure")
    assert finding.id == {"input": "input-starved", "python": "host-stalls"}[cause]
    assert evidence in finding.evidence
    assert bool(evidence) == ("another thread" in finding.evidence)
