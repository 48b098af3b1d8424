"""A DataLoader's worker processes show up in the trace, with the lines that they spent their time
on.
"""

from __future__ import annotations

import gzip
import json
import time

from torch.utils.data import DataLoader, Dataset

from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.measure.kinds.input_pipeline.loader_workers import (
    add_worker_rows,
    recorded_workers,
)
from bottleneck_lab.trace import load


class Slow(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        until = time.process_time() + 0.02
        while time.process_time() < until:
            index += 0
        return index


def test_what_a_worker_does_is_in_the_trace(tmp_path):
    rows, trace = tmp_path / "rows", tmp_path / "trace.json.gz"
    begin = time.time_ns()
    with recorded_workers(rows):
        batches = [batch.tolist() for batch in DataLoader(Slow(), batch_size=4, num_workers=2)]
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1}
    step |= {"ts": 0.0, "dur": (time.time_ns() - begin) / 1e3, "args": {}}
    with gzip.open(trace, "wt") as file:
        json.dump({"schemaVersion": 1, "baseTimeNanoseconds": begin, "traceEvents": [step]}, file)
    add_worker_rows(trace, rows)
    workers = summarise(load(trace)).workers
    assert sorted(batches) == [list(range(at, at + 4)) for at in range(0, 24, 4)]
    assert {use.worker for use in workers} == {"DataLoader worker 0", "DataLoader worker 1"}
    assert sum(use.batches for use in workers) == 6
    first = max(workers[0].lines, key=lambda line: line.time_ns)
    assert first.line.startswith("test_inside_workers.py(")
    assert "__getitem__" in first.line
    assert first.share > 0.5


def test_without_workers_nothing_is_added(tmp_path):
    with recorded_workers(tmp_path / "rows"):
        list(DataLoader(Slow(), batch_size=12))
    assert not list((tmp_path / "rows").iterdir())
    add_worker_rows(tmp_path / "none.json.gz", tmp_path / "rows")
    assert not (tmp_path / "none.json.gz").exists()


def row(name, category, tid, begin, length):
    """An event of a trace, on the only thread of a process."""
    event = {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length}
    return event | {"pid": tid, "tid": tid, "args": {}}


def test_a_worker_of_another_epoch_is_another_process_and_its_code_is_listed_once(tmp_path):
    events = [row("ProfilerStep#1", "user_annotation", 1, 0, 100)]
    for tid, begin in ((2, 0), (3, 50)):
        label = {"name": "DataLoader worker 0"}
        events += [
            {"ph": "M", "name": "thread_name", "pid": tid, "tid": tid, "args": label},
            row("batch of 16", "user_annotation", tid, begin, 40),
            row("train.py(7): __getitem__", "python_function", tid, begin, 40),
        ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    summary = summarise(load(path))
    assert sorted(use.worker for use in summary.workers) == [
        f"DataLoader worker 0, process {number} of 2 (epochs start their own)" for number in (1, 2)
    ]
    assert summary.lines == [], "the workers' own list has them"


def test_a_workers_mean_batch_leaves_out_cut_ones_and_its_lines_may_overlap_by_rounding(tmp_path):
    label = {"name": "DataLoader worker 0"}
    events = [
        row("ProfilerStep#1", "user_annotation", 1, 0, 100),
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 2, "args": label},
        row("batch of 16", "user_annotation", 2, 0, 60),
        row("batch of 16", "user_annotation", 2, 60, 30),
        row("batch of 16", "user_annotation", 2, 95, 20),
        row("train.py(7): __getitem__", "python_function", 2, 0, 30.001),
        row("train.py(8): __getitem__", "python_function", 2, 30, 30),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (use,) = summarise(load(path)).workers
    assert (use.batches, use.batch_ns) == (2, 45_000)
    assert [line.time_ns for line in use.lines] == [30_001, 30_000]
