"""The keeper of the runner beside a server: it restarts what dies, and gives up what refuses."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from bottleneck_lab.cohort.moments import local_iso, spoken
from bottleneck_lab.cohort.server import serve
from bottleneck_lab.cohort.server.serve import MOST_REFUSALS, Keeper

from ..processes import soon


@pytest.fixture
def signals(monkeypatch):
    """The signals that the keeper sends to its own process, kept from arriving."""
    sent: list[int] = []
    monkeypatch.setattr(serve.os, "kill", lambda _pid, number: sent.append(number))
    return sent


def ending_with(status: str, log) -> list[str]:
    """A program that notes that it ran, and ends."""
    script = f"open({str(log)!r}, 'a').write('x'); raise SystemExit({status})"
    return [sys.executable, "-S", "-c", script]


@pytest.mark.parametrize("status", [2, 4])
def test_a_runner_that_refuses_is_given_up_and_the_server_asked_to_stop(status, tmp_path, signals):
    log = tmp_path / "log"
    with Keeper(ending_with(str(status), log), pause_s=0.01) as keeper:
        assert soon(lambda: keeper.refused is not None)
    assert keeper.refused == status
    assert log.read_text() == "x" * MOST_REFUSALS
    assert soon(lambda: signals == [signal.SIGTERM])


def test_a_runner_that_crashes_is_started_again(tmp_path, signals):
    log = tmp_path / "log"
    with Keeper(ending_with("1", log), pause_s=0.001) as keeper:
        assert soon(lambda: log.exists() and len(log.read_text()) > MOST_REFUSALS)
    assert keeper.refused is None
    assert signal.SIGTERM not in signals[:-1]


def test_a_runner_that_has_worked_is_not_given_up(tmp_path, signals, monkeypatch):
    monkeypatch.setattr(serve, "WORKED_S", 0.0)
    log = tmp_path / "log"
    with Keeper(ending_with("4", log), pause_s=0.001) as keeper:
        assert soon(lambda: log.exists() and len(log.read_text()) > MOST_REFUSALS)
    assert keeper.refused is None


def test_moments_are_told_in_the_zone_of_whoever_reads_them(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert local_iso("2026-11-30T09:00:00Z") == "2026-11-30 18:00 JST"
        assert local_iso("2026-11-30T09:00:00Z", "Europe/Berlin") == "2026-11-30 10:00 CET"
        assert local_iso("2026-11-30T09:00:00Z", "Unknown/Zone") == "2026-11-30 18:00 JST"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert spoken(1_800_000_000.0, "Europe/Zurich") == "2027-01-15 09:00 CET"
