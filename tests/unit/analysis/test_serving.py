"""The batches of a server, as its capture shows them."""

from __future__ import annotations

import gzip
import json
from io import StringIO

import pytest
from rich.console import Console

from bottleneck_lab.analysis.comparing.compare import compare
from bottleneck_lab.analysis.selection import select
from bottleneck_lab.analysis.steps.serving import find_batch_figures
from bottleneck_lab.analysis.steps.window import Window, find_window
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.report.comparison_words import describe_others
from bottleneck_lab.report.console.summary import render_summary
from bottleneck_lab.trace import load

MS = 1000.0


def event(name, start_ms, length_ms, **more):
    category = {"cat": "user_annotation", "pid": 5, "tid": 6, "args": {}}
    return {"ph": "X", "name": name, "ts": start_ms * MS, "dur": length_ms * MS, **category, **more}


def batch(start_ms, length_ms, images):
    place = {"cat": "kernel", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
    return event(f"emulated: inference (batch {images})", start_ms, length_ms, **place)


@pytest.fixture
def summary_of(tmp_path):
    def made(events):
        path = tmp_path / "trace.json.gz"
        path.write_bytes(
            gzip.compress(json.dumps({"traceEvents": events, "emulatedDevice": "a test"}).encode())
        )
        return summarise(load(path))

    return made


@pytest.fixture
def served(tmp_path):
    """The capture of a server that prepares each batch of 16 for so long and then runs it."""

    def made(prepare_ms, batches=20):
        events, begin = [], 0.0
        for number in range(batches):
            prepared = begin + prepare_ms * (1 + 0.03 * (number % 3))
            events += [
                event("preprocess", begin, prepared - begin),
                event("infer", prepared, 40),
                batch(prepared, 40, 16),
            ]
            begin = prepared + 40
        path = tmp_path / f"{prepare_ms}-{batches}.json.gz"
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        return load(path)

    return made


def in_turns(count=6, first_ms=0):
    """Pre-processing, then inference, over and over: 60 ms and 40 ms."""
    for number in range(count):
        begin = first_ms + 100 * number
        yield event("queue", begin, 1)
        yield event("preprocess", begin + 1, 59)
        yield event("infer", begin + 60, 40)
        yield batch(begin + 60, 40, 16 if number else 4)


def test_batches_that_take_turns_with_their_pre_processing(summary_of):
    use = summary_of(list(in_turns())).serving
    assert use.batches == 6
    assert use.sizes == [(4, 1), (16, 5)]
    assert use.mean_images == pytest.approx(14)
    assert use.images_per_s == pytest.approx(160)
    assert (use.batch_ns, use.gap_ns) == (40_000_000, 60_000_000)
    assert use.idle_share == pytest.approx(300 / 540)
    assert use.unpaused_images_per_s == pytest.approx(14 / 0.040)
    parts = {part.name: part for part in use.parts}
    assert parts["preprocess"].beside_device_share == 0
    assert parts["infer"].beside_device_share == pytest.approx(1)
    assert "h2d" not in parts


def stacking(operators):
    """In turns, with `operators` (name, ms) on the server's thread before each of eight batches."""
    for number in range(8):
        begin = 300 * number
        yield event("preprocess", begin, 100)
        for at, (name, length_ms) in enumerate(operators):
            start_ms = begin + 101 + sum(length for _, length in operators[:at])
            yield {**event(name, start_ms, length_ms), "cat": "cpu_op"}
        yield event("infer", begin + 200, 100)
        yield batch(begin + 200, 100, 16)


@pytest.mark.parametrize(
    "operators",
    [[("aten::stack", 87.0)], [("aten::to", 0.1), ("aten::cat", 0.3)] * 200],
    ids=["one that takes long", "many short ones"],
)
def test_operators_that_prepare_a_batch_on_the_host_launch_nothing(summary_of, operators):
    """Another process runs what the device is given: none of the server's operators is a launch."""
    summary = summary_of(list(stacking(operators)))
    (use,) = summary.devices
    assert {"input", "host"} <= {part.cause for part in use.gap_causes}
    assert "launch" not in {part.cause for part in use.gap_causes}
    found = {finding.id: finding for finding in summary.findings}
    assert set(found) == {"input-starved", "host-operators"}
    assert "ran operators on the CPU" in found["host-operators"].evidence
    assert "while the device works on this batch" in found["host-operators"].advice
    assert "the thread that feeds it" in found["input-starved"].evidence


def with_decoders(waits_in, is_operator):
    """Ten pauses of 100 ms in which two other threads prepare pictures, most ranges by far, while
    the thread that hands batches to the model is in `waits_in`.
    """
    for number in range(10):
        begin = 140 * number
        row = event(waits_in, begin, 100)
        yield {**row, "cat": "cpu_op"} if is_operator else row
        yield event("infer", begin + 100, 40)
        yield batch(begin + 100, 40, 16)
        for thread in (8, 9):
            for picture in range(5):
                yield event("preprocess", begin + 20 * picture, 19.9, tid=thread)


@pytest.mark.parametrize(
    ("waits_in", "is_operator", "cause"),
    [("aten::stack", True, "host"), ("queue", False, "input")],
    ids=["stacking, with pictures ready", "waiting for pictures"],
)
def test_idle_time_goes_to_the_thread_that_hands_over_batches(
    summary_of, waits_in, is_operator, cause
):
    summary = summary_of(list(with_decoders(waits_in, is_operator)))
    (use,) = summary.devices
    idle = {part.cause: part.idle_ns for part in use.gap_causes}
    assert idle[cause] >= 0.98 * sum(ns for each, ns in idle.items() if each != "startup")


def test_a_part_per_batch_fits_the_pause_that_it_fills(served):
    """The first batch was prepared before it, in no pause that is counted."""
    use = summarise(served(100, batches=4)).serving
    (part,) = [part for part in use.parts if part.name == "preprocess"]
    assert part.batch_ns == pytest.approx(use.gap_ns, rel=0.02)


def test_batches_that_are_prepared_while_others_run(summary_of):
    events = [batch(100 * number, 99, 16) for number in range(6)]
    events += [event("preprocess", 100 * number + 10, 50, tid=9) for number in range(6)]
    events += [event("infer", 100 * number, 99) for number in range(6)]
    use = summary_of(events).serving
    assert {part.name: part.beside_device_share for part in use.parts}[
        "preprocess"
    ] == pytest.approx(1)
    assert use.idle_share < 0.02


def test_a_stretch_names_the_longest_row_s_begin_and_end(served):
    """Cut at the stretch's own ends, from the capture's start."""
    timeline = served(100)
    stretch = Window(50_000_000, 250_000_000)
    (thread,) = select(timeline, [], stretch).threads
    spans = {row.name: (row.rows, row.start_ns, row.end_ns) for row in thread.names}
    assert spans == {
        "preprocess": (2, 140_000_000, 243_000_000),
        "infer": (2, 100_000_000, 140_000_000),
    }


def test_what_serves_no_batches_has_none(summary_of):
    assert (
        summary_of([event("preprocess", 0, 5), event("infer", 5, 5), batch(5, 5, 1)]).serving
        is None
    )
    training = [event("data", 10 * number, 5) for number in range(9)] + [
        batch(10 * number, 4, 16) for number in range(9)
    ]
    assert summary_of(training).serving is None


def test_the_report_says_it(summary_of):
    console = Console(width=120, record=True)
    render_summary(summary_of(list(in_turns())), console)
    text = console.export_text()
    assert (
        "6 batches of 14.0 (4 to 16) images, 160 images/s; the device takes 40.0 ms per batch,"
        " pauses 60.0 ms between batches" in " ".join(text.split())
    )
    assert "0% of it while the device works" in text


def test_advice_and_figures_are_those_of_a_server(summary_of):
    """No advice on a training loop's loader; a share from the first batch to the last, as the
    reader is asked to measure it.
    """
    summary = summary_of([event("preprocess", 0, 200), *in_turns(first_ms=200)])
    (finding,) = (each for each in summary.findings if each.id == "input-starved")
    assert "num_workers" not in finding.advice
    assert figures_of(summary)["idle_input_share"] == pytest.approx(300 / 540, abs=0.02)
    assert figures_of(summary)["unpaused_images_per_s"] == pytest.approx(350)
    written = StringIO()
    render_summary(summary, Console(file=written, width=100))
    text, ceiling = " ".join(written.getvalue().split()), finding.expected_gain_ratio
    assert f"the run would be at most 540 ms / 245 ms = {ceiling:.2f}x as fast" in text
    assert "kernels per step" not in text


def test_operators_that_launched_nothing_are_ranked_by_the_host_s_time(summary_of):
    own = {"cat": "cpu_op"}
    summary = summary_of(
        [*in_turns(), event("aten::cat", 10, 3, **own), event("aten::copy_", 20, 1, **own)]
    )
    assert {row.name: row.share for row in summary.operators} == pytest.approx(
        {"aten::cat": 0.75, "aten::copy_": 0.25}
    )


def test_servers_are_compared_by_image_in_every_part(served):
    """Whatever one recording holds more of than the other: here three times as many batches."""
    result = compare(served(60, batches=20), served(20, batches=60))
    changes = {(change.group, change.what): change for change in result.changes}
    assert result.unit == "image"
    assert changes["device", "idle"].outcome == "better"
    assert changes["device", "idle"].before == pytest.approx(61.8e6 / 16, rel=0.02)
    assert changes["range", "preprocess"].ratio == pytest.approx(3.0, rel=0.02)
    assert changes["device", "compute"].outcome == "same"
    (whole,) = (change for key, change in changes.items() if key == ("step", "image"))
    parts = [change for change in result.changes if change.group == "device"]
    assert sum(part.after for part in parts) == pytest.approx(whole.after, rel=0.01)
    assert describe_others(result, "device") is None


def test_batches_that_the_recording_cuts_off_have_no_length(served):
    timeline = served(60)
    timeline.device.end[-1] -= 20_000_000
    whole = find_batch_figures(timeline, find_window(timeline, 0))["step", "batch"]
    assert len(whole) == 18
    assert whole.min() == whole.max()


def test_a_server_with_another_program_is_compared_by_the_recording(served, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"traceEvents": [event("load", 0, 50), batch(50, 40, 1)]}))
    result = compare(served(60), load(path))
    assert result.unit == "recording"
    (whole,) = (change for change in result.changes if change.what == "time")
    assert whole.after == pytest.approx(90e6)
