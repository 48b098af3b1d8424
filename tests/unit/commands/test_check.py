"""`lab check` beside other programs: what it says before it measures, and where it waits."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.commands import check
from bottleneck_lab.measure import quiet
from bottleneck_lab.workspace.start import start_workspace


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Function: what `lab check` notes of other programs, before it measures a lab; the machine
    has two cores, of which others keep 1.3 busy.
    """
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    remarks, waits = [], []
    monkeypatch.setattr(check, "note", remarks.append)
    monkeypatch.setattr(quiet, "busy_cores", lambda: 1.3)
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(
        check, "wait_until_quiet", lambda limit_s, _tell, **_: waits.append(limit_s)
    )

    def noted(slug, device, when_quiet=None):
        workspace, _ = start_workspace(find_lab(slug), tmp_path / slug, device)
        check._mind_others(workspace, device, when_quiet)
        return " ".join(remarks), waits

    return noted


def test_what_may_be_refused_is_said_before_it_is_measured(notes):
    remark, _ = notes("roofline", "cpu")
    assert "keep 1.3 of 2 cores busy: this check may not be able to decide" in remark
    assert "`lab check --when-quiet 10`" in remark


def test_it_waits_on_request(notes):
    remark, waits = notes("roofline", "cpu", when_quiet=2)
    assert waits == [120]
    assert "Waiting up to 2 minutes until other programs keep at most 0.25 cores busy" in remark


def test_the_line_of_a_wait_has_the_load_the_limit_and_what_is_left(monkeypatch):
    line = "waiting: other programs keep 2.0 cores busy, 0.25 would do; 5:07 left"
    for is_terminal, text in ((True, line), (False, "waiting for other programs to finish")):
        monkeypatch.setattr(check, "notes", lambda on=is_terminal: SimpleNamespace(is_terminal=on))
        assert check._waiting_for(2.0, 0.25, 307.2) == text


def test_the_bar_of_a_wait_shows_how_much_of_the_limit_has_passed(notes, monkeypatch):
    shares: list[float] = []
    clock = iter([100.0, 130.0, 160.0, 300.0])
    monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(
        check, "progress", lambda: nullcontext(lambda _, share: shares.append(share))
    )
    monkeypatch.setattr(
        check, "wait_until_quiet", lambda _, tell, **__: [tell(1.0), tell(1.0), tell(1.0)]
    )
    notes("roofline", "cpu", when_quiet=2)
    assert shares == [0.25, 0.5, 1.0]


@pytest.mark.parametrize("slug", ["stuttering-tagger", "ddp-scaling", "perf-gate"])
def test_a_modelled_lab_never_waits_nor_speaks_of_a_busy_machine(notes, slug, monkeypatch):
    monkeypatch.setattr(quiet.os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    assert notes(slug, "virtual") == ("", [])
    remark, waits = notes(slug, "virtual", when_quiet=2)
    assert "modelled" in remark
    assert waits == []
