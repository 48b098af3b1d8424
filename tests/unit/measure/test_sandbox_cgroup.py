"""Taking charge of a delegated control group, told from folders that stand for it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from bottleneck_lab.measure.sandbox import cgroup


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The group of this process."""
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroup, "own_group", lambda: tmp_path)
    return tmp_path


def test_what_is_in_a_delegated_group_moves_below_it(own, monkeypatch):
    cgroup.take_charge()
    below = own / "bottleneck-lab"
    assert (below / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    monkeypatch.setattr(cgroup, "own_group", lambda: below)
    cgroup.take_charge()
    assert not (below / "bottleneck-lab").exists()


def test_a_group_with_somebody_elses_programs_is_left_alone(own):
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n4194304\n")
    cgroup.take_charge()
    assert sorted(path.name for path in own.iterdir()) == ["cgroup.procs", "cgroup.subtree_control"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (["memory.max", "memory.swap.max", "pids.max"], ""),
        (["pids.max"], "have no memory.max"),
        ([], "have no memory.max and no pids.max"),
        (None, "may not create control groups"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_no_group_limits_is_said(monkeypatch, limits, said):
    group = None if limits is None else SimpleNamespace(limits=limits, remove=lambda: None)
    monkeypatch.setattr(cgroup.Cgroup, "create", lambda *_: group)
    assert said in cgroup.limits_problem()
    assert bool(said) == bool(cgroup.limits_problem())


def test_without_cgroup_v2_it_is_said(monkeypatch):
    monkeypatch.setattr(cgroup, "own_group", lambda: None)
    assert cgroup.limits_problem() == "cgroup v2 is not mounted"


def test_charge_is_taken_for_a_moment_and_given_back(own, monkeypatch):
    with cgroup.in_charge():
        assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
        monkeypatch.setattr(cgroup, "own_group", lambda: own / "bottleneck-lab")
        (own / "cgroup.procs").write_text("")
    assert (own / "cgroup.subtree_control").read_text() == "-memory -pids"
    assert (own / "cgroup.procs").read_text() == str(os.getpid())
