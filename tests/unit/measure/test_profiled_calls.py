"""The capture of a lab that answers calls holds all that is asked for, unless the trace would be
too large to be of use.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.measure.kinds import profiling
from bottleneck_lab.measure.kinds.speedup import child_profiled as profiled
from bottleneck_lab.trace import load

SCHEDULE = {"wait": 1, "warmup": 2, "active": 8}


def tiny_operators(count):
    ones = torch.ones(4)

    def call():
        for _ in range(count):
            ones.add(1)

    return call


@pytest.mark.parametrize(("most_bytes", "recorded"), [(10**9, 8), (10**3, 3)])
def test_calls_of_too_many_events_are_recorded_fewer_times_but_three(
    tmp_path, monkeypatch, most_bytes, recorded
):
    monkeypatch.setattr(profiled, "MOST_BYTES", most_bytes)
    profiled.record_on_cpu([tiny_operators(50)] * 11, SCHEDULE, tmp_path / "trace.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]
    summary = summarise(load(tmp_path / "trace.json.gz"))
    assert len(summary.steps) == recorded
    (operator,) = [each for each in summary.operators if each.name == "aten::add"]
    assert operator.calls == 50 * recorded


def test_a_trace_holds_as_many_calls_as_fit(tmp_path, monkeypatch):
    def weigh(_profiler, path):
        Path(path).write_bytes(bytes(8_000_000))

    monkeypatch.setattr(torch.autograd.profiler.profile, "export_chrome_trace", weigh)
    assert profiled.as_many_as_fit(lambda: None, tmp_path / "trace.json.gz") == 5


def test_a_trace_is_compressed_and_nothing_else_is_left(tmp_path):
    content = {"traceEvents": [{"ph": "X", "name": "call"}]}
    written = SimpleNamespace(
        export_chrome_trace=lambda path: Path(path).write_text(json.dumps(content))
    )
    profiling.export(written, tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        assert json.load(file) == content
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


def test_a_traceback_shows_the_learners_own_lines(tmp_path, capsys):
    """Not those that called them, and not those of this package that they called."""
    script = tmp_path / "train.py"
    script.write_text("from bottleneck_lab.catalog import find_lab\ndef train(): find_lab('x')")
    names = {}
    exec(compile(script.read_text(), script, "exec"), names)
    with pytest.raises(SystemExit):
        profiling.run_child(lambda _: names["train"](), SimpleNamespace(entry=script))
    files = re.findall(r'File "(.*?)"', capsys.readouterr().err)
    assert files == [str(script)]
