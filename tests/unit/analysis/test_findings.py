"""Detectors against captures with known bottlenecks: what was put in is found, and nothing else; nothing on a healthy one."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck_lab import findings, load, merge_ranks
from bottleneck_lab.analysis.amdahl import ceiling, predicted
from bottleneck_lab.analysis.findings import FINDING_IDS, Evidence, find_findings

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
KINDS = [
    "healthy",
    "healthy-small",
    "input",
    "launch",
    "sync",
    "pageable",
    "communication",
    "elementwise",
    "layout",
    "fp32",
    "growth",
    "allocator",
    "uneven",
]


@pytest.mark.parametrize("bottleneck", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_put_in_is_found_and_nothing_else(summary_of, make, bottleneck, seed):
    summary = summary_of(bottleneck, seed=seed)
    assert summary.quality.reliable, summary.quality.reasons
    assert {finding.id for finding in summary.findings} == set(make.BOTTLENECKS[bottleneck])
    for use in summary.devices:
        assert sum(part.idle_ns for part in use.gap_causes) == use.idle_ns == use.wall_ns - use.busy_ns
        assert use.compute_ns + use.exposed_communication_ns + use.exposed_copy_ns == use.busy_ns


@pytest.mark.parametrize("bottleneck", ["healthy-cpu", "dominant", "python"])
def test_captures_without_an_accelerator(tmp_path, make, bottleneck):
    (tmp_path / "x.json").write_text(json.dumps(make.on_cpu(bottleneck).trace(bottleneck)))
    assert {finding.id for finding in findings(tmp_path / "x.json")} == set(make.ON_CPU[bottleneck])


@pytest.mark.parametrize("bottleneck", ["healthy-job", "straggler"])
def test_captures_of_several_ranks(tmp_path, make, bottleneck):
    timelines = []
    for run in make.job(bottleneck, seed=2):
        path = tmp_path / f"{run.rank}.json"
        path.write_text(json.dumps(run.trace(bottleneck, world_size=4)))
        timelines.append(load(path))
    found = {finding.id: finding for finding in findings(merge_ranks(timelines))}
    assert set(found) == set(make.JOBS[bottleneck])
    if found:
        assert "Rank 2 " in found["straggler"].evidence


def test_every_kind_is_tested(make):
    assert set(KINDS) == set(make.BOTTLENECKS)


def test_findings_are_ranked_and_complete(summary_of):
    found = summary_of("pageable").findings
    assert [f.share_of_wall for f in found] == sorted((f.share_of_wall for f in found), reverse=True)
    for finding in found:
        assert finding.id in FINDING_IDS
        assert finding.evidence.endswith(".")
        assert finding.expected_gain_ratio == pytest.approx(1 / (1 - finding.share_of_wall))


def test_committed_captures_are_what_the_manifest_says(make, tmp_path):
    manifest = json.loads((CAPTURES / "manifest.json").read_text())
    assert {row["file"] for row in manifest["captures"]} == {path.name for path in CAPTURES.glob("synthetic-*")}
    for row in manifest["captures"]:
        path = CAPTURES / row["file"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]
        assert {finding.id for finding in findings(path)} == set(row["findings"])
        assert b"synthetic" in path.name.encode()


def test_a_long_capture_is_no_other(timeline_of):
    assert load(timeline_of("sync").source).events == timeline_of("sync").events


@given(st.floats(0, 1), st.floats(0.01, 1e6))
@settings(max_examples=100)
def test_amdahl(share, ratio):
    assert predicted(share, ratio) == pytest.approx(min(1 / max(1 - share + share / ratio, 1e-3), 1000))
    assert ceiling(share) >= predicted(share, max(ratio, 1))


def test_amdahl_refuses_nonsense():
    for share, ratio in ((-0.1, 2), (1.1, 2), (0.5, 0)):
        with pytest.raises(ValueError, match="a share lies in"):
            predicted(share, ratio)


def test_steps_that_all_scatter_are_not_called_uneven():
    def found(step_ms):
        seen = Evidence([], [], [], [], [], [], [], [], [int(1e6 * ms) for ms in step_ms], len(step_ms), 10**9)
        return [finding.id for finding in find_findings(seen)]

    assert found([10, 10.1, 9.9, 10, 10.2, 10, 9.8, 40]) == ["uneven-steps"]
    assert found([10, 15, 9, 11, 14, 8, 16, 10]) == []
