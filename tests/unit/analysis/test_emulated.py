"""Rows of an emulated accelerator: no runtime calls beside them, and never shown as real."""

import json

from bottleneck_lab import load, summarise


def test_an_emulated_device_waits_for_its_input(tmp_path):
    """Kernels without correlation numbers; the thread that marks the ranges is the one that feeds the device."""
    t0, events = 5_000_000.0, []
    for i in range(4):
        begin = t0 + i * 1000
        host = {"ph": "X", "cat": "user_annotation", "pid": 9, "tid": 9}
        events += [
            {**host, "name": f"ProfilerStep#{i}", "ts": begin, "dur": 1000},
            {**host, "name": "data", "ts": begin, "dur": 600},
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 9, "tid": 10, "ts": begin, "dur": 900},
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
