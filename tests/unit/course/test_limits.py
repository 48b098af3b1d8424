"""Which limits of a check a capture misses."""

from __future__ import annotations

import msgspec
import pytest

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.catalog import content_root
from bottleneck_lab.course import limits
from bottleneck_lab.trace.load import load


@pytest.fixture
def captured():
    """The summary of a capture whose memory grows by 4 MiB a step, to 272."""
    return summarise(load(content_root() / "datasets" / "captures" / "synthetic-growth.json.gz"))


def test_what_a_capture_clearly_misses_is_named_with_its_limit(start, captured, monkeypatch):
    workspace = start("forecaster-out-of-memory")
    assert limits.missed_limits(workspace, captured) == [], "the limits would name the cause"
    monkeypatch.setattr(limits, "is_blind", lambda _workspace: False)
    assert limits.missed_limits(workspace, captured) == [
        "most memory allocated at any time: 272 MiB (at most 4 MiB)",
        "rise of memory a step between reports: 4,096 KiB (at most 0.25 KiB)",
        "only a check counts the tensors that are left two reports later",
    ]
    (use,) = captured.memory
    near = msgspec.structs.replace(use, peak_bytes=int(4.2 * limits.MIB), growth_bytes_per_step=0)
    closer = msgspec.structs.replace(captured, memory=[near])
    assert limits.missed_limits(workspace, closer) == [], "a check trains on other data"
    hidden = msgspec.structs.replace(near, growth_bytes_per_step=9 << 20, fall_bytes=1 << 40)
    unknown = msgspec.structs.replace(captured, memory=[hidden])
    assert limits.missed_limits(workspace, unknown) == []


def test_waits_are_those_between_two_reports(start, monkeypatch):
    monkeypatch.setattr(limits, "is_blind", lambda _workspace: False)
    capture = content_root() / "datasets" / "captures" / "synthetic-sync.json.gz"
    summary = summarise(load(capture))
    a_step = sum(row.calls_per_step for row in summary.syncs)
    (missed,) = limits.missed_limits(start("stuttering-tagger"), summary)
    assert missed == (
        f"waits between two reports: {10 * a_step:.0f} times, {a_step:.3g} a step (at most 1 time;"
        " `lab report --ask waits` names the lines)"
    )


def test_a_capture_without_steps_tells_nothing(start, captured, monkeypatch):
    monkeypatch.setattr(limits, "is_blind", lambda _workspace: False)
    bare = msgspec.structs.replace(captured, steps=[])
    assert limits.missed_limits(start("forecaster-out-of-memory"), bare) == []
