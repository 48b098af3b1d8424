"""A folder of unrelated captures is refused: they are not the ranks of one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bottleneck_lab import load
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace import Timeline

BASE_S = 1_790_000_000


def folder_of(path: Path, **changes: object) -> Path:
    """Write two captures that began together, the second with these changes to the first's."""
    first = {"gpu": "NVIDIA H100", "pid": 10, "at_s": 0, "operators": "mm add relu", "kernel": "k"}
    for number, values in enumerate((first, {**first, "pid": 11, **changes})):
        events = [
            {"ph": "X", "pid": values["pid"], "tid": 1, "ts": 1e6 * values["at_s"] + at, "dur": 1}
            | {"cat": "cpu_op", "name": f"aten::{name}", "args": {}}
            for at, name in enumerate(str(values["operators"]).split())
        ]
        args = {"device": 0, "stream": 7}
        where = {"pid": 0, "tid": 7, "ts": 1e6 * values["at_s"] + 9, "dur": 5}
        kernel = {"ph": "X", "cat": "kernel", "name": values["kernel"], "args": args, **where}
        trace = {
            "baseTimeNanoseconds": BASE_S * 10**9,
            "deviceProperties": [{"id": 0, "name": values["gpu"]}],
            "distributedInfo": {"rank": number},
            "traceEvents": [*events, kernel],
        }
        (path / f"rank{number}.json").write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"gpu": "AMD Instinct MI210"}, "they ran on NVIDIA H100 and AMD Instinct MI210"),
        ({"at_s": 9 * 3600}, "they began 9 hours apart"),
        ({"operators": "conv2d pool mm"}, "different programs, with 1 of 5 operators in common"),
    ],
)
def test_captures_of_different_runs_are_refused_with_what_differs(tmp_path, changes, difference):
    with pytest.raises(CaptureError, match=difference) as refusal:
        load(folder_of(tmp_path, **changes))
    assert "rank0.json and rank1.json are not ranks of one run" in str(refusal.value)
    assert "a folder of their own" in refusal.value.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"at_s": 30},
        # Repeated cycles of a profiler in one process may be hours apart.
        {"pid": 10, "at_s": 9 * 3600},
        # Stages of a pipeline send each other messages and run different operators.
        {"operators": "conv2d pool mm", "kernel": "ncclDevKernel_SendRecv"},
    ],
)
def test_ranks_and_cycles_of_one_run_are_read_together(tmp_path, changes):
    if "kernel" in changes:
        folder_of(tmp_path, kernel=changes["kernel"])
        first = json.loads((tmp_path / "rank0.json").read_text())
        first["traceEvents"][-1]["name"] = changes["kernel"]
        folder_of(tmp_path, **changes)
        (tmp_path / "rank0.json").write_text(json.dumps(first))
    else:
        folder_of(tmp_path, **changes)
    assert isinstance(load(tmp_path), Timeline)
