"""The lines of a program as they ran, and where they end up in a trace."""

import gzip
import json
import time

from bottleneck_lab.capture.lines import TRACK, Lines, compress, steps
from bottleneck_lab.trace.load import load
from bottleneck_lab.trace.names import LINES_OF


def _nap():
    time.sleep(0.01)


def _program():
    _nap()
    return sum(range(10))


def _recorded():
    lines = Lines()
    lines.start()
    _program()
    lines.stop()
    return [event for event in lines.events(0) if event["ph"] == "X"]


def test_each_line_has_its_time():
    found = _recorded()
    first = _nap.__code__.co_firstlineno + 1
    naps = [event for event in found if event["name"] == f"test_lines.py({first}): _nap"]
    assert sum(event["dur"] for event in naps) >= 10_000
    assert all(event["name"].startswith("test_lines.py(") for event in found)
    ends = [event["ts"] + event["dur"] for event in found]
    assert all(end <= event["ts"] + 1 for end, event in zip(ends, found[1:], strict=False))


def test_the_rest_of_a_line_is_the_caller_s_again():
    found = [event["name"].partition(": ")[2] for event in _recorded()]
    assert found.index("_nap") < len(found) - 1
    assert "_program" in found[found.index("_nap") :]


def test_short_lines_take_no_room_and_a_full_track_ends_its_last_line(monkeypatch):
    monkeypatch.setattr("bottleneck_lab.capture.lines.MOST_ROWS", 200)
    lines = Lines()
    lines.start()
    for _ in range(400):
        time.sleep(1e-5)
        sum(range(10))
    full = time.time_ns() / 1e3
    time.sleep(0.05)
    lines.stop()
    stretches = [event for event in lines.events(0) if event["ph"] == "X"]
    assert len(stretches) <= 200
    assert max(event["ts"] + event["dur"] for event in stretches) < full


def test_the_track_and_the_steps_are_written_into_the_trace(tmp_path):
    trace = tmp_path / "trace.json"
    kernel = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": 1,
        "ts": 5.0,
        "dur": 1.0,
    }
    trace.write_text(
        '{"schemaVersion": 1, "traceEvents": [\n'
        + json.dumps(kernel)
        + '\n], "baseTimeNanoseconds": 1000}'
    )
    lines = Lines()
    lines.start()
    _program()
    lines.stop()
    compress(trace, tmp_path / "trace.json.gz", lines, [3_000, 5_000, 9_000])
    whole = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    marked = [event for event in whole["traceEvents"] if event.get("cat") == "user_annotation"]
    assert [(event["name"], event["ts"], event["dur"]) for event in marked] == [
        ("step 1", 2.0, 2.0),
        ("step 2", 4.0, 4.0),
    ]
    assert {event["name"] for event in whole["traceEvents"]} >= {"aten::mm"}
    assert len(load(tmp_path / "trace.json.gz").python)


def test_one_step_end_makes_no_step():
    assert [*steps([5], 0)] == []


def test_reader_and_writer_call_the_track_the_same():
    assert LINES_OF.strip() == TRACK
