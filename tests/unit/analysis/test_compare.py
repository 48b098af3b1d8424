"""Two versions side by side: every figure by its own noise, whatever else the step did."""

import io
import itertools
import json
import random
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from rich.console import Console

from bottleneck_lab import compare, load, merge_ranks, observe
from bottleneck_lab.analysis.comparing import changes
from bottleneck_lab.analysis.comparing.changes import _pinned_since
from bottleneck_lab.analysis.comparing.comparison import FigureChange
from bottleneck_lab.analysis.comparing.kernel_matching import Match, match_kernels
from bottleneck_lab.analysis.comparing.line_matching import match_lines
from bottleneck_lab.analysis.statistics import rank_sum_interval, rank_sum_order
from bottleneck_lab.analysis.steps.figures import even_out
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.report import words
from bottleneck_lab.report.comparison_words import (
    RATIOS,
    describe_ahead,
    describe_differences,
    describe_others,
    describe_samples,
    describe_speedup,
    describe_unreliable,
    format_between,
    format_ratio,
    judge_change,
    label_change,
    shown_changes,
    title_group,
)
from bottleneck_lab.report.console.comparison import render_comparison
from bottleneck_lab.trace.names import CALIBRATED, LINES_OF, MODELLED_HOST

from ...captures import recorded_capture
from .traces import load_trace


@pytest.fixture
def timelines(make, tmp_path):
    """Captures of a loop whose steps are made by `step(run)`; one a seed."""

    def made(step, *, seeds=(1,), steps=12, jitter=0.03, waits=True):
        found = []
        for seed in seeds:
            run = make.Program(seed, jitter=jitter)
            for number in range(steps):
                begin = run.host
                step(run)
                if waits:
                    run.wait()
                run.range(f"ProfilerStep#{number}", begin)
            path = tmp_path / f"{seed}.json"
            path.write_text(json.dumps(run.trace()))
            found.append(load(path))
        return found

    return made


def outcomes(comparison):
    return {(change.group, change.what): change for change in comparison.changes}


def test_on_a_cpu_changes_have_the_words_of_its_report(tmp_path):
    sides = []
    for name, us in (("old", 800), ("new", 600)):
        row = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": us}
        events = [{**row, "ts": 1000 * n} for n in range(20)]
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"traceEvents": events}))
        sides.append(observe(load(file)))
    comparison = compare(*sides)
    assert comparison.cpu_only
    assert title_group(comparison, "gap") == "When no operator ran"
    shown = {(c.group, c.what): label_change(c, {}, cpu_only=True) for c in comparison.changes}
    assert shown["device", "compute"] == "running operators"
    assert shown["gap", "launch"] == "between operators"


def test_a_fix_is_seen_with_what_it_removed(timeline_of):
    result = compare(timeline_of("input", steps=12), timeline_of("healthy", steps=12))
    assert result.outcome == "better"
    assert 1.5 < result.speedup_low <= result.speedup <= result.speedup_high
    assert result.findings_gone == {"input-starved": "The device waits for data"}
    changes = outcomes(result)
    assert changes["gap", "input"].outcome == "better"
    assert changes["range", "data"].ratio > 100
    back = compare(timeline_of("healthy", steps=12), timeline_of("input", steps=12))
    assert back.outcome == "worse"
    assert list(back.findings_new) == ["input-starved"]


def test_no_finding_is_gone_where_none_could_be_made(timeline_of):
    """Of the other capture rows are missing, so that no detector looks at it."""
    before, other = timeline_of("input", steps=12), observe(timeline_of("healthy", steps=12))
    quality = msgspec.structs.replace(other.summary.quality, reliable=False)
    summary = msgspec.structs.replace(other.summary, quality=quality)
    lacking = replace(other, summary=summary)
    assert compare(before, lacking).findings_gone == {}
    assert compare(lacking, before).findings_new == {}


@pytest.mark.parametrize(("unreliable", "version"), [("before", "old"), ("after", "new")])
def test_an_unreliable_capture_tells_neither_faster_nor_slower(timeline_of, unreliable, version):
    """Not of any part: which of them lacks what was lost is not known."""
    sides = {"before": observe(timeline_of("input", steps=12))}
    sides["after"] = observe(timeline_of("healthy", steps=12))
    assert compare(sides["before"], sides["after"]).outcome == "better"
    summary, lost = sides[unreliable].summary, "1 of 12 steps hold no event"
    quality = msgspec.structs.replace(summary.quality, reliable=False, reasons=[lost])
    sides[unreliable] = replace(
        sides[unreliable], summary=msgspec.structs.replace(summary, quality=quality)
    )
    result = compare(sides["before"], sides["after"])
    assert result.outcome == "cannot tell"
    assert {change.outcome for change in result.changes} == {"cannot tell"}
    assert describe_speedup(result).startswith("Cannot tell: ")
    assert describe_unreliable(result) == [
        f"Unreliable, because {unreliable}: {lost}.",
        f"Nothing can be concluded from an unreliable capture: record the {version} version again.",
    ]


def test_the_same_program_twice_is_the_same(timeline_of):
    result = compare(
        timeline_of("healthy", seed=3, steps=12), timeline_of("healthy", seed=4, steps=12)
    )
    assert result.outcome == "same"
    assert not {"better", "worse"} & {change.outcome for change in result.changes}


def test_a_part_is_judged_by_its_own_noise_and_not_by_the_step_s(timelines):
    """The step scatters by half; one kernel in it takes 60 us in every step, and 2.8 us after the
    change.
    """

    def step(kernel_us):
        def run_step(run):
            run.launch("noisy", 1000.0 * run.random.uniform(0.5, 1.5))
            run.launch("precise", kernel_us)

        return run_step

    result = compare(*timelines(step(60.0), seeds=[1]), *timelines(step(2.8), seeds=[2]))
    changes = outcomes(result)
    assert result.outcome == "cannot tell"
    precise = changes["kernel", "precise"]
    assert precise.outcome == "better"
    assert precise.low < 60 / 2.8 < precise.high
    assert changes["kernel", "noisy"].outcome == "cannot tell"


def test_work_of_earlier_steps_makes_a_calibrated_device_no_slower(timelines):
    """Two batches were queued when the recording began: the first steps work them off, too."""

    def step(run):
        run.python(3000.0)
        run.launch("forward", 400.0)

    def queued(run):
        step(run)
        run.launch("forward", 400.0)

    before, after = (
        _calibrated(timelines(each, jitter=0.0)[0], 400_000) for each in (step, queued)
    )
    result = compare(before, after)
    assert result.batches_per_step == pytest.approx((1.0, 2.0), abs=0.05)
    changes = outcomes(result)
    assert changes["kernel", "forward"].outcome == "cannot tell"
    assert changes["device", "compute"].outcome == "cannot tell"
    said = " ".join(describe_differences(result))
    assert "worked on 1.00 batches a step before and 2.00 after: it began with some" in said
    assert describe_differences(compare(before, before)) == []


def test_a_host_that_now_waits_for_a_busy_device_is_not_worse(timelines):
    """Once batches come in time, handing one over takes as long as the device is busy."""

    def step(data_us, hand_over_us):
        def run_step(run):
            run.python(data_us)
            run.launch("gemm", 2000.0)
            begin = run.host
            run.python(hand_over_us)
            run.range("h2d", begin)

        return run_step

    fixed = compare(*timelines(step(6000.0, 50.0)), *timelines(step(10.0, 1900.0), seeds=[2]))
    change = outcomes(fixed)["range", "h2d"]
    assert (fixed.outcome, change.outcome, judge_change(change)) == ("better", "differs", "hidden")
    assert "costs no time" in describe_ahead(fixed.changes)
    # The device is idle while a slower one is handed over: that does cost time.
    slower = compare(*timelines(step(10.0, 1900.0)), *timelines(step(10.0, 9000.0), seeds=[2]))
    change = outcomes(slower)["range", "h2d"]
    assert (change.outcome, describe_ahead(slower.changes)) == ("worse", "")
    # All of it is beside the device's work, and yet the next batch comes late.
    early, late = (timelines(step(700.0, us), waits=False)[0] for us in (50.0, 1900.0))
    late = compare(early, late)
    assert (late.outcome, outcomes(late)["range", "h2d"].outcome) == ("worse", "worse")


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_figures_do_not_depend_on_how_many_ranks_there_are(make, tmp_path, ranks):
    timelines = []
    for run in make.job("healthy-job", seed=2, ranks=ranks, jitter=0.0):
        path = tmp_path / f"{run.rank}.json"
        path.write_text(json.dumps(run.trace(world_size=ranks)))
        timelines.append(load(path))
    found = observe(merge_ranks(timelines)).figures
    gemm = found.series["kernel", "sm90_xmma_gemm_bf16bf16_bf16f32_tn"]
    assert found.steps == 8
    assert np.allclose(gemm, 24 * 250_000)
    assert np.allclose(found.series["device", "compute"], 24 * 250_000)


def test_a_step_s_parts_sum_to_its_time(timeline_of):
    figures = observe(timeline_of("sync", steps=10)).figures
    parts = [
        figures.series["device", part]
        for part in ("compute", "exposed_communication", "exposed_copy", "idle")
    ]
    assert np.allclose(np.sum(parts, axis=0), figures.series["step", "time"])
    gaps = [values for (group, _), values in figures.series.items() if group == "gap"]
    assert np.allclose(np.sum(gaps, axis=0), figures.series["device", "idle"])


def test_steps_of_no_length_are_joined_with_the_next():
    assert even_out(np.array([0.0, 200.0, 0.0, 200.0])).tolist() == [100.0, 100.0]
    assert even_out(np.array([90.0, 110.0, 100.0])).tolist() == [90.0, 110.0, 100.0]


def test_one_step_says_nothing(timelines):
    one = [
        timelines(lambda run, us=us: run.launch("gemm", us), steps=1)[0] for us in (100.0, 300.0)
    ]
    result = compare(*one)
    assert (result.outcome, result.few, result.speedup_low) == ("cannot tell", True, None)


def test_one_step_says_all_where_every_run_has_the_same_times(timelines):
    slow, fast = (
        replace(
            timelines(lambda run, us=us: run.launch("gemm", us), steps=1)[0],
            facts={MODELLED_HOST: "1"},
        )
        for us in (300.0, 100.0)
    )
    assert compare(slow, fast).outcome == "better"
    assert compare(fast, slow).outcome == "worse"
    assert compare(fast, fast).outcome == "same"
    assert "(modelled)" in describe_speedup(compare(slow, fast))


@pytest.mark.parametrize(
    ("us", "outcome"), [(1030.0, "worse"), (1005.0, "same"), (970.0, "better")]
)
@pytest.mark.parametrize("steps", [1, 12])
def test_where_nothing_is_noise_little_is_a_change(timelines, us, outcome, steps):
    """Measured steps that differ by 3% are the same; modelled ones are not."""
    old, new = (
        timelines(lambda run, us=us: run.launch("gemm", us), steps=steps)[0] for us in (1000.0, us)
    )
    modelled = [replace(each, facts={MODELLED_HOST: "1"}) for each in (old, new)]
    result = compare(*modelled)
    assert result.outcome == outcome
    (kernel,) = [each for each in result.changes if each.group == "kernel"]
    assert kernel.outcome == outcome
    assert compare(old, new).outcome in ("same", "cannot tell")


def test_a_wait_of_some_steps_beside_a_busy_device_is_hidden_in_modelled_captures(timelines):
    """A host that has less to do comes to the report of every fifth step earlier."""

    def loop(python_us):
        number = itertools.count()

        def step(run):
            run.launch("gemm", 1000.0)
            run.python(python_us)
            if next(number) % 5 == 4:
                run.wait()

        return step

    old, new = (
        replace(timelines(loop(us), jitter=0.0, waits=False)[0], facts={MODELLED_HOST: "1"})
        for us in (800.0, 100.0)
    )
    (wait,) = [each for each in compare(old, new).changes if each.group == "sync"]
    assert wait.after > 2 * wait.before
    assert judge_change(wait) == "hidden"


def reads_two_numbers(make, *, first=True, gemm_us=1000.0, seconds=1, data_us=700, rest_us=400):
    """A step that waits for a product, unless `first` is gone, and then for what follows it."""

    def on(run, line, work):
        begin = run.host
        work()
        run.add("python_function", line, begin, run.host - begin, tid=f"{LINES_OF}{make.MAIN}")

    def step(run):
        run.launch("gemm", gemm_us)
        if first:
            on(run, "train.py(5): norm", run.wait)
        on(run, "train.py(7): data", lambda: run.python(data_us))
        for _ in range(seconds):
            run.launch("small", 50.0)
            on(run, "train.py(9): loss", run.wait)
        run.python(rest_us)

    return step


def test_a_host_that_comes_earlier_to_a_wait_waits_longer_and_loses_nothing(make, timelines):
    """All waits together are longer, and the step is shorter."""
    busy, spared = {"data_us": 700, "rest_us": 500}, {"data_us": 100, "rest_us": 300}
    old, new = (
        timelines(reads_two_numbers(make, first=False, **each), seeds=[seed], waits=False)
        for seed, each in enumerate((busy, spared), 1)
    )
    comparison = compare(*old, *new)
    line = outcomes(comparison)["line", "train.py: loss"]
    assert comparison.outcome == "better"
    assert line.after > 1.5 * line.before
    assert judge_change(line) == "moved"


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "moved"),
        ({"gemm_us": 1250.0}, "worse"),  # it waits for more
        ({"seconds": 2}, "worse"),  # it waits more often
        ({"first": True, "gemm_us": 1250.0}, ""),
    ],
)
def test_a_wait_that_comes_to_the_next_line_has_moved(make, timelines, changed, word):
    old = timelines(reads_two_numbers(make), waits=False)
    new = timelines(reads_two_numbers(make, **{"first": False, **changed}), seeds=[2], waits=False)
    comparison = compare(*old, *new)
    line = outcomes(comparison)["line", "train.py: loss"]
    judged = judge_change(line)
    assert judged == word if word else judged not in ("moved", "worse")
    assert (format_ratio(line) == "") == (judged == "moved")
    assert ("moved: the host waits for the same work" in describe_ahead([line])) == (
        judged == "moved"
    )
    unreliable = msgspec.structs.replace(line, outcome="cannot tell")
    assert judge_change(unreliable) == "cannot tell"


@pytest.mark.parametrize(("was_calls", "moved"), [(1.0, True), (0.1, False)])
def test_a_wait_that_comes_to_an_edited_line_has_moved(was_calls, moved):
    """Its old lines waited as often, and what the host waits for in all has become less."""
    edited = FigureChange(
        "loss, norm = both.tolist()", "line", 2e5, 6e5, 0.33, "worse", was=("loss.item()",)
    )
    before = {
        ("line", "loss.item()"): changes._Waits(was_calls, 1e5),
        ("line", "norm.item()"): changes._Waits(39.0, 2e6),
    }
    after = {("line", "loss, norm = both.tolist()"): changes._Waits(1.0, 5e5)}
    (judged,) = changes._with_moved_waits([edited], before, after)
    assert judged.moved == moved


@pytest.mark.parametrize(
    ("loss_ns", "norm_ns", "word"),
    [
        (2e6, 1.9e6, "moved"),
        (2e6, 0.8e6, "better"),  # all waits together are much shorter
        (1e6, 0.9e6, "better"),  # half of what is gone is the host's work
    ],
)
def test_a_wait_that_only_went_to_another_line_is_not_gained(loss_ns, norm_ns, word):
    """A line is gone that waited, and another one waits for its work."""
    step = FigureChange("time", "step", 12e6, 11.9e6, 1.01, "same")
    loss = FigureChange("loss.item()", "line", 2.1e6, 0.0, 0.0, "better")
    norm = FigureChange("norm.item()", "line", 0.2e6, 0.2e6 + norm_ns, 0.1, "worse")
    before = {
        ("line", "loss.item()"): changes._Waits(1.0, loss_ns),
        ("line", "norm.item()"): changes._Waits(39.0, 0.1e6),
    }
    after = {("line", "norm.item()"): changes._Waits(39.0, 0.1e6 + norm_ns)}
    _, gone, longer = changes._with_moved_waits([step, loss, norm], before, after)
    assert (judge_change(gone), judge_change(longer)) == (word, "moved")
    assert format_ratio(gone) == "gone"
    # Without a line that it came to, a wait that is gone is gone.
    _, gone = changes._with_moved_waits([step, loss], before, after)
    assert judge_change(gone) == "better"


@pytest.mark.parametrize(
    ("ratio", "modelled", "shown"),
    [
        (1.008, True, "1.008x"),
        (0.985, True, "0.985x"),
        (1.03, True, "1.03x"),
        (1.008, False, "1.01x"),
    ],
)
def test_a_ratio_that_says_whether_little_is_a_change_has_the_digits_for_it(
    timelines, ratio, modelled, shown
):
    old, new = (timelines(lambda run: run.launch("gemm", 100.0), seeds=[n])[0] for n in (1, 2))
    comparison = msgspec.structs.replace(
        compare(old, new), speedup=ratio, mean_speedup=None, repeats=modelled
    )
    assert f": {shown} for a step (" in describe_speedup(comparison)


def test_what_the_host_s_model_charges_whatever_runs_is_not_judged(timelines):
    """The device works through most of it before, and is idle in all of it after."""
    price = "fixed charge of a step (modelled)"

    def loop(us):
        def step(run):
            run.launch("gemm", us)
            begin = run.host
            run.python(900)
            run.range(price, begin)

        return step

    old, new = (
        replace(timelines(loop(us), jitter=0.0)[0], facts={MODELLED_HOST: "1"})
        for us in (800.0, 10.0)
    )
    result = compare(old, new)
    idle, charged = outcomes(result)["gap", "fixed"], outcomes(result)["range", price]
    assert (idle.outcome, idle.after > 2 * idle.before) == ("differs", True)
    console = Console(file=io.StringIO(), width=80)
    render_comparison(result, console)
    text = console.file.getvalue()
    assert re.search(r"^ charge .+fixed charges$", text, re.MULTILINE)
    assert not re.search(r"^ charge .*\dx", text, re.MULTILINE), "no edit has changed it"
    assert [judge_change(each) for each in (idle, charged)] == ["charge", "charge"]
    assert text.count("charge: the model's fixed price") == 1, "two rows have the word"
    assert "the device idles through more or less of it" in " ".join(text.split())


def test_a_modelled_time_that_moves_by_less_than_half_a_percent_of_the_step_is_the_same(timelines):
    def loop(us):
        def step(run):
            run.launch("gemm", 5000.0)
            run.launch("add", us)

        return step

    old, new = (
        replace(timelines(loop(us), jitter=0.0)[0], facts={MODELLED_HOST: "1"})
        for us in (100.0, 120.0)
    )
    assert outcomes(compare(old, new))["kernel", "add"].outcome == "same"
    worse = replace(timelines(loop(130.0), jitter=0.0)[0], facts={MODELLED_HOST: "1"})
    assert outcomes(compare(old, worse))["kernel", "add"].outcome == "worse"


def test_where_every_run_has_the_same_times_steps_that_differ_leave_nothing_untold(timelines):
    def loop(seed):
        number = itertools.count(seed)
        return lambda run: run.launch("gemm", 100.0 * (1 + next(number) % 3))

    first, second = (timelines(loop(seed), steps=7, jitter=0.0)[0] for seed in (0, 3))
    assert compare(first, second).outcome == "cannot tell"
    first, second = (replace(each, facts={MODELLED_HOST: "1"}) for each in (first, second))
    result = compare(first, second)
    assert result.outcome == "same"
    assert "cannot tell" not in {change.outcome for change in result.changes}


def test_what_some_steps_still_have_is_not_gone(timelines):
    def loop(every):
        number = itertools.count()

        def step(run):
            run.launch("gemm", 100.0)
            if next(number) % every == 0:
                run.launch("softmax", 300.0)

        return step

    ((before,), (after,)) = (timelines(loop(every), steps=20) for every in (1, 10))
    change = outcomes(compare(before, after))["kernel", "softmax"]
    assert change.outcome == "better"
    assert change.ratio == pytest.approx(10, rel=0.2)
    assert format_ratio(change) != "gone"


def test_copies_that_are_pinned_now_are_compared_with_the_pageable_ones():
    def copies(memory):
        return {("copy", f"h2d {memory}"): np.ones(3), ("copy", "d2h pageable"): np.ones(3)}

    pageable, pinned = copies("pageable"), copies("pinned")
    assert _pinned_since(pageable, pinned) == {("copy", "h2d pinned"): ("copy", "h2d pageable")}
    assert _pinned_since(pageable, pageable | pinned) == {}, "some still go through pageable memory"


def test_the_mean_step_is_given_where_it_differs_from_the_median(timelines):
    def loop(late_us):
        number = itertools.count()
        return lambda run: run.launch("gemm", 300.0 + (next(number) % 3 == 2) * late_us)

    ((slow,), (fast,)) = (timelines(loop(late_us), jitter=0.0) for late_us in (900.0, 0.0))
    result = compare(slow, fast)
    assert result.speedup == pytest.approx(1.0, abs=0.01)
    assert result.mean_speedup == pytest.approx(2.0, abs=0.05)
    assert describe_speedup(result).startswith("Cannot tell: 1.98x by the mean step, 1.00x (")
    assert any("comes near the mean step" in line for line in describe_samples(result))
    (long,) = result.long_steps
    assert long.when == "before"
    assert long.number % 3 == 0
    assert f"Step {long.number} before took 1.2" in " ".join(describe_samples(result))
    assert not any("mean step" in line for line in describe_samples(compare(fast, fast)))
    assert RATIOS in describe_samples(result), "what 0.02x beside two times means"


@pytest.mark.parametrize(
    ("low", "high", "rule"),
    [(1.02, 1.47, True), (0.76, 0.98, True), (0.97, 1.4, False), (1.06, 1.4, False)],
)
def test_an_interval_beyond_one_that_tells_nothing_has_the_rule_beside_it(
    timelines, low, high, rule
):
    ((capture,),) = (timelines(lambda run: run.launch("gemm", 300.0), jitter=0.0),)
    result = compare(capture, capture)
    change = FigureChange("time", "step", 2.0, 1.5, 1.3, "cannot tell", low, high)
    text = " ".join(describe_samples(msgspec.structs.replace(result, changes=[change])))
    assert ("wholly above 1.05x, worse of one wholly below 0.95x" in text) is rule
    assert ("more steps, or several captures of each" in text) is rule


def _calibrated(timeline, ns):
    return replace(timeline, facts={**timeline.facts, CALIBRATED: str(ns)})


def test_a_device_that_the_machine_set_to_another_speed_is_no_difference(timelines):
    """The same work on a machine that was slower by a quarter when the device was calibrated."""

    def loop(factor):
        def step(run):
            run.python(600.0 * factor)
            run.launch("gemm", 400.0 * factor)

        return step

    before, after = (timelines(loop(each), jitter=0.0)[0] for each in (1.25, 1.0))
    assert compare(before, after).outcome == "better", "what it looks like"
    result = compare(_calibrated(before, 125_000_000), _calibrated(after, 100_000_000))
    assert result.speedup == pytest.approx(1.0, abs=0.02)
    assert {change.outcome for change in result.changes} == {"same"}
    assert result.calibrated_ns == (125e6, 100e6)
    first = describe_differences(result)[0]
    assert "not by an edit: 125 ms a batch before, 100 ms after" in first
    assert "A check calibrates the device anew" in " ".join(describe_samples(result))
    capped = describe_samples(msgspec.structs.replace(result, mean_speedup=4.7, check_ceiling=2.5))
    assert "A check measures 2.50x at most: it counts from" in " ".join(capped)
    served = msgspec.structs.replace(result, images_per_s=(64.0, 200.0))
    assert describe_speedup(served).endswith(", 64 → 200 images/s (scaled; 250 as recorded)")
    alike = compare(_calibrated(before, 125_000_000), _calibrated(before, 125_000_000))
    assert describe_differences(alike) == []
    assert compare(before, after).calibrated_ns is None


def _ragged(late_us):
    """A loop that waits in every third step, and copies in every fourth."""
    number = itertools.count()

    def step(run):
        nth = next(number)
        run.launch("gemm", 300.0)
        if nth % 3 == 0:
            run.wait()
            run.python(late_us)
        if nth % 4 == 0:
            run.copy(1 << 20, pinned=True)
        run.launch("softmax", 100.0 + nth)

    return step


def test_a_capture_has_one_figure_for_a_part_whatever_it_is_compared_with(timelines):
    first, second, third = (
        observe(timelines(_ragged(us), seeds=(seed,))[0])
        for seed, us in enumerate((900.0, 300.0, 0.0))
    )
    figures = [
        {(each.group, each.what): (each.before, each.after) for each in compare(*pair).changes}
        for pair in ((first, second), (first, third), (second, third))
    ]
    for key in figures[0].keys() & figures[1].keys() & figures[2].keys():
        assert figures[0][key][0] == figures[1][key][0]
        assert figures[0][key][1] == figures[2][key][0]
        assert figures[1][key][1] == figures[2][key][1]


def test_the_rows_of_a_table_sum_to_the_step_and_to_its_idle_time(timelines):
    before, after = (
        timelines(_ragged(us), seeds=(seed,))[0] for seed, us in ((1, 900.0), (2, 9.0))
    )
    comparison = compare(before, after)
    whole = next(each for each in comparison.changes if each.group == "step")
    assert whole.before == pytest.approx(summarise(before).step_mean_ns, abs=1)
    idle = outcomes(comparison)["device", "idle"]
    for group, total in (("device", whole), ("gap", idle)):
        rows = shown_changes(comparison, group)
        for side in ("before", "after"):
            rest = getattr(total, side) - sum(getattr(row, side) for row in rows)
            assert 0 <= rest + 1 < 0.02 * getattr(whole, side)


def test_what_has_no_row_is_a_row_together(timelines):
    before, after = (timelines(_ragged(us), seeds=(1,))[0] for us in (900.0, 9.0))
    comparison = compare(before, after)
    rows = [change for change in comparison.changes if change.group == "gap"]
    idle = outcomes(comparison)["device", "idle"]
    left = [change for change in comparison.changes if change not in rows[1:]]
    others = describe_others(msgspec.structs.replace(comparison, changes=left), "gap")
    assert others == (
        words.format_duration(idle.before - rows[0].before),
        words.format_duration(idle.after - rows[0].after),
    )


def test_what_a_fix_brings_along_is_new_and_not_worse(timelines):
    def step(names):
        return lambda run: [run.launch(name, 300.0) for name in names]

    ((before,), (after,)) = (timelines(step(each)) for each in (["gemm"], ["gemm", "softmax"]))
    change = outcomes(compare(before, after))["kernel", "softmax"]
    assert (judge_change(change), format_ratio(change), format_between(change)) == ("new", "", "")
    gap = msgspec.structs.replace(change, group="gap", what="input")
    assert (judge_change(gap), format_ratio(gap)) == ("worse", "new")


def _loop(factor):
    def step(run):
        drift = 1 + 0.05 * run.random.random()
        run.launch("gemm", 500.0 * drift)
        run.launch("softmax", 300.0 * factor * drift)

    return step


def repeated(timelines, count=16):
    """A loop, the same with a slower kernel, and the same once more, each in several captures."""
    return [
        [observe(t) for t in timelines(_loop(factor), seeds=range(seed, seed + count), steps=4)]
        for factor, seed in ((1.0, 0), (1.2, 100), (1.0, 200))
    ]


def test_a_control_that_stands_still_leaves_the_answers_alone(timelines):
    old, slow, same = repeated(timelines)
    result, plain = compare(old, slow, same), compare(old, slow)
    assert result.changes == plain.changes
    assert result.control.moved == []
    assert result.control.outcome == "same"


def test_what_moves_in_the_control_is_not_said_of_the_change(timelines):
    old, slow, _ = repeated(timelines)
    result = compare(old, slow, slow)
    assert ("kernel", "softmax") in result.control.moved
    assert not {"better", "worse"} & {change.outcome for change in result.changes}
    assert result.outcome == "cannot tell"
    with pytest.raises(ValueError, match="cannot be compared in pairs"):
        compare(old, slow, slow[:-1])


def test_all_figures_together_are_one_suite(timelines):
    """Eleven pairs bear an interval for one figure at this error, and not for a dozen."""
    old, slow, _ = repeated(timelines, count=11)
    assert len(compare(old, slow).changes) > 1
    assert compare(old, slow).few


def test_repeated_captures_are_compared_in_pairs(timelines):
    old, slow, same = repeated(timelines)
    result = compare(old, slow)
    assert result.pairs == 16
    assert result.control is None
    assert outcomes(result)["kernel", "softmax"].outcome == "worse"
    assert outcomes(result)["kernel", "gemm"].outcome == "same"
    assert not {"better", "worse"} & {change.outcome for change in compare(old, same).changes}
    with pytest.raises(ValueError, match="cannot be compared in pairs"):
        compare(old, slow[:-1])


def test_what_all_but_one_of_few_steps_had_is_gone(timelines):
    """As the waiting of a device that had a batch left over from before the recording."""

    def most(steps):
        number = itertools.count()

        def step(run):
            run.launch("gemm", 500.0)
            if next(number) < steps:
                run.launch("extra", 300.0)

        return step

    ((six,), (three,), (none,)) = (timelines(most(count), steps=7) for count in (6, 3, 0))
    assert outcomes(compare(six, none))["kernel", "extra"].outcome == "better"
    assert outcomes(compare(none, six))["kernel", "extra"].outcome == "worse"
    assert outcomes(compare(three, none))["kernel", "extra"].outcome == "cannot tell"


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 1), ([1] * 5, [1] * 5, 0), ([1, 2], [3, 4], 0)],
)
def test_an_order_of_samples_is_told_where_chance_rarely_brings_it(first, second, order):
    assert rank_sum_order(first, second, 0.95) == order
    assert rank_sum_order(second, first, 0.95) == -order


def test_what_only_one_side_has_is_gone_or_new(timelines):
    def with_extra(run):
        run.launch("gemm", 500.0)
        run.launch("extra", 100.0)

    bare, more = timelines(lambda run: run.launch("gemm", 500.0))[0], timelines(with_extra)[0]
    assert (
        outcomes(compare(bare, more))["kernel", "extra"].outcome,
        outcomes(compare(more, bare))["kernel", "extra"].ratio,
    ) == ("worse", 0.0)
    assert outcomes(compare(more, bare))["kernel", "extra"].outcome == "better"


def _series(*kernels):
    return {("kernel", name): np.ones(3) for name in kernels}


@pytest.mark.parametrize(
    ("before", "after", "origins", "matches"),
    [
        (
            ["ampere_sgemm_128x64_tn"],
            ["ampere_sgemm_64x32_tn"],
            {},
            [Match(("ampere_sgemm_128x64_tn",), "ampere_sgemm_64x32_tn")],
        ),
        (
            ["void soft<float, 4>(int)"],
            ["void soft<__half, 8>(int)"],
            {},
            [Match(("void soft<float, 4>(int)",), "void soft<__half, 8>(int)")],
        ),
        (
            ["a", "b"],
            ["triton_poi_fused_add_mul_0"],
            {"a": "aten::add_", "b": "aten::mul"},
            [Match(("a", "b"), "triton_poi_fused_add_mul_0")],
        ),
        (
            ["sgemm"],
            ["tensorop"],
            {"sgemm": "aten::addmm", "tensorop": "aten::addmm"},
            [Match(("sgemm",), "tensorop")],
        ),
        (["p", "q"], ["r"], {"p": "aten::addmm", "q": "aten::addmm", "r": "aten::addmm"}, []),
        (["same", "gone"], ["same", "new"], {}, []),
    ],
)
def test_renamed_and_fused_kernels_are_told(before, after, origins, matches):
    assert match_kernels(_series(*before), _series(*after), origins) == matches


def test_a_fused_kernel_stands_against_all_that_it_replaces(make, tmp_path):
    captures = []
    for number, kernels in enumerate(
        ([("add_kernel", 300.0), ("mul_kernel", 300.0)], [("triton_poi_fused_add_mul_0", 200.0)])
    ):
        run = make.Program(number + 1)
        for step in range(10):
            begin = run.host
            for name, us in kernels:
                run.operator(f"aten::{name[:3]}", name, us)
            run.wait()
            run.range(f"ProfilerStep#{step}", begin)
        captures.append(load_trace(tmp_path, run.trace()))
    change = outcomes(compare(*captures))["kernel", "triton_poi_fused_add_mul_0"]
    assert change.was == ("add_kernel", "mul_kernel")
    assert change.outcome == "better"
    assert change.ratio == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("sizes", [(7, 7), (8, 20), (60, 60)])
def test_the_interval_for_a_shift_misses_as_rarely_as_it_says(sizes):
    rng, missed, trials = random.Random(5), 0, 400
    for _ in range(trials):
        first, second = ([rng.expovariate(1.0) for _ in range(size)] for size in sizes)
        found = rank_sum_interval(first, [value + 0.7 for value in second], 0.95)
        missed += not found.low <= 0.7 <= found.high
    assert missed <= 0.05 * trials + 3 * (0.05 * 0.95 * trials) ** 0.5


def test_the_interval_for_a_shift_is_the_textbook_s():
    """Hollander, Wolfe & Chicken, example 4.3 (water in membranes at term and at 12 to 26 weeks):
    0.305 between -0.76 and 0.15 at 95.2%.
    """
    term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
    early = [1.15, 0.88, 0.90, 0.74, 1.21]
    found = rank_sum_interval(term, early, 0.95)
    assert (round(found.low, 2), round(found.median, 3), round(found.high, 2)) == (
        -0.76,
        -0.305,
        0.15,
    )
    few = rank_sum_interval([1.0, 2.0], [3.0, 4.0], 0.95)
    assert few.low == -np.inf


def test_a_real_fix_of_a_real_program():
    """ResNet-50 on a V100, with no workers and with four; and two ranks of one job, which do the
    same.
    """
    before, after = (
        load(recorded_capture(f"kineto_v100_resnet50_workers{n}.json.gz")) for n in (0, 4)
    )
    result = compare(before, after)
    alone, helped = summarise(before), summarise(after)
    assert "input-starved" in result.findings_gone
    assert result.speedup == pytest.approx(alone.step_mean_ns / helped.step_mean_ns, rel=0.15)


def lines_of_a_loop(tmp_path, lines):
    """A capture of two steps in which the host was on these lines, by name, for so many µs."""
    events, at = [], 0
    for step in range(2):
        begin = at
        for name, us in lines.items():
            row = {"ph": "X", "pid": 1, "ts": at, "dur": us}
            events.append({**row, "cat": "python_function", "name": name, "tid": f"{LINES_OF}1"})
            events.append({**row, "cat": "cpu_op", "name": "aten::mm", "tid": 1})
            at += us
        step_row = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "tid": 1}
        events.append({"ph": "X", "pid": 1, "ts": begin, "dur": at - begin, **step_row})
    path = tmp_path / f"{len(lines)}.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return load(path)


def test_lines_are_told_again_by_their_source_or_else_by_their_function(tmp_path):
    """An edit moved the line with the backward from 40 to 36, and took another away."""
    loss, old, new = "train.py(38): train", "train.py(40): train", "train.py(36): train"
    before = lines_of_a_loop(tmp_path, {loss: 100, old: 900})
    after = lines_of_a_loop(tmp_path, {new: 300})

    def changed(*sides):
        changes = compare(*sides).changes
        return {c.what: (c.before, c.after) for c in changes if c.group == "line"}

    assert changed(before, after) == {"train.py: train": (1_000_000, 300_000)}
    backward = "loss.backward()"
    codes = {old: backward, loss: "loss = model(batch)"}, {new: backward}
    assert changed(observe(before, lambda _: codes[0]), observe(after, lambda _: codes[1])) == {
        f"train.py: train: {backward}": (900_000, 300_000),
        "train.py: train: loss = model(batch)": (100_000, 0),
    }
    assert changed([before] * 2, [after] * 2) == {}


def test_an_edited_or_moved_line_is_not_gone(tmp_path):
    names = [f"train.py({number}): train" for number in (10, 11, 12, 13)]
    before = lines_of_a_loop(tmp_path, dict(zip(names, (400, 300, 200, 100), strict=True)))
    moved = "train.py(5): step"
    after = lines_of_a_loop(tmp_path, {names[0]: 100, moved: 300, names[3]: 50})
    sources = "total += loss.item()", "loss.backward()", "seen += mask.sum().item()", "y = f(x)"
    codes = (
        dict(zip(names, sources, strict=True)),
        {
            names[0]: "total += loss.detach()",
            moved: "loss.backward()",
            names[3]: "y = torch.compile(model)",
        },
    )
    changes = compare(
        observe(before, lambda _: codes[0]), observe(after, lambda _: codes[1])
    ).changes
    shown = {label_change(c, {}): (c.before, c.after) for c in changes if c.group == "line"}
    assert shown == {
        "edited train.py: train: total += loss.detach() (was total += loss.item())": (4e5, 1e5),
        "moved train.py: step: loss.backward() (was in train.py: train)": (3e5, 3e5),
        "edited train.py: train: y = torch.compile(model) (was lines 12–13, together)": (3e5, 5e4),
    }


@pytest.mark.parametrize(
    ("before", "after", "edits"),
    [
        # Two operators instead of many: which took the place of which is not sure.
        (
            [
                "f: hidden = features @ up[member]",
                "f: mean = hidden.mean(-1, keepdim=True)",
                "f: hidden = (hidden - mean) / torch.sqrt(variance) * ensemble.scale[member]",
                "f: hidden = hidden * torch.sigmoid(hidden)",
                "f: return hidden @ down[member]",
            ],
            [
                "f: hidden = features @ up[member]",
                "f: hidden = layer_norm(hidden, (WIDTH,))",
                "f: hidden = silu(hidden * ensemble.scale[member])",
                "f: return hidden @ down[member]",
            ],
            [([2, 3], [2, 3, 4])],
        ),
        (["f: x = g(y)", "f: return a @ b"], ["f: x = g(y)", "f: return h(c)"], [([2], [2])]),
        # The most alike ones, where their order stays.
        (
            ["f: a = g(x, y)", "f: b = h(z)"],
            ["f: b = h(z, 1)", "f: c = b", "f: a = k(x, y)"],
            [([1, 2, 3], [1, 2])],
        ),
        (
            ["f: a = g(x, y)", "f: b = h(z)"],
            ["f: a = k(x, y)", "f: c = a", "f: b = h(z, 1)"],
            [([1], [1]), ([3], [2])],
        ),
        # Neither the name nor the words are the same.
        (["f: a = g(x)"], ["f: seen.append(y)"], []),
        # A new function may do what is gone.
        (["f: a = g(x) + y"], ["f: a = h(z)", "h: return z + 1"], []),
        # The same line in another function, where there is one such line.
        (["f: a = g(x)"], ["h: a = g(x)"], [([1], [1])]),
        (["f: a = g(x)"], ["h: a = g(x)", "k: a = g(x)"], []),
    ],
)
def test_lines_are_matched_only_where_it_is_sure(before, after, edits):
    sides = [
        {f"m.py: {line}": number for number, line in enumerate(side, 1)} for side in (before, after)
    ]
    assert [
        ([sides[1][line] for line in edit.new], [sides[0][line] for line in edit.old])
        for edit in match_lines(*sides)
    ] == edits


def test_the_operator_that_came_for_others_is_named_however_short_it_is(timelines):
    def step(*, batched):
        def steps(run):
            for _ in range(1 if batched else 9):
                run.operator(*(("aten::bmm", "bgemm", 5) if batched else ("aten::mm", "gemm", 400)))

        return steps

    (before,), (after,) = (timelines(step(batched=batched)) for batched in (False, True))
    changes = outcomes(compare(before, after))
    assert ("operator", "aten::bmm") in changes
