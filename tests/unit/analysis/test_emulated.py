"""Rows of the device that a script was fed to: no runtime calls beside them, and an emulated one's
never shown as real.
"""

import gzip
import json
import time
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.channel.messages import DeviceReady, Trained
from bottleneck_lab.measure.channel.wire import Channel
from bottleneck_lab.measure.clock import PhaseClock
from bottleneck_lab.measure.kinds.input_pipeline import KIND, device_process, run
from bottleneck_lab.measure.kinds.input_pipeline.device_rows import add_device_rows
from bottleneck_lab.trace.names import CALIBRATED

MS = 1_000_000
run_script = run.run_script


def test_an_emulated_device_waits_for_its_input(tmp_path):
    """Kernels without correlation numbers; the thread that marks the ranges is the one that feeds
    the device.
    """
    t0, events = 5_000_000.0, []
    for i in range(4):
        begin = t0 + i * 1000
        host = {"ph": "X", "cat": "user_annotation", "pid": 9, "tid": 9}
        events += [
            {**host, "name": f"ProfilerStep#{i}", "ts": begin, "dur": 1000},
            {**host, "name": "data", "ts": begin, "dur": 600},
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::add",
                "pid": 9,
                "tid": 10,
                "ts": begin,
                "dur": 900,
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "emulated: ResNet-50 forward",
                "pid": 0,
                "tid": 7,
                "ts": begin + 600,
                "dur": 400,
                "args": {"device": 0, "stream": 7},
            },
        ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": events}))
    summary = summarise(load(path))
    (use,) = summary.devices
    assert summary.emulated
    assert use.emulated
    assert summary.quality.reliable
    assert use.busy_share == 0.4
    assert [(cause.cause, cause.idle_ns) for cause in use.gap_causes] == [("input", 2_400_000)]
    assert [finding.id for finding in summary.findings] == ["input-starved"]
    assert summary.range_shares == {"data": 0.6}


@pytest.fixture
def fed(tmp_path, monkeypatch):
    """A profiled script on a stand-in for the device, which says that a step takes 20 ms and runs
    one of the profiled and one later.
    """

    def profiled(device):
        verifiers, devices = Channel.pair()
        host, theirs = Channel.pair()
        process, trace = Mock(kill=devices.close), tmp_path / "trace.json.gz"

        def run_child(*_):
            began_ns, now_us = time.monotonic_ns(), time.time_ns() / 1000
            images = np.zeros((3, 3, 224, 224), np.uint8)
            for start_ns in (began_ns, began_ns + 5000 * MS):
                labels = np.zeros(16, dtype=np.int64)
                Channel(devices).send(
                    Trained(start_ns, start_ns, start_ns + 20 * MS, labels, images)
                )
            step = {
                "ph": "X",
                "cat": "user_annotation",
                "name": "ProfilerStep#1",
                "pid": 9,
                "tid": 9,
            }
            step |= {"ts": now_us - 1e6, "dur": 2e6}
            with gzip.open(trace, "wt") as file:
                json.dump(
                    {"traceEvents": [step, {**step, "cat": "gpu_user_annotation", "dur": 20e6}]},
                    file,
                )
            host.close()
            return 0

        monkeypatch.setattr(run, "calibrate", lambda _context, _count: 0.5)
        monkeypatch.setattr(
            device_process, "start_device", lambda *_: (process, Channel(verifiers), theirs)
        )
        monkeypatch.setattr(run, "_run_child", run_child)
        Channel(devices).send(DeviceReady(0.020))
        judge = SimpleNamespace(count=lambda _data: 64)
        lab = find_lab("idle-gpu")
        context = SimpleNamespace(
            lab=lab,
            device=device,
            settings=KIND.settings(lab, device),
            judge=lambda: judge,
            data=None,
            janitor=Mock(),
            clock=PhaseClock(),
        )
        seen = []
        monkeypatch.setattr(
            run, "run_script", lambda *given: seen.append(run_script(*given)) or seen[0]
        )
        assert run.profile(context, trace, print) == 0
        return seen[0][2], load(trace), json.loads(gzip.decompress(trace.read_bytes()))

    return profiled


def test_a_real_device_s_steps_are_shown_as_they_were(fed):
    step_s, timeline, content = fed("cuda")
    assert step_s == 0.020, "what the device says, not what the host's speed suggests"
    assert timeline.names(timeline.device) == ["ResNet-50 training step (batch 16)"]
    assert (timeline.device.end - timeline.device.start).tolist() == [20 * MS]
    assert not timeline.emulated
    assert "emulated" not in json.dumps(content)


def test_an_emulated_device_s_steps_are_cut_into_its_parts(fed):
    _, timeline, content = fed("virtual")
    assert timeline.emulated
    assert [name.split()[2] for name in timeline.names(timeline.device)] == [
        "forward",
        "backward",
        "optimizer",
    ]
    assert "A100" in content["emulatedDevice"]
    assert timeline.facts[CALIBRATED] == "20000000"


def test_the_first_recorded_step_is_no_step(tmp_path):
    """The device ran on while the profiler started. Steps of the device that cross an end of the
    others are cut there, so that a device that never waits is busy all the time.
    """
    trace, now_ns = tmp_path / "trace.json.gz", time.monotonic_ns()
    base_us = (now_ns + time.time_ns() - time.monotonic_ns()) / 1000
    step = {"ph": "X", "cat": "user_annotation", "pid": 9, "tid": 9}
    marks = [
        {**step, "name": f"ProfilerStep#{n}", "ts": base_us + 1000 * n, "dur": 1000 if n else 3}
        for n in range(4)
    ]
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": marks}).encode()))
    lab = find_lab("idle-gpu")
    begins = [now_ns + (1000 * n - 500) * 1000 for n in range(5)]
    labels, samples = np.zeros(16, np.int64), np.zeros((0, 1))
    steps = [Trained(at, at, at + 1_000_000, labels, samples) for at in begins]
    settings = KIND.settings(lab, "virtual")
    add_device_rows(trace, steps, settings, emulated=True, step_s=0.001)
    summary = summarise(load(trace))
    assert [each.name for each in summary.steps] == [f"ProfilerStep#{n}" for n in (1, 2, 3)]
    assert summary.devices[0].busy_ns == pytest.approx(3_000_000, rel=0.01)


@pytest.mark.parametrize(("track", "costs"), [("lines of 9", False), ("10", True)])
def test_modelled_lines_do_not_slow_python_down(tmp_path, track, costs):
    row = {"ph": "X", "pid": 9, "ts": 0.0, "dur": 90.0}
    trace = tmp_path / "trace.json"
    events = [
        {**row, "cat": "cpu_op", "name": "aten::add", "tid": 9},
        {**row, "cat": "python_function", "name": "train.py(3): train", "tid": track},
        {
            **row,
            "cat": "kernel",
            "name": "emulated: add",
            "pid": 0,
            "tid": 7,
            "args": {"device": 0},
        },
    ]
    trace.write_text(json.dumps({"traceEvents": events}))
    assert bool(summarise(load(trace)).quality.slowed) is costs
