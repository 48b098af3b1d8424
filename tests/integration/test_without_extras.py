"""Every command without the packages of an extra, as in an installation that lacks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck_lab.needs import EXTRAS

from .. import warm

ROOT = Path(__file__).parents[2]
MINI = Path(__file__).parent / "mini"
INPUT, HEALTHY = (
    str(ROOT / "datasets" / "captures" / f"synthetic-{name}.json.gz")
    for name in ("input", "healthy")
)

pytestmark = pytest.mark.long

LACKING = {
    **{extra: set(modules) for extra, modules in EXTRAS.items()},
    "dali": {"nvidia"},
    "all of them": {"nvidia", "psycopg", "uvloop", "triton"}.union(*EXTRAS.values()),
}
"""The modules that are missing, by what is not installed."""

BLOCKER = """
import os, sys
from importlib.machinery import PathFinder

missing = set(os.environ["MISSING"].split())

class Lacking(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            return None
        return PathFinder.find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *arguments, **options):
        for distribution in PathFinder.find_distributions(*arguments, **options):
            if distribution.name.lower() not in missing:
                yield distribution

sys.meta_path[sys.meta_path.index(PathFinder)] = Lacking
"""
"""Put on the path as `sitecustomize`, so that child processes lack the modules, too."""

RUN = """
import contextlib, io, json, os, sys
from bottleneck_lab import cli

results = []
for folder, arguments in json.load(sys.stdin):
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    os.chdir(folder)
    sys.argv = ["lab", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli._invoke()
    shown = [stream.buffer.getvalue().decode() for stream in (out, err)]
    results.append([int(status), *shown])
json.dump(results, sys.__stdout__)
"""
"""One process runs all commands: each alone would pay half a second for its imports."""

ANYWHERE = [
    ["list"],
    [],
    ["doctor"],
    ["data"],
    ["monitor", "--count", "1", "--interval-s", "0.1"],
    ["monitor", "--prometheus", "0", "--count", "1", "--interval-s", "0.1"],
    ["report", INPUT],
    ["report", INPUT, "--html"],
    ["compare", INPUT, HEALTHY],
    ["start", "wrong", "new"],
    ["profile", "--tool", "nsys", "--", "python", "-c", "pass"],
    ["profile", "--tool", "ncu", "--", "python", "-c", "pass"],
    ["join", "http://127.0.0.1:9", "CODE", "--name", "me"],
    ["status"],
    ["cohort", "status"],
    ["cohort", "create", "Mine"],
    ["dev", "check", "slow", "--static"],
    ["dev", "check", "--static"],
    ["dev", "new", "mine", "--into", "pack"],
    ["dev", "key", "runner.pem"],
    ["dev", "calibrate", "none.json"],
    ["dev", "play", "none"],
    ["verify", "none.json", "--key", "runner.pem.pub"],
]
IN_A_LAB = [
    [],
    ["profile", "--tool", "ncu"],
    ["check"],
    ["check", "--static"],
    ["hint"],
    ["diagnose"],
    ["diagnose", "-a", "cause=1", "-a", "gain=3"],
    ["diagnose", "--reveal", "--yes"],
    ["report"],
    ["compare"],
    ["history"],
    ["history", "--course"],
    ["reset", "--yes"],
    ["solution", "--yes"],
    ["submit"],
]


def python(*arguments: str, at: Path, home: Path, **options) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "BOTTLENECK_LAB_CONTENT": str(MINI),
        "BOTTLENECK_LAB_HOME": str(home),
        **options.pop("environment", {}),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=at,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **options,
    )


@pytest.fixture
def walk(tmp_path):
    """Run commands without modules: (arguments, status, output, error) of each."""
    environment = {
        **os.environ,
        "BOTTLENECK_LAB_CONTENT": str(MINI),
        "BOTTLENECK_LAB_HOME": str(tmp_path),
    }
    started = warm.lab("start", "slow", "work", at=tmp_path, environment=environment)
    assert started.returncode == 0, started.stderr
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "sitecustomize.py").write_text(BLOCKER)

    def run(
        missing: set[str],
        commands: list[list[str]],
        in_a_lab: Sequence[list[str]] = (),
        **environment: str,
    ):
        environment |= {"PYTHONPATH": str(tmp_path / "lacking"), "MISSING": " ".join(missing)}
        jobs = [(str(tmp_path), arguments) for arguments in commands]
        jobs += [(str(tmp_path / "work"), arguments) for arguments in in_a_lab]
        done = python(
            "-c",
            RUN,
            at=tmp_path,
            home=tmp_path / "home",
            input=json.dumps(jobs),
            environment=environment,
        )
        assert done.returncode == 0, done.stderr
        results = json.loads(done.stdout)
        return [(c, *result) for (_, c), result in zip(jobs, results, strict=True)]

    return run


@pytest.mark.parametrize("lacking", LACKING)
def test_every_command_works_or_says_what_to_install(walk, lacking):
    results = walk(LACKING[lacking], ANYWHERE, IN_A_LAB)
    for arguments, status, _, error in results:
        assert "itself failed" not in error, (arguments, error)
        assert "Traceback" not in error, (arguments, error)
        if "Not installed for this Python" in error:
            assert "pip install 'bottleneck-lab[" in error, (arguments, error)
        assert status in (0, 1, 2, 4, 5), arguments
    statuses = {" ".join(arguments): status for arguments, status, _, _ in results}
    works = ("list", f"report {INPUT}", f"compare {INPUT} {HEALTHY}", "hint", "reset --yes")
    for command in works:
        assert statuses[command] == 0, command
    assert statuses["monitor --count 1 --interval-s 0.1"] == 0


def test_running_a_lab_needs_its_packages(walk):
    commands = [["run"], ["profile"], ["check"], ["doctor", "--measure"]]
    for arguments, status, _, error in walk(LACKING["labs"], [], commands):
        assert status == 4, (arguments, error)
        assert "Run `pip install 'bottleneck-lab[labs]'`" in error, arguments


def test_the_doctor_lists_what_is_missing(walk):
    ((_, status, output, error),) = walk(LACKING["all of them"], [["doctor"]])
    assert status == 4, error
    assert "✗ torch: not installed" in output, error
    assert "remedy   pip install 'bottleneck-lab[labs]'" in output


def test_a_lab_that_cannot_be_run_is_not_started(walk, tmp_path):
    ((_, status, _, error),) = walk(LACKING["labs"], [["start", "wrong", "new"]])
    assert (status, error) == (
        4,
        "Not installed for this Python: PyTorch, torchvision, Pillow.\n→ Run `pip install"
        " 'bottleneck-lab[labs]'`.\n",
    )
    assert not (tmp_path / "new").exists()
    progress = tmp_path / "home" / "progress.json"
    assert not progress.exists()


@pytest.mark.parametrize("lab", ["ddp-scaling", "resnet-latency"])
def test_a_lab_whose_own_files_need_a_package_is_not_blamed(walk, lab):
    """One needs torch for its recipe, the other Pillow for its judge."""
    command = ["dev", "check", lab, "--static"]
    ((_, status, output, error),) = walk(LACKING["labs"], [command], BOTTLENECK_LAB_CONTENT="")
    assert (status, output) == (4, "")
    assert "Run `pip install 'bottleneck-lab[labs]'`" in error
