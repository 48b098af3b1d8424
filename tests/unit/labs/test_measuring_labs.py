"""`timing-pitfalls` and `perf-gate`, in this process: harness, learner's code and emulator, no
worker and no clock but the emulated one.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant
from bottleneck_lab.measure.lab_rules.variants import variants
from bottleneck_lab.workspace.diagnosis_file import load_answers

from ...modules import load_file
from .trials import failed, judge_answers

LABS = ["timing-pitfalls", "perf-gate"]
ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.long
FASTER = {
    "timing-pitfalls": {"quiet": 20, "noisy": 200, "contain": 0.9},
    "perf-gate": {"looks": [[72, 1, 4], [144, 4, 5]]},
}
"""Fewer trials than a check has, where they are enough to tell these apart."""


def judge_of(slug: str):
    return load_file(find_lab(slug).path / "judge.py", f"judge of {slug}")


def settings_of(slug: str) -> dict:
    return find_lab(slug).spec.devices["virtual"].settings["judge"] | FASTER[slug]


def check(slug: str, folder: Path, seed: int = 1) -> dict:
    """What the judge says of an entry file: problem, number of trials and figure, for each
    criterion that was reached.
    """
    lab = find_lab(slug)
    device = lab.spec.devices["virtual"].settings
    harness = load_file(lab.path / device["harness"], f"harness of {slug}")
    load = partial(load_file, folder / lab.spec.entry, f"entry of {slug}")
    if not device.get("own_process"):
        load = cache(load)
    return judge_answers(judge_of(slug), harness, load, settings_of(slug), seed)


def right():
    return [
        (slug, folder)
        for slug in LABS
        for folder in (find_lab(slug).solution, *variants(find_lab(slug)))
    ]


@pytest.mark.parametrize(
    ("slug", "folder"), right(), ids=[f"{slug}-{folder.name}" for slug, folder in right()]
)
def test_right_answers_pass(slug, folder):
    found = check(slug, folder)
    assert not failed(found), found
    assert set(found) == {
        criterion.id for criterion in find_lab(slug).spec.devices["virtual"].criteria
    }


@pytest.mark.parametrize("slug", LABS)
def test_the_starter_gives_wrong_answers(slug):
    kinds = {
        criterion.id: criterion.kind
        for criterion in find_lab(slug).spec.devices["virtual"].criteria
    }
    assert "correctness" in {kinds[id_] for id_ in failed(check(slug, find_lab(slug).path))}


def test_the_answers_are_what_practice_prints():
    """The keys of `perf-gate`, counted as a learner counts them."""
    lab, judge = find_lab("perf-gate"), judge_of("perf-gate")
    harness = load_file(
        lab.path / lab.spec.devices["virtual"].settings["harness"], "harness of perf-gate"
    )
    gate, lines = load_file(lab.path / lab.spec.entry, "entry of perf-gate"), []
    for trial in judge.practice(lab.spec.devices["virtual"].settings["judge"]):
        trial.finish(
            list(harness.run(gate, lambda *v, t=trial: t.serve(list(v)), *trial.arguments))
        )
        lines.append(judge.practice_line(trial))
    assert lines[0].startswith(f"{judge.HEADING}\n")
    lines[0] = lines[0].split("\n")[1]
    alarms = [line for line in lines if line[10:12] != "- "]
    real = [line for line in alarms if line[44:46] != "- "]
    together = [line for line in alarms if line[10:].startswith("all six")]
    key = load_answers(lab.solution)
    assert key["real_share"] == pytest.approx(len(real) / len(alarms), abs=0.005)
    assert key["together_share"] == pytest.approx(len(together) / len(alarms), abs=0.005)
    assert all(line in together or key["always"] in line[10:44] for line in alarms)
    # The brief's and the write-up's story.
    (missed,) = (line for line in lines if "MISSED" in line)
    assert missed.startswith("commit 7 ")
    assert missed[10:].split() == ["-", "sort", "MISSED", "sort", "28", "s"]


@cache
def failed_by_mutant(slug: str, id_: str) -> set[str]:
    """The criteria that a mutant fails; it is judged once, whichever test asks first."""
    lab = find_lab(slug)
    (mutant,) = (mutant for mutant in load_mutants(lab) if mutant.id == id_)
    with TemporaryDirectory() as folder:
        write_mutant(lab, mutant, Path(folder))
        return failed(check(slug, Path(folder)))


def wrong():
    return [(slug, mutant) for slug in LABS for mutant in load_mutants(find_lab(slug))]


@pytest.mark.parametrize(
    ("slug", "mutant"), wrong(), ids=[f"{slug}-{mutant.id}" for slug, mutant in wrong()]
)
def test_a_wrong_answer_fails_its_own_criterion(slug, mutant):
    assert mutant.criterion in failed_by_mutant(slug, mutant.id)


@pytest.mark.parametrize("slug", LABS)
def test_every_criterion_is_failed_alone_by_some_mutant(slug):
    alone = {
        "timing-pitfalls": [
            "zeros",
            "three-times-in-four",
            "two-percent-by-decree",
            "middle-fifth-of-the-calls",
            "out-of-time",
        ]
    }
    alone["perf-gate"] = ["in-memory-baseline", "looser-threshold", "whole-suite", "out-of-time"]
    found = set()
    for id_ in alone[slug]:
        # Estimates that are all wrong cannot have intervals that are right.
        implied = {"coverage", "width"} if id_ == "zeros" else set()
        found.add(frozenset(failed_by_mutant(slug, id_) - implied))
    assert found == {frozenset({c.id}) for c in find_lab(slug).spec.devices["virtual"].criteria}


def test_a_gate_that_stops_everything_is_judged_too(tmp_path):
    (tmp_path / "gate.py").write_text(
        "def gate(runner, commit, file):\n    file.write_text(commit)\n    return"
        " runner.benchmarks\n"
    )
    assert failed(check("perf-gate", tmp_path)) == {"false-alarms"}


def test_an_error_just_beyond_the_limit_reads_so():
    judge = judge_of("timing-pitfalls")
    function = SimpleNamespace(cost_s=1e-3)
    trial = judge.Trial("one", function, None, answer=(1.0502e-3, 1e-3, 1.1e-3))
    problem, _, _ = judge._wrong_costs([trial], settings_of("timing-pitfalls"))
    assert "5.02% too high" in problem


def test_briefs_promise_what_the_limits_keep():
    curves = load_file(ROOT / "benchmarks" / "operating_curves.py", "operating curves")
    looks = find_lab("perf-gate").spec.devices["virtual"].settings["judge"]["looks"]
    odds = {rate: curves.gate_odds(looks, rate) for rate in (0, 0.01, 0.02, 0.03)}
    assert odds[0][0] == 1
    assert odds[0.01][0] >= 0.99
    assert odds[0.02][1] >= 0.8
    assert odds[0.03][1] >= 0.98
    judge = find_lab("timing-pitfalls").spec.devices["virtual"].settings["judge"]
    refused = {
        share: curves.interval_odds(judge["noisy"], judge["contain"], share)
        for share in (0.95, 0.94, 0.9)
    }
    assert refused[0.95] < 0.002
    assert refused[0.94] < 0.035
    assert refused[0.9] > 0.915
    for device in ("cpu", "cuda"):
        judge = find_lab("timing-pitfalls").spec.devices[device].settings["judge"]
        assert curves.interval_odds(judge["noisy"], judge["contain"], 0.95) < 0.006
        assert curves.interval_odds(judge["noisy"], judge["contain"], 0.82) > 0.4


def test_the_brief_says_how_many_regressions_a_gate_meets():
    judge, rng = judge_of("perf-gate"), np.random.default_rng(0)
    settings = find_lab("perf-gate").spec.devices["virtual"].settings["judge"]
    met = []
    for _ in range(100):
        done = []
        for trial in judge.trials(rng, settings):
            trial.finish(["kept", *trial.slower])  # a gate that errs nowhere
            done.append(trial)
        met.append(sum(bool(trial.slower) for trial in done))
    assert np.mean(met) == pytest.approx(40, abs=1)
    passes = {missed: np.mean((1 - missed) ** np.array(met)) for missed in (0.02, 0.1)}
    assert passes[0.02] == pytest.approx(0.45, abs=0.02)
    assert passes[0.1] == pytest.approx(0.02, abs=0.005)


@pytest.mark.parametrize("slug", LABS)
def test_practice_is_the_same_every_time_and_prints_a_line(slug):
    judge = judge_of(slug)
    first, second = (
        [trial.arguments for trial in judge.practice(settings_of(slug))] for _ in range(2)
    )
    assert first == second
    own = ["benchmark"] if slug == "timing-pitfalls" else []
    trial = next(t for t in judge.practice(settings_of(slug)) if t.arguments == own or not own)
    trial.finish([1e-4, 1e-4, 1e-4] if own else ["{}"])
    assert trial.name in judge.practice_line(trial)


@pytest.mark.parametrize(
    ("slug", "values"),
    [("timing-pitfalls", ["what"]), ("perf-gate", ["rm", "-rf"]), ("perf-gate", [3])],
)
def test_what_no_harness_asks_is_refused(slug, values):
    trial = next(iter(judge_of(slug).practice(settings_of(slug))))
    with pytest.raises(ValueError, match=r"expected|there is no"):
        trial.serve(values)


# ------------------------------------------------------------------------------------------ the
# emulated accelerator


@pytest.fixture
def device():
    """A machine with a function of 100 µs, 8 MB an input, and nothing else to pay for; `benchmark`
    runs on it.
    """
    emulator = judge_of("timing-pitfalls").emulator()
    function = emulator.Function(1e-4, 0.0, 4e-6, 0.0, (), 8 << 20, 0.5, 0.1, False)
    machine = load_file(
        find_lab("timing-pitfalls").path / "machine.py", "machine of timing-pitfalls"
    )
    made = emulator.Device(function, np.random.default_rng(0), 5.0)
    made._until_stall_s = made._next_step_s = 1e9
    made.awake_since_s, made.worked_until_s = -1.0, 0.0
    return made, machine.Machine(lambda commands: made.serve(commands.tolist()))


def timed(machine, *inputs):
    """Seconds of the calls on these inputs, one after another, by events."""
    marks = [machine.event() for _ in range(len(inputs) + 1)]
    machine.flush_cache()
    for mark, x in zip(marks, inputs, strict=False):
        mark.record()
        machine.function(x)
    marks[-1].record()
    machine.synchronize()
    return [round(a.elapsed_s(b), 6) for a, b in itertools.pairwise(marks)]


def test_a_launch_returns_at_once_and_synchronize_waits(device):
    _, machine = device
    x = machine.make_input()
    begin = machine.perf_counter()
    machine.function(x)
    assert machine.perf_counter() - begin < 1e-5
    machine.synchronize()
    assert machine.perf_counter() - begin > 1e-4


def test_an_input_is_cached_until_others_have_pushed_it_out(device):
    _, machine = device
    few, many = ([machine.make_input() for _ in range(n)] for n in (6, 7))
    assert timed(machine, *few, *few)[6:] == pytest.approx([5e-5] * 6, abs=1e-6)
    assert timed(machine, *many, *many)[7:] == pytest.approx([1e-4] * 7, abs=1e-6)


def test_constant_data_is_quicker(device):
    _, machine = device
    machine.function(machine.make_input())
    assert timed(machine, machine.make_input(), machine.make_input(fill=0.0)) == pytest.approx(
        [1e-4, 9e-5], abs=1e-6
    )


def test_with_an_empty_queue_the_launch_is_in_the_window(device):
    _, machine = device
    x, start, end = machine.make_input(), machine.event(), machine.event()
    start.record()
    machine.function(x)
    end.record()
    machine.synchronize()
    assert start.elapsed_s(end) == pytest.approx(1.04e-4, abs=1e-6)


def test_an_event_that_the_device_has_not_reached_cannot_be_read(device):
    _, machine = device
    start, end = machine.event(), machine.event()
    start.record()
    machine.function(machine.make_input())
    end.record()
    with pytest.raises(RuntimeError, match="synchronize first"):
        start.elapsed_s(end)


def test_a_device_runs_out_of_memory_and_of_time(device):
    made, machine = device
    kept = [machine.make_input() for _ in range(1024)]
    machine.synchronize()
    kept.append(machine.make_input())
    with pytest.raises(MemoryError):
        machine.perf_counter()
    made.host_s = 5.1
    with pytest.raises(RuntimeError, match="used up its time"):
        machine.perf_counter()


# ------------------------------------------------------------------------------------------ a real
# repository


def test_the_job_gates_a_real_repository(tmp_path):
    """The lab's own CI job around the solution: a slower commit is named, with exit status 1, and
    the repository is left as it was.
    """
    lab, repository = find_lab("perf-gate"), tmp_path / "repository"

    def git(*words):
        return subprocess.run(
            ["git", "-C", repository, *words], check=True, capture_output=True, text=True
        ).stdout

    repository.mkdir()
    git("init", "-q")
    for seconds in ("0.1", "0.1", "0.4"):
        (repository / "work.py").write_text(
            f"import time; time.sleep({seconds})  # {len(git('for-each-ref'))}\n"
        )
        git("add", "-A")
        git(
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "change",
        )
    for name in ("runner.py", "ci.py"):
        (tmp_path / name).write_bytes((lab.path / name).read_bytes())
    # As few rounds as still bear two runs of each commit that were held up, as its interval is one
    # of order statistics.
    (tmp_path / "gate.py").write_text(
        (lab.solution / "gate.py").read_text().replace("ROUNDS = 60", "ROUNDS = 14")
    )

    def gate(commit):
        command = [
            sys.executable,
            "ci.py",
            commit,
            "--repository",
            str(repository),
            "--benchmark",
            f"work={sys.executable} -S work.py",
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert gate("HEAD~2").returncode == 0
    slower = gate("HEAD")
    assert slower.returncode == 1, slower.stderr
    assert "work is slower" in slower.stdout
    assert git("worktree", "list").count("\n") == 1
