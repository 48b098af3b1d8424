"""Nothing is called the same that was recorded on other devices, with other settings, or of another
program; what differs is said first.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from bottleneck_lab import compare, load, observe
from bottleneck_lab.analysis.comparing.comparability import find_conditions, find_differences
from bottleneck_lab.analysis.comparing.comparison import FlopPerCall
from bottleneck_lab.report.comparison_words import describe_differences, describe_speedup
from bottleneck_lab.report.console.comparison import render_comparison
from bottleneck_lab.trace.load import CODE, CORES, OTHER_CORES
from bottleneck_lab.trace.timeline import DeviceInfo, take

from .test_serving import batch, event

COMPARED = Path(__file__).with_name("compared")


def printed(comparison) -> str:
    out = io.StringIO()
    render_comparison(comparison, Console(file=out, width=100))
    return " ".join(out.getvalue().split())


def test_two_gpus_are_not_called_the_same():
    comparison = compare(
        load(COMPARED / "before_p100.json.gz"), load(COMPARED / "after_a100.json.gz")
    )
    assert comparison.outcome == "cannot tell"
    assert {change.outcome for change in comparison.changes} == {"cannot tell"}
    (difference,) = comparison.differences
    assert difference.kind == "device"
    text = printed(comparison)
    said, ratio = text.index("Tesla P100-PCIE-16GB before"), text.index("Cannot tell: 1.00x")
    assert "NVIDIA A100-SXM4-80GB after" in text
    assert said < ratio
    assert "The same" not in text


def test_the_same_gpu_is_still_called_the_same():
    before = load(COMPARED / "before_p100.json.gz")
    comparison = compare(before, load(COMPARED / "before_p100.json.gz"))
    assert comparison.outcome == "same"
    assert comparison.differences == []
    assert describe_differences(comparison) == []


def test_on_another_gpu_a_difference_stays_one(timeline_of):
    slow = timeline_of("input", steps=12)
    fast = timeline_of("healthy", steps=12)
    other = tuple(replace(device, name="Another GPU") for device in fast.devices)
    comparison = compare(slow, replace(fast, devices=other))
    assert comparison.outcome == "better"
    assert [each.kind for each in comparison.differences] == ["device"]
    assert "need not be the code's" in describe_differences(comparison)[-1]


def test_the_number_of_gpus_counts_too(timeline_of):
    one = timeline_of("healthy", steps=12)
    table = replace(one.device, device=np.arange(len(one.device)) % 2)
    two = replace(one, device=table, devices=(*one.devices, replace(one.devices[0], index=1)))
    (difference,) = compare(one, two).differences
    assert "2 x " in difference.sentence


@pytest.mark.parametrize(
    ("names", "differ"),
    [(("A", "B"), True), (("A", "A"), False), (("", "B"), True), (("", ""), False)],
)
def test_a_gpu_without_a_name_may_be_another(timeline_of, names, differ):
    one = timeline_of("healthy", steps=12)
    sides = [
        [find_conditions(replace(one, devices=(DeviceInfo(0, 0, name=name),)))] for name in names
    ]
    assert bool(find_differences(*sides)) == differ


def test_slices_of_one_gpu_are_not_the_same(timeline_of):
    one = timeline_of("healthy", steps=12)

    def difference(processors: int, memory_bytes: int) -> list[str]:
        devices = [
            DeviceInfo(0, 0, "A100", multiprocessors=108, memory_bytes=85_000_000_000),
            DeviceInfo(0, 0, "A100", multiprocessors=processors, memory_bytes=memory_bytes),
        ]
        sides = [[find_conditions(replace(one, devices=(each,)))] for each in devices]
        return [each.sentence for each in find_differences(*sides)]

    assert difference(108, 84_000_000_000) == []
    assert difference(0, 0) == []
    (sentence,) = difference(42, 42_000_000_000)
    assert "108 multiprocessors before, 42 after" in sentence
    assert "85 GB of memory before, 42 GB after" in sentence


def test_a_device_that_was_only_touched_is_none(timeline_of):
    one = timeline_of("healthy", steps=12)
    touched = replace(one, devices=(*one.devices, replace(one.devices[0], index=1)))
    assert find_differences([find_conditions(one)], [find_conditions(touched)]) == []


def test_an_unnamed_gpu_is_told_by_its_capability(timeline_of):
    one = timeline_of("healthy", steps=12)
    sides = [
        [find_conditions(replace(one, devices=(DeviceInfo(0, 0, compute_capability=version),)))]
        for version in ("6.0", "8.0")
    ]
    (difference,) = find_differences(*sides)
    assert "compute capability 6.0" in difference.sentence


@pytest.mark.parametrize(
    ("fact", "called"),
    [("with_stack", "--stack"), ("record_shapes", "shapes"), ("profile_memory", "allocations")],
)
def test_other_settings_allow_no_verdict(timeline_of, fact, called):
    slow, fast = timeline_of("input", steps=12), timeline_of("healthy", steps=12)
    comparison = compare(replace(slow, facts={**slow.facts, fact: "1"}), fast)
    assert comparison.outcome == "cannot tell"
    (difference,) = comparison.differences
    assert difference.kind == "settings"
    assert called in difference.sentence
    assert "only before" in difference.sentence
    assert describe_speedup(comparison).startswith("Cannot tell")
    assert "record both again" in describe_differences(comparison)[-1]


def test_frames_count_as_a_setting_where_nobody_says_so(timeline_of):
    one = timeline_of("healthy", steps=12)
    framed = replace(one, python=take(one.operators, slice(0, 3)))
    (difference,) = compare(one, framed).differences
    assert "with_stack" in difference.sentence


def test_another_tool_is_another_setting(timeline_of):
    one = timeline_of("healthy", steps=12)
    (difference,) = compare(one, replace(one, format="nsys")).differences
    assert "kineto before, nsys after" in difference.sentence


@pytest.mark.parametrize(
    ("busy", "slower", "faster"),
    [
        ((0.4, 1.4), "cannot tell", "cannot tell"),
        ((1.4, 0.4), "worse", "better"),
        ((0.1, 0.4), "worse", "better"),  # 1.2 times as slow at most
    ],
)
def test_slower_beside_busier_programs_may_be_their_doing(timeline_of, busy, slower, faster):
    fast, slow = (
        replace(capture, facts={**capture.facts, OTHER_CORES: str(cores), CORES: "2"})
        for capture, cores in zip(
            [timeline_of("healthy", steps=12), timeline_of("input", steps=12)], busy, strict=True
        )
    )
    comparison = compare(fast, slow)
    assert [difference.sentence for difference in comparison.differences] == [
        f"other programs kept {busy[0]} of 2 cores busy before and {busy[1]} after"
    ]
    assert comparison.outcome == slower
    assert compare(slow, fast).outcome == faster
    assert "slower only what a busier machine cannot" in printed(comparison)


def test_the_same_code_is_neither_faster_nor_slower(timeline_of):
    slow, fast, edited = (
        replace(timeline_of(kind, steps=12), facts={CODE: code})
        for kind, code in (("input", "1a"), ("healthy", "1a"), ("healthy", "2b"))
    )
    comparison = compare(slow, fast)
    assert comparison.outcome == "cannot tell"
    assert not {change.outcome for change in comparison.changes} & {"better", "worse"}
    assert "The code is the same on both sides" in printed(comparison)
    assert compare(slow, edited).outcome == "better"


def test_two_programs_are_not_called_the_same(timeline_of):
    one = timeline_of("healthy", steps=12)
    names = (name if name.startswith("ProfilerStep") else f"other::{name}" for name in one.strings)
    comparison = compare(one, replace(one, strings=tuple(names)))
    assert comparison.outcome != "same"
    (difference,) = comparison.differences
    assert difference.kind == "program"
    assert "two programs" in difference.sentence


def test_of_two_programs_neither_is_better(timeline_of):
    """One takes three times as long for a step; none of its parts is better, and its findings are
    its own.
    """
    one, other = (timeline_of(kind, steps=12) for kind in ("healthy", "sync"))
    names = (name if name.startswith("ProfilerStep") else f"other::{name}" for name in one.strings)
    comparison = compare(other, replace(one, strings=tuple(names)))
    assert comparison.outcome == "differs"
    assert {change.outcome for change in comparison.changes} <= {"differs", "cannot tell"}
    text = printed(comparison)
    assert "Different: " in text
    assert "no part is called better, worse or the same" in text
    assert "Findings before alone" in text
    assert "No longer costly" not in text


@pytest.mark.parametrize("bottleneck", ["input", "launch", "communication", "python", "dominant"])
def test_a_fixed_version_is_the_same_program(timeline_of, bottleneck):
    slow = timeline_of(bottleneck, steps=12)
    assert compare(slow, timeline_of("healthy", steps=12)).differences == []


def served(path: Path, period_ms: float, batches: int = 30, images: int = 8):
    """A server with a batch of so many images every `period_ms`, half of that on the device."""
    events = []
    for number in range(batches):
        begin = number * period_ms
        events += [
            event("preprocess", begin, period_ms / 2),
            event("infer", begin + period_ms / 2, period_ms / 2),
            batch(begin + period_ms / 2, period_ms / 2, images),
        ]
    path.write_text(json.dumps({"traceEvents": events}))
    return load(path)


def test_batches_of_other_sizes_are_the_same_work(tmp_path):
    slow, fast = tmp_path / "slow.json", tmp_path / "fast.json"
    comparison = compare(served(slow, 64), served(fast, 32, images=7))
    assert not comparison.differences
    assert "inference (batch" not in printed(comparison)


def test_a_server_is_compared_by_images(tmp_path):
    comparison = compare(served(tmp_path / "slow.json", 64), served(tmp_path / "fast.json", 32))
    assert comparison.unit == "image"
    assert comparison.outcome == "better"
    assert comparison.speedup == pytest.approx(2)
    assert comparison.images_per_s == pytest.approx((125.0, 250.0))
    assert "125 → 250 images/s" in describe_speedup(comparison)
    times = {
        change.what: (change.before, change.after)
        for change in comparison.changes
        if change.group == "step"
    }
    assert times == {"image": (8e6, 4e6), "batch": (32e6, 16e6)}
    text = printed(comparison)
    assert "means for each answered image" in text
    assert "a batch on the device" in text


def test_without_steps_the_whole_recording_is_compared(timeline_of):
    one = timeline_of("healthy", steps=12)
    without = replace(one, ranges=take(one.ranges, slice(0, 0)))
    comparison = compare(observe(without), observe(without))
    assert comparison.unit == "recording"
    assert "whole recording" in printed(comparison)


def complete(cat: str, name: str, start: float, us: float, **args) -> dict:
    where = {"ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": us}
    return where | {"cat": cat, "name": name, "args": args}


def matrix_work(tmp_path, name: str, calls: int = 20, rows: int = 32, **facts):
    """Six steps that call a product of `rows` times 1024 x 1024, 100 us for each 32 rows."""
    events, at, number = [], 1000.0, 0
    us = 100.0 * rows / 32
    for step in range(7):
        begin = at
        for _ in range(calls):
            number += 1
            shapes = {
                "External id": number,
                "Input Dims": [[1024], [rows, 1024], [1024, 1024]],
                "Input type": ["float", "float", "float"],
            }
            where = {"device": 0, "stream": 7, "correlation": number, "External id": number}
            for cat, called, start, length, args in (
                ("cpu_op", "aten::addmm", at, 20.0, shapes),
                ("cuda_runtime", "cudaLaunchKernel", at + 2, 5.0, {"correlation": number}),
                ("kernel", "sgemm", at + 9, us, where),
            ):
                events.append(complete(cat, called, start, length, **args))
            at += us + 20.0
        events.append(complete("user_annotation", f"ProfilerStep#{step}", begin, at - begin))
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events} | facts))
    return load(path)


def test_other_versions_of_cuda_are_a_difference(tmp_path):
    before = matrix_work(tmp_path, "before", cuda_runtime_version=11080)
    after = matrix_work(tmp_path, "after", cuda_runtime_version=12080)
    comparison = compare(before, after)
    assert comparison.outcome == "cannot tell"
    assert "CUDA runtime 11.8 before, 12.8 after" in printed(comparison)
    assert compare(before, matrix_work(tmp_path, "none")).differences == []


def test_fewer_calls_are_named(tmp_path):
    before, after = matrix_work(tmp_path, "before", 40), matrix_work(tmp_path, "after", 20)
    text = printed(compare(before, after))
    assert "sgemm, 40 → 20 a step" in text
    assert "aten::addmm, 40 → 20 a step" in text
    again = printed(compare(before, matrix_work(tmp_path, "again", 40)))
    assert " → 40 a step" not in again


def test_a_larger_batch_is_told_from_slower_code(tmp_path):
    before, after = matrix_work(tmp_path, "before"), matrix_work(tmp_path, "after", rows=64)
    text = printed(compare(before, after))
    shapes = "aten::addmm: 32×1024 by 1024×1024 is gone, 64×1024 by 1024×1024 is new"
    computes = "A call computes 67.1 MFLOP on average before, and 134 MFLOP after"
    assert f"The shapes differ: {shapes}. {computes}" in text
    assert "The shapes differ" not in printed(compare(before, matrix_work(tmp_path, "again")))


@pytest.mark.parametrize(
    ("shapes", "words"), [(("", "8×4 by 4×2"), "is new"), (("8×4 by 4×2", ""), "is gone")]
)
def test_shapes_that_only_one_side_has_are_new_or_gone(tmp_path, shapes, words):
    before, after = matrix_work(tmp_path, "before"), matrix_work(tmp_path, "after", rows=64)
    other = FlopPerCall("aten::mm", 1e6, 2e6, shapes)
    comparison = msgspec.structs.replace(compare(before, after), flop_per_call=other)
    text = printed(comparison)
    assert f"The shapes differ: aten::mm: 8×4 by 4×2 {words}. A call computes" in text
