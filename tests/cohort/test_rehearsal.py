"""A workshop played beforehand: the server's own queue, limits and records on a simulated clock."""

from __future__ import annotations

import json
from statistics import mean

import pytest
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.rehearsal.learners import (
    Block,
    Script,
    Try,
    choose_device,
    lay_out,
    make_scripts,
    reverse,
)
from bottleneck_lab.cohort.rehearsal.measuring import measure_durations
from bottleneck_lab.cohort.rehearsal.play import Check, Machines, Outcomes, play
from bottleneck_lab.cohort.rehearsal.summary import Plan, by_hour, quantile, rehearse, what_breaks
from bottleneck_lab.cohort.running.durations import keep_duration, load_durations
from bottleneck_lab.cohort.workshop import choose_labs
from bottleneck_lab.commands.cohort import rehearse as command

from .fake_job import COMMAND

BLOCK = Block("slow", "cpu", 0.0, 3600.0)
MINUTE = {("slow", "cpu"): [60.0]}


def scripts(*tries: list[Try]) -> list[Script]:
    return [Script(f"learner {at}", [BLOCK], [own]) for at, own in enumerate(tries)]


def waits(outcomes: Outcomes) -> list[float]:
    return [round(check.wait_s, 3) for check in sorted(outcomes.checks, key=lambda one: one.began)]


@pytest.mark.parametrize(
    ("machines", "expected"), [(Machines(), [0, 60, 120]), (Machines(count=2), [0, 0, 60])]
)
def test_who_submits_at_once_waits_in_line(machines, expected):
    outcomes = play(scripts(*[[Try(10.0, True)]] * 3), machines, MINUTE)
    assert waits(outcomes) == expected
    assert outcomes.ended == 10.0 + expected[-1] + 60.0


def test_a_learner_goes_on_after_the_verdict_until_a_lab_passes_or_its_time_is_over():
    own = [Try(10.0, False), Try(30.0, False), Try(5000.0, True)]
    (first, second) = play(scripts(own), Machines(), MINUTE).checks
    assert (first.sent, first.ended, second.sent, second.ended) == (10, 70, 100, 160)


def test_limits_are_the_servers_own():
    own = [Try(10.0, False), Try(30.0, False), Try(30.0, True)]
    outcomes = play(scripts(own), Machines(), MINUTE, budget=1)
    assert (len(outcomes.checks), outcomes.refusals) == (1, {"budget-spent": 1})


def test_what_the_server_refuses_is_counted():
    block = Block("slow", "cuda", 0.0, 60.0)
    outcomes = play([Script("Ada", [block], [[Try(1.0, True)]])], Machines(), {})
    assert (outcomes.checks, outcomes.refusals) == ([], {"bad-request": 1})


def test_made_up_learners_are_drawn_from_a_seed():
    blocks = [BLOCK, Block("wrong", "cpu", 3600.0, 7200.0)]
    drawn = make_scripts(blocks, 200, 2.5, seed=1)
    assert drawn == make_scripts(blocks, 200, 2.5, seed=1) != make_scripts(blocks, 200, 2.5, seed=2)
    tries = [own for script in drawn for own in script.tries]
    assert mean(map(len, tries)) == pytest.approx(2.5, abs=0.3)
    assert all([one.passes for one in own] == [False] * (len(own) - 1) + [True] for own in tries)
    firsts = [own[0].think_s for own in tries]
    assert mean(firsts) == pytest.approx(1800, rel=0.15)
    assert [(block.lab, block.begins) for block in reverse(blocks)] == [
        ("wrong", 0.0),
        ("slow", 3600.0),
    ]
    halves = make_scripts(blocks, 4, 2.5, seed=1, halves=True)
    assert [script.blocks[0].lab for script in halves] == ["slow", "wrong", "slow", "wrong"]


def test_labs_take_the_minutes_that_they_declare():
    labs = [find_lab("slow"), find_lab("wrong")]
    first, second = lay_out(labs, gpus=0)
    assert (first.ends, second.begins) == (labs[0].spec.minutes * 60.0,) * 2
    assert choose_device(labs[0], gpus=2) == "cpu", "it has no other"


def test_waits_are_told_by_the_hour():
    checks = [Check(at, "slow", "cpu", sent=at, began=100.0 * at, ended=500.0) for at in (1, 2, 3)]
    checks.append(Check(4, "slow", "cpu", sent=4000.0))
    first, second = by_hour(Outcomes(checks, {}, 4000.0))
    assert (first.submissions, first.median_s, first.longest_s, first.queue) == (3, 198, 297, 3)
    assert (second.unmeasured, second.queue) == (1, 1)
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.9) == 4.0


def test_what_breaks_first_is_named():
    checks = [Check(0, "slow", "cpu", sent=60.0, began=1000.0, ended=5000.0)]
    plan = Plan([BLOCK], 1, 1.0, Machines(), {})
    sentences = what_breaks(plan, Outcomes(checks, {}, 5000.0))
    assert "Who submits slow at 0:01 waits longer than 5 minutes" in sentences[0]
    assert (
        "All checks of slow take 67 minutes; in the 60 minutes of the lab, 60 can be had"
        in sentences[1]
    )
    assert "No check of slow has run on this machine yet" in sentences[2]


def test_what_would_help_is_tried_out():
    plan = Plan([BLOCK], 4, 1.2, Machines(), {("slow", "cpu"): [600.0]}, budget=2)
    result = rehearse(plan)
    assert result.longest_s > 600
    assert result.options[0].what == "one more machine"
    assert result.options[0].longest_s < result.longest_s < result.slower.longest_s


def test_slower_checks_wait_longer_where_nothing_was_recorded():
    busy = Block("slow", "cpu", 0.0, 300.0)
    result = rehearse(Plan([busy], 6, 1.2, Machines(), {}), options=False)
    assert 0 < result.longest_s < result.slower.longest_s


def test_the_command_plays_with_recorded_durations(monkeypatch):
    keep_duration("slow", "cpu", 30.0)
    words = ["cohort", "rehearse", "--learners", "3", "--labs", "slow,wrong"]
    done = CliRunner().invoke(app, words)
    assert "30 s (assumed)" in done.output, "a lab that was never measured is marked"
    assert "if something changes" in done.output
    machine = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [block["lab"] for block in machine["blocks"]] == ["slow", "wrong"]


def test_a_rehearsal_plays_the_cohorts_labs_or_those_that_are_named(sqlite_room, monkeypatch):
    monkeypatch.setattr(command, "rehearse", lambda plan, **_: [each.lab for each in plan.blocks])
    with sqlite_room.cohort.database.writing() as connection:
        choose_labs(connection, ["wrong", "slow"], 0.0)
    words = ["cohort", "rehearse", "--json", "--folder", str(sqlite_room.cohort.folder)]

    def played(*more: str) -> list[str]:
        return json.loads(CliRunner().invoke(app, [*words, *more]).stdout)

    assert played() == ["wrong", "slow"]
    assert played("--labs", "slow, broken") == ["slow", "broken"]
    assert played("--labs", "all") == list(load_labs())


def test_real_checks_are_measured_and_kept():
    measure_durations([BLOCK], lambda _what, _share: None, COMMAND)
    ((pair, seconds),) = load_durations().items()
    assert pair == ("slow", "cpu")
    assert len(seconds) == 2
    assert all(second > 0 for second in seconds)
