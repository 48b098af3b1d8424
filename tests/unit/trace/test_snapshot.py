"""Memory snapshots: read as data, the same as pickle would, whatever the protocol; and nothing in a
hostile file is ever executed.
"""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.fast import snapshot_pickle
from bottleneck_lab.trace.fast.snapshot_batches import Batches
from bottleneck_lab.trace.load import is_snapshot, load, load_snapshot
from bottleneck_lab.trace.snapshot import ACTIONS, Snapshot

from ...modules import load_file

SCRIPT = Path(__file__).parents[3] / "datasets" / "snapshots.py"


@pytest.fixture(scope="module")
def made_up() -> Any:
    """datasets/snapshots.py, which is no package."""
    return load_file(SCRIPT, "snapshots")


def saved(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def assert_same(read: Snapshot, wanted: dict[str, Any]) -> None:
    """Every figure, every stack and every block."""
    events, trace = read.events[0], wanted["device_traces"][0]
    stacks = [
        tuple((read.frames[i].file, read.frames[i].line, read.frames[i].function) for i in s)
        for s in read.stacks
    ]
    assert events.action.tolist() == [ACTIONS[event["action"]] for event in trace]
    assert events.time_us.tolist() == [event["time_us"] for event in trace]
    assert events.address.tolist() == [
        event.get("addr", event.get("device_free")) for event in trace
    ]
    assert events.bytes.tolist() == [event["size"] for event in trace]
    assert [stacks[i] for i in events.stack] == [_lines(event) for event in trace]
    for segment, due in zip(read.segments, wanted["segments"], strict=True):
        assert (segment.device, segment.bytes) == (due["device"], due["total_size"])
        for block, was in zip(segment.blocks, due["blocks"], strict=True):
            assert (block.address, block.bytes, block.requested) == (
                was["address"],
                was["size"],
                was["requested_size"],
            )
            assert block.active == (was["state"] == "active_allocated")
            assert (stacks[block.stack] if block.active else ()) == _lines(was)
    assert [note.time_us for note in read.annotations] == [
        note["time_us"] for note in wanted["external_annotations"]
    ]


def _lines(entry: dict[str, Any]) -> tuple[tuple[str, int, str], ...]:
    return tuple((frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_is_read_is_what_pickle_reads(made_up: Any, tmp_path: Path, protocol: int) -> None:
    content = made_up.snapshot(events=2500, depth=6, fails=True)
    read = load_snapshot(saved(tmp_path / "s.pickle", content, protocol))
    assert_same(read, content)
    assert read.settings["expandable_segments"] == "False"


def test_pieces_of_the_file_leave_no_seam(
    made_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_pickle, "CHUNK_BYTES", 10_007)
    monkeypatch.setattr(snapshot_pickle, "AHEAD_BYTES", 3000)
    content = made_up.snapshot(events=2500, depth=40)
    assert_same(load_snapshot(saved(tmp_path / "s.pickle", content)), content)


def test_events_by_the_thousand_are_those_one_by_one(
    made_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = made_up.snapshot(events=2500)
    path, taken = saved(tmp_path / "s.pickle", content), []
    take = Batches.take

    def watched(self: Batches, *args: Any) -> Any:
        before = self.rows
        found = take(self, *args)
        taken.append(self.rows - before)
        return found

    monkeypatch.setattr(Batches, "take", watched)
    together = load_snapshot(path)
    assert sum(taken) > 0.8 * 2500, "nearly all events are read by the thousand"
    monkeypatch.setattr(Batches, "ready", False)
    alone = load_snapshot(path)
    for name in ("action", "time_us", "address", "bytes", "stack"):
        assert getattr(together.events[0], name).tolist() == getattr(alone.events[0], name).tolist()


def test_words_of_newer_versions_are_passed_over(made_up: Any, tmp_path: Path) -> None:
    content = made_up.snapshot(events=1500)
    for number, event in enumerate(content["device_traces"][0]):
        frames = event.pop("frames")
        event |= {
            "pool_id": (0, number % 3),
            "user_metadata": "x" * (number % 40),
            "frames": frames,
        }
    content["device_traces"][0][700]["action"] = "annotate"
    read = load_snapshot(saved(tmp_path / "s.pickle", content))
    assert read.events[0].action[700] == 0
    assert read.events[0].time_us.tolist() == [
        event["time_us"] for event in content["device_traces"][0]
    ]


class Runs:
    """What a hostile pickle is made with."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def hostile(marker: Path) -> dict[str, bytes]:
    """Pickles that run something, or would take all memory."""
    touch = f"cos\nsystem\n(X{chr(0)}".encode()
    return {
        "reduce": pickle.dumps(Runs(marker)),
        "reduce among events": pickle.dumps({"segments": [], "device_traces": [[Runs(marker)]]}),
        "old reduce": pickle.dumps(Runs(marker), protocol=2),
        "global": b"\x80\x02c" + touch + b"R.",
        "instance": b"\x80\x02(ios\nsystem\n.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"\x80\x02Pname\n.",
        "build": b"\x80\x02}}b.",
        "a class": pickle.dumps(Snapshot),
        "bytes": pickle.dumps({"segments": b"x", "device_traces": []}),
        "a huge text": b"\x80\x04X\xff\xff\xff\x7f",
        "a huge number": b"\x80\x04\x8b\xff\xff\xff\x7f",
        "nested lists": b"\x80\x04" + b"](" * 100_000,
        "a tall stack": b"\x80\x04(" + b"N" * 200_000,
        "pops nothing": b"\x80\x04u.",
        "refers to nothing": b"\x80\x04}(h\x07h\x08u.",
        "holds itself": b"\x80\x04]\x94h\x00a.",
        "nothing": b"\x80\x04.",
        "empty": b"",
        "something else": pickle.dumps({"weights": [1.0, 2.0]}),
    }


@pytest.mark.parametrize("name", hostile(Path()))
def test_a_hostile_pickle_is_refused_and_runs_nothing(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    path = tmp_path / "hostile.pickle"
    path.write_bytes(hostile(marker)[name])
    with pytest.raises(CaptureError, match=r"hostile\.pickle is not a memory snapshot"):
        load_snapshot(path)
    assert not marker.exists()


def test_damage_is_an_error_and_never_a_crash(made_up: Any, tmp_path: Path) -> None:
    whole, rng, path = (
        pickle.dumps(made_up.snapshot(events=300, depth=4), protocol=4),
        random.Random(1),
        tmp_path / "d",
    )
    for _ in range(150):
        damaged = bytearray(whole[: rng.randrange(2, len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(2, len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read = load_snapshot(path)
        except CaptureError:
            continue
        assert isinstance(read, Snapshot)


def test_only_a_pickle_is_taken_for_one(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("{}", encoding="utf-8")
    assert not is_snapshot(trace)
    assert not is_snapshot(tmp_path / "absent")
    assert is_snapshot(saved(tmp_path / "s.pickle", {}))


def test_where_a_timeline_is_wanted_a_snapshot_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="not a timeline") as error:
        load(saved(tmp_path / "s.pickle", {}))
    assert "lab report s.pickle" in error.value.remedy
