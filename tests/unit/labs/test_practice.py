"""The sentences of `lab run` and of verdicts on gates and stopwatches, without a process."""

from __future__ import annotations

from types import SimpleNamespace

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.context import load_judge

GATE, STOPWATCH = find_lab("perf-gate"), find_lab("timing-pitfalls")


def settings_of(lab):
    return lab.spec.devices["virtual"].settings["judge"]


def history(runs, names):
    """Play the practice history with a gate that makes `runs` runs of each benchmark and always
    answers `names`. Returns what is true of each commit.
    """
    judge, true = load_judge(GATE), []
    for trial in judge.practice(settings_of(GATE)):
        now = trial.history.seconds[trial.commit]
        changes = {name: round(now[name] / was, 9) for name, was in trial.before.items()}
        for name in judge.emulator().BENCHMARKS:
            for _ in range(runs):
                trial.serve(["run", trial.commit, name])
        trial.finish(["kept", *names])
        true.append((trial.slower, changes, trial.job._machine, trial.job._noise))
    return true


def test_every_gate_meets_the_same_history():
    assert history(1, []) == history(9, ["scan"])


def job(answer=(), slower=(), used_s=27.0, name="a job", *, late=False):
    answer, slower = set(answer), set(slower)
    return SimpleNamespace(
        name=name,
        answered=not late,
        answer=answer,
        slower=slower,
        missed=slower - answer,
        alarm=bool(answer - slower),
        late=late,
        problem="",
        before={"sort": 1.0},
        commit="c",
        history=SimpleNamespace(seconds={"c": {"sort": 1.18}}),
        job=SimpleNamespace(used_s=used_s, budget_s=900.0, disturbed=""),
    )


def gate_verdict(done):
    return load_judge(GATE).judge(done, settings_of(GATE))


def test_a_gates_line_names_what_was_caught_and_what_was_missed():
    line = load_judge(GATE).practice_line(job(["scan", "write"], ["parse", "write"]))
    assert line.split()[3:] == (
        [
            "write",
            "parse,",
            "write",
            "caught",
            "write,",
            "MISSED",
            "parse,",
            "false",
            "alarm",
            "27",
            "s",
        ]
    )


def test_a_run_of_a_gate_is_summed_up():
    done = [job(), job(["sort"], ["sort"]), job(["scan"]), job([], ["sort"], 31.4)]
    assert load_judge(GATE).practice_summary(done, settings_of(GATE)) == (
        "1 of 3 jobs after the first raised a false alarm; 1 of 2 regressions were caught. The"
        " longest job took 31.4 s."
    )


def test_what_a_gate_passes_with_has_its_count_and_what_passes():
    done = [job(["scan"] * (number < 13)) for number in range(1130)]
    done += [job(["sort"], ["sort"])] * 22
    judged = gate_verdict(done)
    assert judged["false-alarms"][0] is None
    assert judged["false-alarms"][2].words == ("13 of 1,152 jobs (1.13%); wanted at most 16")
    assert judged["caught"][2].words == "22 of 22 (100%)"


def test_alarms_that_name_all_six_are_counted():
    six = load_judge(GATE).emulator().BENCHMARKS
    problem = gate_verdict([job(six if number < 9 else ()) for number in range(144)])
    assert problem["false-alarms"][0].endswith(
        "In 9 of them it named all six benchmarks: what do the six have in common?"
    )


def test_a_check_that_ended_early_says_up_to_where_it_counted():
    judged = gate_verdict([job([], ["sort"]), job(used_s=903.0, late=True)])
    assert judged["caught"][0].endswith(
        "Counted up to job 2, with which the check ended: one used up its time."
    )
    assert set(judged) == {"caught", "budget"}

    def trial(number, *, late=False):
        return SimpleNamespace(
            name=f"function {number} of 550",
            answer=() if late else (2.0, 1.9, 2.1),
            cost_s=1.0,
            error=1.0,
            noisy=False,
            late=late,
            share_used=1.1,
            device=SimpleNamespace(used_s=1.3, budget_s=1.2, disturbed="", calls=40),
            missed_by=lambda nearly: 0.0,
            is_narrow=False,
            relative_width=1.0,
        )

    judge = load_judge(STOPWATCH)
    judged = judge.judge([trial(1), trial(2), trial(3, late=True)], settings_of(STOPWATCH))
    assert judged["cost"][0].startswith("2 of 2 are further off.")
    assert judged["cost"][0].endswith(
        "Counted up to function 3 of 550, with which the check ended."
    )
    assert set(judged) == {"cost", "budget"}
    missed = trial(1)
    missed.missed_by = lambda nearly: 1.0
    of_few = judge.judge([missed, trial(2, late=True)], settings_of(STOPWATCH))
    assert "coverage" not in of_few
    of_many = judge.judge([missed] * 300 + [trial(301, late=True)], settings_of(STOPWATCH))
    assert "300 of 300 for steady functions do not" in of_many["coverage"][0]


def test_the_brief_has_the_limits_of_the_check():
    text = (GATE.path / "README.md").read_text()
    (_, *first), *_, (jobs, most, fail) = settings_of(GATE)["looks"]
    assert first == [0, 7]
    assert "With no false alarm the gate passes, with 7 it fails" in text
    assert f"up to {jobs:,} jobs, of which {most} may be false alarms" in text
    assert fail == most + 1
    looks = {tuple(*GATE.spec.devices[name].settings["judge"]["looks"]) for name in ("cpu", "cuda")}
    assert looks == {(144, 1, 6)}
    assert "after 144 jobs: 1 false alarm passes, 6 fail" in text


def test_the_brief_of_the_stopwatches_has_the_limits_of_the_check():
    text = (STOPWATCH.path / "README.md").read_text()
    virtual, cpu, cuda = (
        STOPWATCH.spec.devices[device].settings["judge"] for device in ("virtual", "cpu", "cuda")
    )
    assert cpu == cuda
    for begin, end in (
        ("steady and varying functions", "{quiet} and {noisy}"),
        ("error at most", "{within:.0%}"),
        ("true cost, at least", "{contain:.0%}"),
        ("interval's, at most", "{wide}x"),
        ("for each function", "{budget_s[0]:g} to {budget_s[1]:g} s"),
    ):
        assert f"{begin} | {end.format(**virtual)} | {end.format(**cpu)} |\n" in text


def stopwatch_trial(cost_s=1e-3, *, missed=0.0, noisy=False, **others):
    trial = SimpleNamespace(
        name="short",
        benchmark="benchmark",
        answer=(1.2 * cost_s, 1.1 * cost_s, 1.3 * cost_s),
        cost_s=cost_s,
        noisy=noisy,
        late=False,
        missed_by=lambda nearly: missed,
        is_narrow=False,
        error=0.2,
        relative_width=1.5,
        honest_s=1e-4,
        honest_calls=100,
        device=SimpleNamespace(calls=60, used_s=1.0, budget_s=2.0),
    )
    vars(trial).update(others)
    return trial


def test_a_run_of_stopwatches_is_summed_up():
    done = [
        stopwatch_trial(missed=0.5, benchmark="paper", error=0.9),
        stopwatch_trial(error=0.01),
        stopwatch_trial(missed=0.1),
        stopwatch_trial(noisy=True, relative_width=1.7),
    ]
    assert load_judge(STOPWATCH).practice_summary(done, settings_of(STOPWATCH)) == (
        "benchmark: 1 of 2 estimates of steady functions are within 5%; 2 of 3 intervals contain"
        " the true cost; the widest is 1.7x an honest one's."
    )


def test_a_function_has_a_row_with_every_stopwatch():
    judge = load_judge(STOPWATCH)
    paper = stopwatch_trial(benchmark="paper", answer=(4e-6,))
    gone = stopwatch_trial(benchmark="nightly", answer=())
    own = stopwatch_trial(name="long")
    own.row = [gone, paper, own]
    assert judge.practice_line(paper) == ""
    line = judge.practice_line(own)
    assert line.split() == (
        ["long", "1,000.0", "-", "4.0", "1,200.0", "1,100.0", "to", "1,300.0", "1.5x"]
    )
    own.name = "short"
    assert judge.practice_line(own).startswith(f"{judge.HEADING}\nshort ")


def test_intervals_that_miss_are_described_by_what_they_may_share():
    noisy = [
        stopwatch_trial(2e-3, is_narrow=True),
        stopwatch_trial(1e-2, is_narrow=True),
        stopwatch_trial(8e-3, missed=0.2),
    ]
    problem, count, share = load_judge(STOPWATCH)._missed([], noisy, settings_of(STOPWATCH))
    assert (count, share.words) == (3, "0 of 3 (0%)")
    assert problem == (
        "3 of 3 for varying functions do not. The furthest: 8,800.0 to 10,400.0 µs for a function"
        " that costs 8,000.0 µs, after 60 calls; 2,200.0 to 2,600.0 µs for a function that costs"
        " 2,000.0 µs, narrower than 60 calls can show; 11,000.0 to 13,000.0 µs for a function that"
        " costs 10,000.0 µs, narrower than 60 calls can show."
    )


def test_the_group_with_the_widest_intervals_decides_without_its_widest():
    judge = load_judge(STOPWATCH)
    noisy = [stopwatch_trial(honest_calls=calls) for calls in range(100, 106)]
    noisy += [
        stopwatch_trial(2e-3, honest_calls=500, relative_width=width) for width in (2.0, 2.2, 9.0)
    ]
    problem, count, width = judge._too_wide([], noisy, settings_of(STOPWATCH))
    assert (count, round(width, 9)) == (9, 2.1)
    assert problem == (
        "Those for varying functions with time for many calls are 2.1x as wide. The widest:"
        " 2,200.0 to 2,600.0 µs, where an honest interval is 100.0 µs wide."
    )


def test_a_trial_that_ran_out_of_time_has_a_line_of_its_own():
    late = SimpleNamespace(
        name="ragged",
        benchmark="benchmark",
        late=True,
        answer=(),
        device=SimpleNamespace(used_s=2.0141, budget_s=2.0),
    )
    line = load_judge(STOPWATCH).practice_line(late)
    assert line == "ragged  benchmark used the machine for 2.01 s, and had 2 s"
    line = load_judge(GATE).practice_line(job(used_s=903.0, name="commit 7", late=True))
    assert line == "commit 7   the gate used the machine for 903 s, and had 900 s"


def test_a_capture_names_the_function_and_who_times_it():
    judge = load_judge(STOPWATCH)
    trial = judge.profiled(settings_of(STOPWATCH))
    trial.device.rows = [("function", 0.0, 1.0), ("host call", 0.0, 0.1)]
    assert judge.rows(trial) == [
        ("function 'short', timed by benchmark()", False, 0.0, 1.0),
        ("call", True, 0.0, 0.1),
    ]
