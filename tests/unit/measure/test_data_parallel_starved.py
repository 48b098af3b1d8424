"""When a run that came to no end is the machine's fault: no worker, no load, only what is concluded
from them.
"""

import os
from types import SimpleNamespace

import pytest

from bottleneck_lab.measure.kinds.data_parallel.fabric import starvation as starved
from bottleneck_lab.measure.kinds.data_parallel.fabric.starvation import Starvation

CORES = os.cpu_count()


class Load:
    """A meter that reads one figure after the other."""

    def __init__(self, *cores):
        self.left = list(cores)

    def cores(self):
        return self.left.pop(0)

    def restart(self):
        pass


class Worker:
    """A worker whose threads wait for a core for so long in all."""

    def __init__(self, waited_s):
        self.waited_s = waited_s
        self.done = []

    def waiting(self):
        return SimpleNamespace(seconds=lambda: self.waited_s)

    def cpu_s(self):
        return 0.0

    def freeze(self):
        self.done.append("frozen")

    def thaw(self):
        self.done.append("thawed")


def starved_here(monkeypatch, others, queued, others_without_it):
    """What is concluded after 100 s in which others had so many of the cores, as a share, and the
    ranks queued for so many seconds.
    """
    clock, worker = iter([1000.0, 1100.0]), Worker(queued)
    made_up = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _s: None)
    monkeypatch.setattr(starved, "time", made_up)
    monkeypatch.setattr(
        starved, "LoadMeter", lambda _own: Load(others * CORES, others_without_it * CORES)
    )
    return Starvation(worker).happened(), worker.done


def test_ranks_that_queued_behind_other_programs_were_starved(monkeypatch):
    assert starved_here(monkeypatch, 0.95, 300, 1.0) == (True, ["frozen", "thawed"])


@pytest.mark.parametrize(
    ("others", "queued"),
    [(0.0, 0), (0.95, 5), (0.0, 600), (0.4, 600)],
    ids=["asleep", "asleep beside others", "spinning", "spinning beside others"],
)
def test_ranks_that_sleep_or_spin_were_not(monkeypatch, others, queued):
    assert starved_here(monkeypatch, others, queued, 1.0) == (False, [])


def test_load_that_stands_still_with_the_ranks_was_their_own(monkeypatch):
    assert starved_here(monkeypatch, 0.95, 300, 0.0) == (False, ["frozen", "thawed"])
