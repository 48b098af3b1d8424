"""How long a submission waits, by measured durations and the machines that are there."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.running import forecast as module
from bottleneck_lab.cohort.running import leases, workers
from bottleneck_lab.cohort.running.durations import (
    KEPT,
    TYPICAL_S,
    keep_duration,
    load_durations,
    typical_s,
)
from bottleneck_lab.cohort.running.forecast import Forecast, forecast, load_forecast, needs_quiet
from bottleneck_lab.cohort.running.queue_order import Waiting
from bottleneck_lab.cohort.running.workers import (
    RunnerStatus,
    Slot,
    leave,
    load_runners,
    report_status,
    require_useful,
)
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.cohort.workshop import choose_labs
from bottleneck_lab.errors import MachineError

DURATIONS = {("timed", "cpu"): [60.0], ("modelled", "virtual"): [20.0], ("timed", "cuda"): [90.0]}


@pytest.fixture(autouse=True)
def labs(monkeypatch):
    """A lab that measures and one whose figures are modelled."""
    monkeypatch.setattr(module, "needs_quiet", lambda lab, _device: lab == "timed")


def runner(*slots: str, name: str = "r", machine: str = "m", seen: float = 0.0) -> RunnerStatus:
    return RunnerStatus(name, "local", [Slot(slot) for slot in slots], seen, {}, machine)


def waits(*work: tuple[str, str], runners=None, running=None) -> list[float | None]:
    waiting = [Waiting(at, str(at), at, lab, device, 0.0) for at, (lab, device) in enumerate(work)]
    runners = [runner("cpu0", "cpu1")] if runners is None else runners
    return list(forecast(waiting, runners, running or {}, DURATIONS, 0.0).values())


MODELLED, TIMED, GPU = ("modelled", "virtual"), ("timed", "cpu"), ("timed", "cuda")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ([TIMED, TIMED, TIMED], [0, 60, 120]),
        ([MODELLED] * 5, [0, 0, 20, 20, 40]),
        ([MODELLED, TIMED, MODELLED], [0, 20, 80]),
        ([GPU], [None]),
    ],
)
def test_modelled_checks_share_a_machine_and_timed_ones_do_not(work, expected):
    assert waits(*work) == expected


def test_each_machine_has_a_queue_of_its_own():
    two = [runner("cpu0"), runner("cpu0", name="s", machine="n")]
    assert waits(TIMED, TIMED, TIMED, runners=two) == [0, 0, 60]
    gpus = [runner("gpu0", "gpu1", "cpu0")]
    assert waits(GPU, GPU, GPU, TIMED, runners=gpus) == [0, 0, 90, 180]
    assert waits(TIMED, TIMED, runners=[runner("cluster0", "cluster1", machine="")]) == [0, 0]


def test_what_is_under_way_counts_for_what_is_left_of_it():
    status = msgspec.structs.replace(runner("cpu0"), slots=[Slot("cpu0", "busy")])
    assert waits(TIMED, runners=[status], running={"busy": ("timed", "cpu", -45.0)}) == [15]
    overdue = {"busy": ("timed", "cpu", -100.0)}
    assert waits(TIMED, runners=[status], running=overdue) == [20], "it is not over now"


def test_what_needs_a_missing_data_set_waits_for_it_or_goes_elsewhere(sqlite_room, monkeypatch):
    room = sqlite_room
    images = SimpleNamespace(spec=SimpleNamespace(datasets=["photos"]))
    monkeypatch.setattr(workers, "load_labs", lambda: {"slow": images})
    lacking = msgspec.structs.replace(
        runner("cpu0", name="lacking", seen=room.clock() + 10), missing=["photos"]
    )
    with room.cohort.database.writing() as connection:
        report_status(connection, lacking)
    token = room.join()[1]
    assert room.submit(token).wait_s is None
    accepted = room.submit(token, lab="wrong")
    assert (accepted.ahead, accepted.wait_s) == (0, 0.0), "the one that must wait holds up nobody"
    other = accepted.receipt.submission
    devices, judge = {"cpu"}, verdict_reader_of(room.cohort.public_key)
    with room.cohort.database.writing() as connection:
        lease = leases.claim(connection, "lacking", devices, lambda _one: "cpu0", room.clock())
        assert lease.submission == other
        (status,) = load_runners(connection)
        assert status.slots == [Slot("cpu0", other)], "busy by the lease, not by the last report"
        assert leases.peek(connection, "lacking", devices) is None
        view = load_room(connection, judge, room.clock())
        (sentence,) = view.stranded
        assert view.runners[0].missing == ["photos"]
        choose_labs(connection, ["wrong"], room.clock())
        assert load_room(connection, judge, room.clock()).runners[0].missing == []
        assert "No runner has the data set photos, so submissions to slow wait" in sentence
        assert leases.peek(connection, "another", devices).lab == "slow"


def test_whoever_waits_less_has_nobody_ahead_who_waits_longer():
    room = Forecast({"a": 11.0, "b": 30.0, "c": 3.0, "d": None}, paused=False)
    assert [room.ahead_of(each) for each in "abcd"] == [0, 1, 0, 3]


def test_what_is_being_measured_is_ahead_of_whoever_waits_for_it(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        report_status(connection, runner("cpu0", seen=room.clock() + 10))
    token = room.join()[1]
    assert (room.submit(token).ahead, room.submit(token).ahead) == (0, 1)
    with room.cohort.database.writing() as connection:
        leases.claim(connection, "r", {"cpu"}, lambda _one: "cpu0", room.clock())
    accepted = room.submit(room.join("Bob")[1])
    assert accepted.ahead == 1, "the one being measured; Ada's second comes later"
    assert accepted.wait_s > 0, "the slot is busy"


def test_an_estimate_says_that_measuring_is_paused(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        report_status(connection, runner("cpu0", seen=room.clock() + 10))
        change_settings(connection, paused=True)
    accepted = room.submit(room.join()[1])
    assert (accepted.paused, accepted.wait_s) == (True, 0.0)
    with room.cohort.database.writing() as connection:
        change_settings(connection, paused=False)
        assert load_forecast(connection, room.clock()).paused is False


def test_a_second_runner_that_cannot_help_is_told_so_and_stopped_ones_leave(sqlite_room):
    with sqlite_room.cohort.database.writing() as connection:
        report_status(connection, runner("gpu0", "cpu0", name="first", seen=100.0))
        require_useful(connection, runner("gpu0", "cpu0", name="first", seen=101.0))
        require_useful(connection, runner("gpu1", "cpu0", name="other GPU", seen=101.0))
        require_useful(connection, runner("cpu0", name="elsewhere", machine="n", seen=101.0))
        with pytest.raises(MachineError, match="cannot help: first already measures"):
            require_useful(connection, runner("cpu0", name="second", seen=101.0))
        with pytest.raises(MachineError, match="on another machine"):
            require_useful(connection, runner("cpu0", name="first", machine="n", seen=101.0))
        require_useful(connection, runner("cpu0", name="second", seen=200.0))
        leave(connection, "first")
        assert load_runners(connection) == []
        report_status(connection, runner("cpu0", name="gone", seen=100.0))
        report_status(connection, runner("cpu0", name="second", seen=4000.0))
        assert [one.name for one in load_runners(connection)] == ["second"]


def test_every_runner_keeps_a_table_of_durations():
    assert typical_s(load_durations(), "slow", "cpu") == TYPICAL_S
    for seconds in (10.0, 30.0, 20.0):
        keep_duration("slow", "cpu", seconds)
    assert load_durations() == {("slow", "cpu"): [10.0, 30.0, 20.0]}
    assert typical_s(load_durations(), "slow", "cpu") == 20.0
    assert typical_s(load_durations(), "wrong", "cpu") == 20.0, "the nearest that is known"
    for _ in range(KEPT):
        keep_duration("slow", "cpu", 1.0)
    assert load_durations() == {("slow", "cpu"): [1.0] * KEPT}


def test_which_labs_need_a_quiet_machine(monkeypatch):
    monkeypatch.delenv("BOTTLENECK_LAB_CONTENT")
    load_labs.cache_clear()
    side_by_side = {
        (slug, device)
        for slug, lab in load_labs().items()
        for device in lab.spec.devices
        if not needs_quiet(slug, device)
    }
    names = ("stuttering-tagger", "busy-ensemble", "forecaster-out-of-memory", "ddp-scaling")
    assert side_by_side == {(name, "virtual") for name in (*names, "timing-pitfalls", "perf-gate")}
    assert needs_quiet("no such lab", "virtual")
