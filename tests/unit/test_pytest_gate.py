"""The pytest plugin, in a repository of its own: real git, real pytest processes, and a clock that
only the function under test moves.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TEST = """
import random
import bottleneck_lab.pytest_gate as plugin
import work

class Clock:
    now = 0.0
    def perf_counter(self):
        return self.now

plugin.time = Clock()

def step():
    plugin.time.now += work.COST_S * random.lognormvariate(0, 0.01)

def test_step(perf_gate):
    perf_gate(step)
"""


@pytest.fixture
def repository(tmp_path):
    """A function that costs 10 ms in the first commit; `run(cost_s)` changes that in the working
    tree and runs its test.
    """

    def git(*words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", tmp_path, *name, *words], check=True, capture_output=True, text=True
        ).stdout

    def run(cost_s, *options, test=TEST):
        (tmp_path / "work.py").write_text(f"COST_S = {cost_s}\n")
        (tmp_path / "test_work.py").write_text(test)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "bottleneck_lab.pytest_gate",
            "-p",
            "no:cacheprovider",
        ]
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTEST")
        }
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        done = subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert git("worktree", "list").count("\n") == 1, (
            "the baseline's checkout is gone afterwards"
        )
        return done

    (tmp_path / "work.py").write_text("COST_S = 0.01\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    return run


def test_a_slower_working_tree_fails(repository):
    done = repository(0.012, "--perf-baseline", "HEAD")
    assert done.returncode == 1, done.stdout
    assert "test_work.py::test_step is slower: 1." in done.stdout


@pytest.mark.parametrize(("cost_s", "says"), [(0.01, "same: "), (0.005, "faster: 0.")])
def test_one_that_is_no_slower_passes_and_says_how_it_came_out(repository, cost_s, says):
    done = repository(cost_s, "--perf-baseline", "HEAD")
    assert done.returncode == 0, done.stdout
    assert says in done.stdout


def test_without_a_baseline_the_function_is_called_once(repository):
    done = repository(0.012)
    assert done.returncode == 0, done.stdout
    assert "performance" not in done.stdout


def test_a_revision_that_there_is_not_is_named(repository):
    done = repository(0.01, "--perf-baseline", "nonsense")
    assert done.returncode != 0
    assert "--perf-baseline nonsense: git says" in done.stdout + done.stderr


def test_a_test_that_breaks_at_the_baseline_shows_how(repository):
    done = repository(
        0.01, "--perf-baseline", "HEAD", test=TEST.replace("work.COST_S", "work.NOT_YET")
    )
    assert done.returncode == 1
    assert "NOT_YET" in done.stdout


def test_two_gates_in_one_test_are_refused(repository):
    done = repository(0.01, test=TEST + "    perf_gate(step)\n")
    assert "called twice" in done.stdout + done.stderr
