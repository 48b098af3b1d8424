"""Names of Python's functions, without the addresses of their objects."""

import json

from bottleneck_lab import load


def test_a_function_of_two_objects_is_one(tmp_path):
    rows = [
        {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 5}
        for ts, name in enumerate(
            [
                "<built-in method acquire of lock object at 0x7f4a965a7d40>",
                "<built-in method acquire of lock object at 0x7F00>",
                "train.py(3): step",
            ]
        )
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    timeline = load(path)
    names = [timeline.strings[number] for number in timeline.python.name.tolist()]
    assert names == [*["<built-in method acquire of lock object>"] * 2, "train.py(3): step"]
