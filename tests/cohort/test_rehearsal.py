"""A workshop played beforehand: the server's own queue, limits and records on a simulated clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from statistics import mean

import msgspec
import pytest
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.grading.rules import set_rules
from bottleneck_lab.cohort.rehearsal import summary
from bottleneck_lab.cohort.rehearsal.learners import (
    Block,
    Script,
    Try,
    choose_device,
    lay_out,
    lay_out_before_due,
    lay_out_times,
    make_scripts,
    reverse,
)
from bottleneck_lab.cohort.rehearsal.measuring import measure_durations
from bottleneck_lab.cohort.rehearsal.play import Check, Machines, Outcomes, play
from bottleneck_lab.cohort.rehearsal.summary import (
    DAY_S,
    Plan,
    by_hour,
    quantile,
    rehearse,
    what_breaks,
)
from bottleneck_lab.cohort.running.durations import keep_duration, load_durations
from bottleneck_lab.cohort.runsheet import make_run_sheet, times_of_one_day, use_run_sheet
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


def test_a_rehearsal_says_for_whom_the_time_of_which_lab_runs_out():
    late, done = [Try(10.0, False), Try(5000.0, True)], [Try(10.0, True)]
    outcomes = play(scripts(done, late, late), Machines(), MINUTE)
    assert outcomes.unfinished == {"slow": ["learner 1", "learner 2"]}
    plan = Plan([BLOCK], 3, 2.5, Machines(), MINUTE)
    result = rehearse(plan, options=False)
    made_up = msgspec.structs.replace(result, unfinished=[outcomes.unfinished])
    (sentence,) = summary.out_of_time(plan, made_up)
    assert sentence == (
        "slow: time is over at 1:00 for 2 of 3 learners who have not passed (learner 1, learner 2)."
    )
    several = msgspec.structs.replace(result, unfinished=[{}, outcomes.unfinished])
    assert "for 1 of 3 learners" in summary.out_of_time(plan, several)[0]
    assert summary.out_of_time(plan, msgspec.structs.replace(result, unfinished=[{}])) == []


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
    room = Outcomes(checks, {}, 4000.0)
    first, second = by_hour([room])
    assert (first.submissions, first.median_s, first.longest_s, first.queue) == (3, 198, 297, 3)
    assert (second.unmeasured, second.queue) == (1, 1)
    first, second = by_hour([room, Outcomes([], {}, 60.0)])
    assert (first.submissions, first.queue, second.unmeasured) == (1.5, 3, 0.5)
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.9) == 4.0


def test_what_breaks_first_is_named():
    checks = [Check(0, "slow", "cpu", sent=60.0, began=1000.0, ended=5000.0)]
    plan = Plan([BLOCK], 1, 1.0, Machines(), {})
    room = Outcomes(checks, {}, 5000.0)
    sentences = what_breaks(plan, [room])
    assert "Who submits slow at 0:01 or later waits longer than 5 minutes" in sentences[0]
    assert (
        "All checks of slow take 67 minutes; in the 60 minutes of the lab, only 60 minutes of"
        " checks can run." in sentences[1]
    )
    assert "No check of slow has run on this machine yet" in sentences[2]
    (rare, *_) = what_breaks(plan, [room, Outcomes([], {}, 0.0), Outcomes([], {}, 0.0)])
    assert rare.startswith("In 1 of 3 rooms, who submits slow at 0:01")


def test_what_would_help_is_tried_out(monkeypatch):
    monkeypatch.setattr(summary, "DRAWN", 1)  # one room does
    plan = Plan([BLOCK], 4, 1.2, Machines(), {("slow", "cpu"): [600.0]}, budget=2)
    result = rehearse(plan)
    assert result.longest_s > 600
    assert result.options[0].what == "one more machine"
    assert result.options[0].longest_s < result.longest_s < result.slower.longest_s
    assert result.larger == [], "this room is too large already"


def test_a_small_room_is_played_often_and_larger_ones_until_they_wait(monkeypatch):
    monkeypatch.setattr(summary, "DRAWN", 4)
    monkeypatch.setattr(summary, "LARGER", 9)
    block = Block("slow", "cpu", 0.0, 900.0)
    result = rehearse(Plan([block], 2, 1.2, Machines(), {("slow", "cpu"): [60.0]}))
    assert result.rooms == 2
    assert result.verdict_s >= result.p90_s + 60
    assert [each.what for each in result.larger] == ["4 learners", "8 learners"]
    assert result.p90_s < result.larger[1].p90_s


def test_slower_checks_wait_longer_where_nothing_was_recorded(monkeypatch):
    monkeypatch.setattr(summary, "DRAWN", 1)
    busy = Block("slow", "cpu", 0.0, 300.0)
    result = rehearse(Plan([busy], 6, 1.2, Machines(), {}), options=False)
    assert 0 < result.longest_s < result.slower.longest_s


def test_the_command_plays_with_recorded_durations(monkeypatch):
    monkeypatch.setattr(summary, "DRAWN", 1)
    monkeypatch.setattr(summary, "LARGER", 1)
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


def test_a_rehearsal_has_the_breaks_of_the_workshops_times(sqlite_room, monkeypatch):
    monkeypatch.setattr(summary, "DRAWN", 2)
    monkeypatch.setattr(summary, "LARGER", 1)
    room, labs = sqlite_room, [find_lab("slow"), find_lab("wrong")]
    begins = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
    sheet = make_run_sheet("half-day", labs, begins)
    with room.cohort.database.writing() as connection:
        use_run_sheet(connection, sheet, 0.0)
        times = times_of_one_day(connection, ["slow", "wrong"])
        first, second = lay_out_times(labs, 0, times)
        set_rules(connection, "wrong", 0.0, opens=times["slow"][0])
        assert times_of_one_day(connection, ["slow", "wrong"]) == {}, "they overlap"
        use_run_sheet(connection, make_run_sheet("six-weeks", labs, begins), 0.0)
        assert times_of_one_day(connection, ["slow", "wrong"]) == {}
        use_run_sheet(connection, sheet, 0.0)
    assert (first.begins, first.ends) == (0.0, labs[0].spec.minutes * 60.0)
    opens = [sheet.labs[slug].opens for slug in ("slow", "wrong")]
    assert second.begins == (opens[1] - opens[0]).total_seconds() > first.ends
    words = ["cohort", "rehearse", "--learners", "1", "--folder", str(room.cohort.folder)]
    output = CliRunner().invoke(app, words).output
    assert "By the workshop's own times, 0:00 being 2026-11-30 09:20 UTC" in output
    assert "Played in 2 rooms of 1 learner each" in output


def test_six_weeks_are_played_as_if_all_worked_just_before_each_lab_is_due(
    sqlite_room, monkeypatch
):
    monkeypatch.setattr(summary, "DRAWN", 1)
    monkeypatch.setattr(summary, "LARGER", 1)
    room, begins = sqlite_room, datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
    labs = [find_lab("slow"), find_lab("wrong")]
    with room.cohort.database.writing() as connection:
        use_run_sheet(connection, make_run_sheet("six-weeks", labs, begins), 0.0)
    words = ["cohort", "rehearse", "--learners", "1", "--folder", str(room.cohort.folder)]
    output = " ".join(CliRunner().invoke(app, words).output.split())
    assert "in the last minutes before it is due" in output
    assert "0:00 is 2026-12-" in output
    assert "day 2" in output, "the second lab is weeks later"
    with room.cohort.database.writing() as connection:
        set_rules(connection, "wrong", 0.0, due=None)
    output = " ".join(CliRunner().invoke(app, words).output.split())
    assert "without breaks, as not every lab has a due date" in output


def test_labs_that_are_due_together_follow_one_another():
    labs = [find_lab("slow"), find_lab("wrong")]
    first, second = lay_out_before_due(labs, 0, {"slow": 1e6, "wrong": 1e6})
    assert (first.lab, first.begins, second.lab) == ("slow", 0.0, "wrong")
    assert first.ends == second.begins == labs[0].spec.minutes * 60
    early, late = lay_out_before_due(labs, 0, {"slow": 1e6, "wrong": 1e6 - DAY_S})
    assert (early.lab, late.lab, late.ends - early.ends) == ("wrong", "slow", DAY_S)


@pytest.mark.parametrize(
    ("begins", "ends", "shown"),
    [
        (300, 3600, "0:05–1:00"),
        (DAY_S - 1800, DAY_S + 1800, "23:30–day 2, 0:30"),
        (14 * DAY_S, 14 * DAY_S + 2700, "day 15, 0:00–0:45"),
    ],
)
def test_moments_after_the_first_day_name_the_day(begins, ends, shown):
    assert summary.span(begins, ends) == shown


def test_real_checks_are_measured_and_kept():
    measure_durations([BLOCK], lambda _what, _share: None, COMMAND)
    ((pair, seconds),) = load_durations().items()
    assert pair == ("slow", "cpu")
    assert len(seconds) == 2
    assert all(second > 0 for second in seconds)
