"""Bounds of gains against programs with switches: what turning something off really brings."""

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis.detectors.idle import WAITS
from bottleneck_lab.analysis.device.use import find_device_uses
from bottleneck_lab.analysis.what_if import program
from bottleneck_lab.analysis.what_if.gain import WhatIf, replayed
from bottleneck_lab.analysis.what_if.removal import NOTHING, Removal
from bottleneck_lab.report.evidence_only import evidence_only

from ...modules import load_file
from .traces import load_trace, summarise_run

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "bounds.py"

PROGRAMS = 100
SINCE_1970_NS = 1_700_000_000_000_000_000


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("bottleneck", "part"),
    [
        ("input", "idle-input"),
        ("sync", "idle-synchronisation"),
        ("pageable", "copy"),
        ("communication", "communication"),
    ],
)
def test_the_bound_is_what_the_healthy_program_gains(summary_of, bottleneck, part, seed):
    slow, healthy = summary_of(bottleneck, seed=seed), summary_of("healthy", seed=seed)
    gained = slow.wall_ns / healthy.wall_ns
    assert slow.gains[part] == pytest.approx(gained, rel=0.02)


def random_program(make, seed: int, without: str = ""):
    """A training loop of random proportions; the same but for what is switched off."""
    rng = random.Random(seed)
    run = make.Program(jitter=0.0)
    loading, kernels, kernel_us = rng.choice([0, 300, 2_000, 6_000]), rng.randint(3, 40), 0.0
    kernel_us = rng.choice([3.0, 20.0, 120.0, 400.0])
    host_us = rng.choice([12.0, 40.0, 100.0])
    python_us = rng.choice([0, 80, 350, 600, 1_500])
    every = rng.choice([1, 1, 1, 2, 4])
    for number in range(12):
        begin = run.host
        if without != "input":
            run.python(loading)
        run.range("data", begin)
        for _ in range(kernels):
            run.operator("aten::mm", "kernel", kernel_us, host_us=host_us)
        run.python(python_us)
        if number % every == 0:
            run.item(waits=without != "waits")
        run.range(f"ProfilerStep#{number}", begin)
    return run


def wall_us(run) -> float:
    """How long a program takes, to the end of its last work."""
    begin = min(event["ts"] for event in run.events)
    return max(event["ts"] + event["dur"] for event in run.events) - begin


@pytest.fixture(scope="module")
def tried(make, tmp_path_factory):
    """(largest possible gain as told, true gain) of random programs, by what is switched off."""
    folder = tmp_path_factory.mktemp("programs")
    results = {"input": [], "waits": []}
    for seed in range(PROGRAMS):
        run = random_program(make, seed)
        path = folder / f"{seed}.json"
        path.write_text(json.dumps(run.trace()))
        timeline = load(path)
        what_if = WhatIf(timeline, [time.program for _, time in find_device_uses(timeline)])
        for switch, removal in (("input", Removal(causes=("input",))), ("waits", WAITS)):
            gained = wall_us(run) / wall_us(random_program(make, seed, without=switch))
            bound = what_if.gain(removal)
            results[switch].append(SimpleNamespace(seed=seed, bound=bound, gained=gained))
    return results


@pytest.mark.parametrize("switch", ["input", "waits"])
def test_bounds_hold_and_are_near(tried, switch):
    pairs = tried[switch]
    assert sum(pair.gained > 1.1 for pair in pairs) >= 5
    held = sum(pair.bound >= 0.99 * pair.gained for pair in pairs)
    near = sum(pair.bound <= 1.2 * pair.gained for pair in pairs)
    assert held == len(pairs), [p for p in pairs if p.bound < 0.99 * p.gained]
    assert near >= 0.8 * len(pairs), [p for p in pairs if p.bound > 1.2 * p.gained]


def gains_of(tmp_path, run):
    """The gains that the report states of a program."""
    return summarise_run(tmp_path, run).gains


def test_a_bound_leaves_in_what_the_host_s_model_charges_whatever_runs(tmp_path, make):
    """12 steps of 40 launches that come too late, and of a fixed 900 µs."""
    run = make.Program(jitter=0.0)
    for number in range(12):
        begin = run.host
        for _ in range(40):
            run.operator("aten::mm", "kernel", 1.0, host_us=20.0)
        loop = run.host
        run.python(900)
        run.range("fixed charge of a step (modelled)", loop)
        run.range(f"ProfilerStep#{number}", begin)
    summary = summarise_run(tmp_path, run)
    (use,) = summary.devices
    for gain in (summary.gains["idle-launch"], summary.findings[0].expected_gain_ratio):
        assert use.working_ns / gain == pytest.approx(12 * 900_000, rel=0.1)
        assert gain == pytest.approx(wall_us(run) / (12 * 900), rel=0.1)


def test_drawn_programs_gain_no_more_than_is_stated(tmp_path):
    """The first of `benchmarks/bounds.py`, which tries hundreds."""
    bounds = load_file(BENCHMARK, "bounds")
    cases = [*bounds.one_rank(tmp_path, range(1, 21)), *bounds.several_ranks(tmp_path, range(1, 5))]
    assert len(cases) > 30
    assert [case for case in cases if case.off < 1 / bounds.TOLERANCE] == []
    assert sum(case.off < 1.2 for case in cases) > 0.85 * len(cases)


def test_gains_do_not_depend_on_when_the_clock_began(timeline_of):
    """Nanoseconds since 1970, times the number of a stream, may exceed 64 bits."""
    timeline = timeline_of("sync")
    streams = np.arange(len(timeline.device)) % 8
    early = replace(timeline, device=replace(timeline.device, stream=streams))
    late = replace(
        early,
        **{
            name: replace(table, start=table.start + SINCE_1970_NS, end=table.end + SINCE_1970_NS)
            for name in ("device", "runtime", "operators", "ranges")
            for table in [getattr(early, name)]
        },
    )
    assert summarise(early).gains
    assert summarise(late).gains == summarise(early).gains


def test_rows_behind_what_is_replayed_change_nothing(timeline_of, monkeypatch):
    timeline, gains = timeline_of("sync"), []
    monkeypatch.setattr(program, "MOST_TASKS", 100)
    for rows in (200, len(timeline.device)):
        monkeypatch.setattr(program, "MOST_ROWS", rows)
        gains.append(summarise(timeline).gains)
    assert len(timeline.device) > 400
    assert gains[0] == gains[1] != {}


def test_a_wait_is_not_for_work_that_is_launched_after_it(make, tmp_path):
    """The value is there before the wait begins; the next kernel ends 20 us after it."""

    def asking(*, waits: bool):
        run = make.Program(jitter=0.0)
        for _ in range(200):
            run.operator("aten::mm", "kernel", 4.0, host_us=6.0)
            run.item(waits=waits)
        run.wait()
        return run

    brought = wall_us(asking(waits=True)) / wall_us(asking(waits=False))
    gained = gains_of(tmp_path, asking(waits=True))["idle-synchronisation"]
    assert gained == pytest.approx(brought, rel=0.01)


def test_a_range_alone_gains_what_a_program_without_it_has(make, tmp_path):
    """Each step reads a norm, which makes the host wait, and then updates with small kernels."""

    def steps(*, norms: bool, update: bool):
        run = make.Program(jitter=0.0)
        for _ in range(20):
            for _ in range(10):
                run.operator("aten::mm", "kernel", 60.0, host_us=20.0)
            if norms:
                begin = run.host
                run.item()
                run.range("norms", begin)
            if update:
                begin = run.host
                for _ in range(10):
                    run.operator("aten::add_", "small", 2.0, host_us=20.0)
                run.range("update", begin)
        run.wait()
        return run

    timeline = load_trace(tmp_path, steps(norms=True, update=True).trace())
    whole = wall_us(steps(norms=True, update=True))
    for scope, rest in (
        ("norms", {"norms": False, "update": True}),
        ("update", {"norms": True, "update": False}),
    ):
        gain = replayed(timeline).gain(Removal(scopes=(scope,)))
        assert gain == pytest.approx(whole / wall_us(steps(**rest)), rel=0.03)
    assert replayed(timeline).gain(Removal(scopes=("elsewhere",))) == 1.0


def test_the_line_that_waits_longest_saves_what_a_replay_without_it_does(
    make, tmp_path, monkeypatch
):
    """Without lines it is the operator; a capture of more events than a lab has says nothing."""
    run = make.Program(jitter=0.0)
    for _ in range(50):
        run.operator("aten::mm", "kernel", 60.0, host_us=20.0)
        run.item()
        run.python(100.0)
    run.wait()
    timeline = load_trace(tmp_path, run.trace())
    gain = summarise(timeline).longest_wait_gain
    assert gain == replayed(timeline).gain(Removal(scopes=("aten::item",)))
    assert gain > 1.2
    monkeypatch.setattr("bottleneck_lab.analysis.summary.LAB_EVENTS", 10)
    assert summarise(timeline).longest_wait_gain is None


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_idle_time_belongs_to_the_operator_that_waited_last_before_it(make, tmp_path, scale):
    """The host goes on for 0.4 ms after a number was read, and for 0.1 ms after a mask was; or for
    so little that the device is idle for less than a twentieth of the time.
    """
    run = make.Program(jitter=0.0)
    for _ in range(10):
        for name, pause_us in (("aten::item", 400.0), ("aten::nonzero", 100.0)):
            run.operator("aten::mm", "kernel", 600.0, host_us=6.0)
            begin = run.host
            run.wait()
            run.add("cpu_op", name, begin, run.host - begin)
            run.host += scale * pause_us
    summary = summarise_run(tmp_path, run)
    (use,) = summary.devices
    (part,) = (each for each in use.gap_causes if each.cause == "synchronisation")
    after = dict(part.after)
    assert list(after) == ["aten::item", "aten::nonzero"]
    assert sum(after.values()) == part.idle_ns
    if scale == 1:
        assert after["aten::item"] == pytest.approx(4 * after["aten::nonzero"], rel=0.15)
    assert (part.share_of_wall < 0.05) == (scale < 1)
    assert evidence_only(summary).idle_after_waits == after, "no cause, and asked for with --ask"


def two_streams(make, *, item: bool):
    """Each step copies on a stream of its own what its kernels then need, which takes as long."""
    run = make.Program(jitter=0.0)
    for _ in range(20):
        done = run.copy(24_000 * 1_000, pinned=True, stream=make.COPY_STREAM)
        run.tail[make.COMPUTE_STREAM] = max(run.tail.get(make.COMPUTE_STREAM, 0.0), done)
        for _ in range(10):
            run.operator("aten::mm", "kernel", 100.0)
        if item:
            run.item()
    run.wait()
    return run


def test_without_waits_the_next_copy_runs_beside_the_computation(make, tmp_path):
    run = two_streams(make, item=True)
    brought = wall_us(run) / wall_us(two_streams(make, item=False))
    assert brought > 1.8
    timeline = load_trace(tmp_path, run.trace())
    what_if = WhatIf(timeline, [time.program for _, time in find_device_uses(timeline)])
    assert what_if.gain(WAITS) == pytest.approx(brought, rel=0.02)


def test_what_waits_for_a_copy_on_another_stream_is_done_sooner_without_it(make, tmp_path):
    run = two_streams(make, item=False)
    assert gains_of(tmp_path, run).get("copy", 1.0) == pytest.approx(1.05, abs=0.05)
    run = two_streams(make, item=True)
    assert gains_of(tmp_path, run)["copy"] == pytest.approx(2.0, rel=0.05)


def test_calls_that_touch_are_no_launch_that_waits_for_room(make, tmp_path):
    """Three copies and launches in a row take 30 us, while the device is busy."""

    def ahead(*, python: bool):
        run = make.Program(jitter=0.0)
        for _ in range(30):
            for _ in range(3):
                run.copy(24_000 * 30, pinned=True)
                run.launch("kernel", 300.0)
            run.python(1_500.0 if python else 0.0)
        run.wait()
        return run

    brought = wall_us(ahead(python=True)) / wall_us(ahead(python=False))
    assert gains_of(tmp_path, ahead(python=True))["idle-python"] == pytest.approx(brought, rel=0.02)


@pytest.mark.parametrize("us", [120.0, 180.0, 200.0, 220.0, 300.0])
def test_a_stretch_in_every_step_has_one_cause(make, tmp_path, us):
    """Its length varies by 15% around the limit between launching and Python."""
    rng, run = random.Random(3), make.Program(jitter=0.0)
    for _ in range(25):
        run.operator("aten::mm", "kernel", 20.0)
        run.python(us * rng.uniform(0.85, 1.15))
    run.wait()
    (use,) = summarise_run(tmp_path, run).devices
    shares = {part.cause: part.idle_ns / use.idle_ns for part in use.gap_causes}
    assert max(shares.get("python", 0.0), shares.get("launch", 0.0)) > 0.85


def test_python_beside_a_short_and_a_long_stretch_of_input_has_one_cause(make, tmp_path):
    run = make.Program(jitter=0.0)
    for number in range(12):
        run.python(150.0)
        begin = run.host
        run.python(200.0 + 600.0 * (number % 2))
        run.range("next batch", begin)
        run.operator("aten::mm", "kernel", 20.0)
    run.wait()
    (use,) = summarise_run(tmp_path, run).devices
    assert not any(part.cause == "python" for part in use.gap_causes)


def test_collectives_of_the_host_beside_a_device(make, tmp_path):
    """Gloo's, of ranks that compute on GPUs: they are no rows of the device to replay."""
    for rank in range(2):
        run = make.Program(rank=rank, jitter=0.0)
        for number in range(6):
            begin = run.host
            run.python(100.0 + 400.0 * rank)
            run.operator("aten::mm", "gemm", 300.0, host_us=20.0)
            run.wait()
            joined = run.host
            run.python(900.0 - 400.0 * rank)
            run.range("gloo:all_reduce", joined)
            run.range(f"ProfilerStep#{number}", begin)
        trace = json.dumps(run.trace(world_size=2))
        (tmp_path / f"rank{rank}.json").write_text(trace)
    summary = summarise(load(tmp_path))
    assert summary.collective_waits.collectives == 6
    assert summary.gains["idle-communication"] > 1.5


def test_a_thread_launches_while_another_waits(make, tmp_path):
    """Replayed as recorded, nothing takes longer."""
    run = make.Program(jitter=0.0)
    for _ in range(10):
        run.launch("kernel", 400.0)
        begin = run.host
        run.wait("cudaEventSynchronize")
        end, run.host = run.host, begin + 50.0
        for _ in range(3):  # the other thread's
            run.launch("other", 60.0, stream=9)
            run.events[-2]["tid"] = make.WORKER
        run.host = max(end, run.host)
    run.wait()
    timeline = load_trace(tmp_path, run.trace())
    programs = [time.program for _, time in find_device_uses(timeline)]
    whole = WhatIf(timeline, programs).length_ns(NOTHING)
    assert whole == pytest.approx(programs[0].window.length, rel=0.01)


def gain_of(run, kernels, finding, tmp_path):
    """Return the gain that a finding states of ten steps of these kernels, name and µs."""
    for number in range(10):
        begin = run.host
        for name, us in kernels:
            run.operator("aten::op", name, us)
        run.range(f"ProfilerStep#{number}", begin)
    findings = summarise_run(tmp_path, run).findings
    return next(each.expected_gain_ratio for each in findings if each.id == finding)


def test_of_kernels_that_could_be_fused_the_longest_remains(make, tmp_path):
    """Two rows of such kernels: of 350 µs 200 remain, of 200 100; a product stands between."""
    elementwise = "void at::native::vectorized_elementwise_kernel<4, mul>"
    kernels = [
        (elementwise, 100.0),
        ("void at::native::reduce_kernel<512, 1, sum>", 50.0),
        (elementwise, 200.0),
        ("ampere_gemm", 300.0),
        (elementwise, 100.0),
        (elementwise, 100.0),
        ("ampere_gemm", 300.0),
    ]
    gain = gain_of(make.Program(jitter=0), kernels, "unfused-elementwise", tmp_path)
    assert gain == pytest.approx(1150 / 900, rel=0.01)


@pytest.mark.parametrize(
    ("names", "left_us"),
    [
        (("fill<float>", "mul<double>"), 200 + 100 + 50),
        # Names that tell no types: whatever is bound by memory is taken to be double, too.
        (("relu_of_a_library", "vectorized_elementwise_kernel<4, mul>"), 200 + 100 + 50),
    ],
)
def test_beside_double_products_what_is_double_takes_half(make, tmp_path, names, left_us):
    kernels = [("cutlass_80_tensorop_d884gemm", 400.0), *((name, 100.0) for name in names)]
    gain = gain_of(make.Program(jitter=0), kernels, "double-precision", tmp_path)
    assert gain == pytest.approx(600 / left_us, rel=0.01)


def test_a_layout_s_copies_go_with_it_and_other_clones_stay(make, tmp_path):
    """Of 2 ms, 0.5 are layout conversions, 0.3 copies by contiguous(), and 0.2 by clone()."""
    run = make.Program(jitter=0)
    for number in range(10):
        begin = run.host
        run.operator("aten::cudnn_convolution", "nhwc_kernel", 1000.0)
        run.operator("aten::cudnn_convolution", "void nchwToNhwcKernel<float>", 500.0)
        for name, us in (("aten::contiguous", 300.0), ("aten::detach", 200.0)):
            start = run.host
            run.operator("aten::copy_", "direct_copy_kernel", us)
            run.add("cpu_op", "aten::clone", start, run.host - start)
            run.add("cpu_op", name, start, run.host - start)
        run.range(f"ProfilerStep#{number}", begin)
    findings = summarise_run(tmp_path, run).findings
    finding = next(each for each in findings if each.id == "layout-conversions")
    assert "Copies by contiguous() take another 15.0%" in finding.evidence
    assert finding.expected_gain_ratio == pytest.approx(2.0 / 1.2, rel=0.01)
