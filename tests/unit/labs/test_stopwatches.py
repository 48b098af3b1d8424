"""The three stopwatches of `timing-pitfalls`: the fault that the key names is the largest one."""

from __future__ import annotations

import math
import tomllib
from types import ModuleType

import numpy as np
import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.context import load_judge
from bottleneck_lab.measure.kinds.benchmark.check import grade

from ...modules import load_file

LAB = find_lab("timing-pitfalls")
SETTINGS = {**LAB.spec.devices["virtual"].settings["judge"], "budget_s": [60.0]}
BUDGET = next(spec for spec in LAB.spec.devices["virtual"].criteria if spec.id == "budget")

WARM_UP = """\
    for _ in range(20):
        machine.use(function(make_input()))
    machine.synchronize()
"""
FIXES = {
    "notebook": {
        "preparation": [
            ("        start, end =", "        x = make_input()\n        start, end ="),
            ("        start.record()\n        machine.flush_cache()\n", "        F\n"),
            ("F\n", "machine.flush_cache()\n        start.record()\n"),
            ("function(make_input()))\n        end", "function(x))\n        end"),
        ],
        "warming up": [("    times = []\n", f"{WARM_UP}    times = []\n")],
    },
    "nightly": {
        "kind data": [
            ("        start =", "        x = make_input()\n        start ="),
            ('best = float("inf")', "times = []"),
            ("best = min(best, machine.perf_counter() - start)", "times.append(NOW - start)"),
            ("NOW", "machine.perf_counter()"),
            ("return best\n", "return sorted(times)[25]\n"),
        ],
        "launch and wait": [
            ("        start = machine.perf_counter()", "        start, end = PAIR\n        BUSY"),
            ("PAIR", "machine.event(), machine.event()"),
            ("BUSY", "machine.use(function(x))\n        start.record()"),
            (
                "        machine.synchronize()\n        best",
                "        end.record()\n        machine.synchronize()\n        best",
            ),
            ("machine.perf_counter() - start", "start.elapsed_s(end)"),
        ],
        "warming up": [("    best = float", f"{WARM_UP}    best = float")],
    },
    "paper": {
        "launches": [("    return", "    machine.synchronize()\n    return")],
        "clock": [("machine.time()", "machine.perf_counter()")],
        "kind data": [("        function(x)\n", "        function(inputs[i % 20])\n"), *[
            ("for _ in range(1000)", "for i in range(1000)"),
            ("    start =", "    inputs = [make_input() for _ in range(20)]\n    start ="),
        ]],
        "warming up": [("    start =", f"{WARM_UP}    start =")],
    },
}  # fmt: skip
"""For each benchmark, what can be wrong with it, and the edits that put just that right."""


def code_of(way: str) -> str:
    """Return the source of one of the three benchmarks, as shipped."""
    text = (LAB.path / LAB.spec.entry).read_text()
    return text[text.index(f"def {way}(") :].split("\n\n\n")[0] + "\n"


def error_of(way: str, code: str, *, alone: bool = False) -> float:
    """Return the factor that a benchmark is off by, over the practice functions. `alone`:
    nobody else uses the device.
    """
    judge, module = load_judge(LAB), ModuleType(way)
    harness = load_file(LAB.path / "machine.py", "harness of timing-pitfalls")
    exec(code, module.__dict__)
    off = []
    for trial in judge.practice(SETTINGS):
        if trial.benchmark == way:
            if alone:
                trial.device._until_stall_s = math.inf
            (figure,) = harness.run(module, lambda *v, t=trial: t.serve(list(v)), way)
            off.append(abs(math.log(figure / trial.cost_s)))
    return math.exp(sum(off) / len(off))


@pytest.mark.parametrize("way", FIXES)
def test_the_fault_that_the_key_names_is_the_largest(way):
    key = tomllib.loads((LAB.solution / "diagnosis.toml").read_text())[way]
    left = {"company": error_of(way, code_of(way), alone=True)}
    for fault, edits in FIXES[way].items():
        code = code_of(way)
        for old, new in edits:
            assert old in code, f"{fault}: {old}"
            code = code.replace(old, new)
        left[fault] = error_of(way, code)
    best, second = sorted(left, key=left.__getitem__)[:2]
    assert key.startswith(f"{best}:"), left
    assert left[best] < 0.7 * left[second], left
    assert math.log(left[best]) < 0.5 * math.log(error_of(way, code_of(way))), left


def test_what_the_texts_say_of_the_notebooks_errors():
    """About as many microseconds for each steady function, and the shortest is off most as a
    share, which others on the device would not bring about.
    """
    judge, module = load_judge(LAB), ModuleType("notebook")
    harness = load_file(LAB.path / "machine.py", "harness of timing-pitfalls")
    exec(code_of("notebook"), module.__dict__)
    off, shares = {}, {}
    for trial in judge.practice(SETTINGS):
        if trial.benchmark == "notebook":
            (figure,) = harness.run(module, lambda *v, t=trial: t.serve(list(v)), "notebook")
            off[trial.name] = figure - trial.cost_s
            shares[trial.name] = off[trial.name] / trial.cost_s
    varying = [off.pop("ragged"), off.pop("uneven")]
    assert max(off.values()) < 1.1 * min(off.values())
    assert min(varying) > 1.5 * max(off.values())
    assert shares["short"] > 10 * shares["long"]
    first, rule = LAB.spec.hints[0].text, LAB.spec.questions[0].rules
    company = next(text for choice, text in rule.items() if choice.startswith("company"))
    assert "`ragged` and `uneven` out" in first
    assert "`ragged` and `uneven` out" in company


SOLUTION = (LAB.solution / LAB.spec.entry).read_text()
MAKE, FLUSH = "inputs = [make_input() for _ in range(GROUP)]", "        machine.flush_cache()\n"
TRAPS = {
    "one input and no flush": [(MAKE, "inputs = [make_input()] * GROUP"), (FLUSH, "")],
    "twenty inputs and no flush": [(FLUSH, "")],
    "zeros": [(MAKE, "inputs = [make_input(fill=0.0) for _ in range(GROUP)]")],
    "no warm-up": [("    warm_up(function, inputs, machine)\n", "")],
    "no use": [("machine.use(function(x))\n        end", "function(x)\n        end")],
}
"""Edits of the solution after which it falls for a trap that a check has."""


def practised(code):
    """Return the practice trials of a `benchmark`, answered."""
    judge, module = load_judge(LAB), ModuleType("solution")
    harness = load_file(LAB.path / "machine.py", "harness of timing-pitfalls")
    exec(code, module.__dict__)
    done = []
    for trial in judge.practice(LAB.spec.devices["virtual"].settings["judge"]):
        if trial.benchmark == "benchmark":
            trial.finish(
                list(harness.run(module, lambda *v, t=trial: t.serve(list(v)), "benchmark"))
            )
            done.append(trial)
    return done


def intervals_that_hold(code):
    return sum(not trial.missed_by(SETTINGS["nearly"]) for trial in practised(code))


def test_too_few_calls_for_the_time_show_on_a_practice_function():
    judge = load_judge(LAB)
    few = "WARM_UP_S = 20, 40, 0.03"
    assert few not in SOLUTION
    done = practised(SOLUTION.replace("WARM_UP_S = 20, 400, 0.03", few))
    widest = max(done, key=lambda trial: trial.relative_width)
    assert widest.name == "uneven"
    assert widest.relative_width > SETTINGS["wide"]
    assert judge.practice_summary(practised(SOLUTION), SETTINGS).endswith(" 1.2x an honest one's.")


def test_a_check_with_only_wide_intervals_leads_to_the_hint_on_the_number_of_calls():
    left = [hint.text for hint in LAB.spec.hints if not {"cost", "coverage"}.issuperset(hint.until)]
    assert [text for text in left if "calls as there is time for" in text] == left[-1:]
    assert all("notebook" in hint.until for hint in LAB.spec.hints if hint.text in left[:-1])


def test_a_run_counts_intervals_without_width_as_a_check_does():
    judge = load_judge(LAB)
    done = practised(SOLUTION)
    for trial in done:
        trial.answer = (trial.cost_s,) * 2 + (trial.cost_s * (1 + 1e-15),)
    assert "; 0 of 5 intervals contain" in judge.practice_summary(done, SETTINGS)
    assert judge.practice_line(done[1]).endswith(" 0x")


@pytest.mark.parametrize("trap", TRAPS)
def test_each_trap_of_a_check_shows_on_the_practice_functions(trap):
    code = SOLUTION
    for old, new in TRAPS[trap]:
        assert old in code
        code = code.replace(old, new)
    assert intervals_that_hold(SOLUTION) == 5
    assert intervals_that_hold(code) < 5


def test_an_events_time_prints_as_a_number():
    harness = load_file(LAB.path / "machine.py", "harness of timing-pitfalls")
    trial = load_judge(LAB).profiled(SETTINGS)
    machine = harness.Machine(lambda *values: trial.serve(list(values)))
    start, end = machine.event(), machine.event()
    start.record()
    end.record()
    machine.synchronize()
    assert type(start.elapsed_s(end)) is float


@pytest.mark.parametrize(
    ("figures", "flaw"),
    [
        ((4e-4,), "returned 1 figure where three are wanted"),
        ((4e-4, 4e-4 + 1e-19, 4e-4), "a lower end that is 1.08e-19 s above its estimate"),
        ((4e-4, 3e-4, 2e-4), "an upper end that is 0.0002 s below its estimate"),
        ((-4e-4, -5e-4, 0.0), "the estimate -0.0004, where a time is above 0"),
        ((math.nan, 1.0, 2.0), "nan, 1 and 2, which are not all numbers"),
    ],
)
def test_an_answer_that_is_no_interval_says_why_and_counts_as_a_miss(figures, flaw):
    judge = load_judge(LAB)
    done = [trial for trial in judge.practice(SETTINGS) if trial.benchmark == "benchmark"]
    for trial in done:
        trial.device.runs = 2000
        trial.answer = (trial.cost_s, 0.99 * trial.cost_s, 1.01 * trial.cost_s)
    done[1].answer = figures
    summary = judge.practice_summary(done, SETTINGS)
    assert "; 4 of 5 intervals contain the true cost; " in summary
    assert flaw in summary
    (problem, *_) = judge.judge(done, SETTINGS)["cost"]
    assert flaw in problem


def test_an_interval_that_its_calls_cannot_show_contains_nothing():
    """Steady functions forgive it: their estimates are closer than a check asks for."""
    judge = load_judge(LAB)
    done = [trial for trial in judge.practice(SETTINGS) if trial.benchmark == "benchmark"]
    for trial in done:
        trial.noisy, trial.device.runs, trial.device.calls = False, 2000, 2000
        trial.answer = (trial.cost_s,) * 3
    problem, _, share = judge.judge(done, SETTINGS)["coverage"]
    assert share == 0
    assert "40.0 to 40.0 µs for a function that costs 40.0 µs, narrower than 2,000 calls" in problem
    # Of functions whose calls differ by less than a tick, some are empty and right.
    for trial in done[2:]:
        half_s = 0.2 * trial.honest_s * (trial.honest_calls / 2000) ** 0.5
        trial.answer = (trial.cost_s, trial.cost_s - half_s, trial.cost_s + half_s)
    assert judge.judge(done, SETTINGS)["coverage"][0] is None


@pytest.mark.parametrize("noisy", [False, True])
def test_intervals_have_to_contain_the_cost_for_either_kind_of_function(noisy):
    judge = load_judge(LAB)
    settings = {**SETTINGS, "budget_s": [1.0, 2.0], "quiet": 6, "noisy": 12}
    done = []
    for trial in judge.trials(np.random.default_rng(1), settings):
        trial.device.runs, middle = 40, 1.2 if trial.noisy is noisy else 1.0
        trial.answer = tuple(share * trial.cost_s for share in (middle, middle - 0.1, middle + 0.1))
        done.append(trial)
    problem, _, share = judge.judge(done, settings)["coverage"]
    assert share == 0
    assert f"for {'varying' if noisy else 'steady'} functions do not" in problem


@pytest.mark.parametrize(
    ("used", "words"),
    [
        (0.94, None),
        (0.96, "96% (little is left: another check may run out of time)"),
        (0.9999, "99.99% (little is left: another check may run out of time)"),
        (1.01, None),
    ],
)
def test_a_benchmark_that_leaves_hardly_any_time_is_told_that_another_check_may_fail(used, words):
    judge = load_judge(LAB)
    trial = next(judge.practice(SETTINGS))
    trial.answer = (trial.cost_s, 0.99 * trial.cost_s, 1.01 * trial.cost_s)
    trial.device.runs, trial.device.host_s = 40, used * trial.device.budget_s
    judged = judge.judge([trial], SETTINGS)["budget"]
    result = grade(BUDGET, judged)
    assert result.value == pytest.approx(used)
    assert (result.counted or None) == words
    if words:
        assert result.sentence.endswith(f"yes. {words}.")
