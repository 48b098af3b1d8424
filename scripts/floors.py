"""Prove the oldest versions that pyproject.toml allows: `make floors`, or

    python scripts/floors.py [--python python3.12] [--newest] [--only checks] [--seconds 180]

Installs the package with the lowest version of everything it names into an environment of its own
under build/floors/, runs the quick tests there, and checks one solution of every kind of lab in a
sandbox. A floor that does not hold is to be raised in pyproject.toml. With `--newest` the newest
versions are installed instead, which is how other Pythons are tried. Exit status: 0 all well, 1
something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("labs", "cohort")
"""Extras of the package whose floors are proved. Those of `gpu`, `nvcc`, `ncu` and `dali` need a
GPU to show anything.
"""
TEST_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "scipy", "grimp", "pyyaml")
"""What of the extra `test` the quick tests cannot do without."""
CHECK_S = 900.0
"""Longest a check may take: the slowest kind, on a machine that does something else as well."""
TESTS_S = 180.0


class Check(NamedTuple):
    """A check of a kind of lab. `content` is the folder of its course, if it is in another."""

    kind: str
    slug: str
    device: str
    content: str


EXAMPLE = Check("http_server", "price-board", "cpu", "docs/example-http-server")
"""The kind that no lab of the course is of."""


def requirements(project: dict[str, Any]) -> list[str]:
    """Return what the package requires, with the extras and the test tools that are proved.

    Raises ValueError for a requirement without a lowest version: nothing could be proved of it.
    """
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    required += [each for each in extras["test"] if _name(each) in TEST_TOOLS]
    for requirement in required:
        if ">=" not in requirement:
            raise ValueError(f"pyproject.toml: '{requirement}' has no lowest version")
    return required


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=;\s]", requirement, maxsplit=1)[0]


def install(python: str, environment: Path, required: list[str], *, newest: bool) -> Path:
    """Install the package in place, and what it requires in the oldest or the newest versions.
    Returns the environment's Python.
    """
    own = environment / "bin" / "python"
    if not own.exists():
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
    subprocess.run([str(own), "-m", "pip", "install", "--quiet", "uv"], check=True, cwd=environment)
    wanted = environment / "requirements.txt"
    wanted.write_text("".join(f"{line}\n" for line in required), encoding="utf-8")
    # Only what is named gets its lowest version: a dependency of a dependency is its owner's floor.
    # Wheels alone: a release so old that it has none for this Python is no floor of ours to prove.
    resolution = "highest" if newest else "lowest-direct"
    uv = [str(own), "-m", "uv", "pip", "install", "--quiet", "--python", str(own)]
    lowest = ["--resolution", resolution, "--only-binary", ":all:", "-r", str(wanted)]
    subprocess.run([*uv, *lowest], check=True, cwd=environment)
    # Without its dependencies, which are there; the one thing that has to be built.
    subprocess.run([*uv, "--no-deps", "--editable", str(ROOT)], check=True, cwd=environment)
    return own


def run_tests(python: Path, seconds: float) -> int:
    """Run the quick tests; return pytest's exit status."""
    chosen = "not slow and not gpu and not nsys and not timed"
    command = [str(python), "-m", "pytest", "-q", "--quick", str(seconds), "-n", "2"]
    for elsewhere in ("tests/browser", "tests/unit/project"):  # of Chromium, and of the project
        command += ["--ignore", elsewhere]
    # An old package may warn of what a new one below it has planned: no fault of this project's.
    for warning in ("DeprecationWarning", "PendingDeprecationWarning"):
        command += ["-W", f"ignore::{warning}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "-m", chosen], check=False, cwd=ROOT, env=environment
    ).returncode


def run_checks(python: Path, photos: Path) -> list[str]:
    """Check a solution of every kind in a sandbox; return what is wrong, a sentence each.

    The labs' photographs are made in `photos`, of the small ones as many as a check draws.
    """
    made = [str(python), "datasets/photos.py", "--root", str(photos), "--small", "64"]
    subprocess.run([*made, "--progress", "none"], check=True, cwd=ROOT)
    listed = subprocess.run(
        [str(python), __file__, "--list-kinds"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    problems = []
    for kind, slug, device, content in json.loads(listed.stdout):
        environment = dict(os.environ)
        if content:
            environment["BOTTLENECK_LAB_CONTENT"] = str(ROOT / content)
        command = [str(python), __file__, "--check", slug, device, str(photos)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=ROOT,
                timeout=CHECK_S,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            problems.append(f"{kind} ({slug} on {device}): not done after {CHECK_S:.0f} s")
            continue
        sys.stdout.write(f"{kind}: {slug} on {device}: {done.stdout.strip()}\n")
        sys.stdout.flush()
        if done.returncode:
            problems.append(f"{kind} ({slug} on {device}): {done.stdout} {done.stderr[-2000:]}")
    return problems


def one_of_each_kind() -> list[Check]:
    """Return a check of each kind of lab, on `virtual` where a lab can be: other programs least
    disturb that.
    """
    from bottleneck_lab.catalog import load_labs
    from bottleneck_lab.measure.kinds.registry import built_in

    chosen: dict[str, Check] = {}
    for device in ("virtual", "cpu"):
        for lab in load_labs().values():
            if device in lab.spec.devices:
                chosen.setdefault(lab.spec.measure, Check(lab.spec.measure, lab.slug, device, ""))
    chosen.setdefault(EXAMPLE.kind, EXAMPLE)
    if missing := built_in() - set(chosen):
        raise ValueError(f"no check for {', '.join(sorted(missing))}")
    return sorted(chosen.values())


def check(slug: str, device: str, photos: str) -> int:
    """Check a lab's solution in a sandbox, print its verdict in a line, and return 1 unless it is
    right as far as a busy machine can tell.
    """
    import tempfile

    from bottleneck_lab.catalog import find_lab
    from bottleneck_lab.measure.verifier import check_lab

    lab = find_lab(slug)
    with tempfile.TemporaryDirectory() as folder:
        verdict = check_lab(
            lab,
            lab.solution,
            device,  # type: ignore[arg-type]  # one of the lab's own
            data=Path(photos),
            home=Path(folder),
            sandbox_required=True,
        )
    sys.stdout.write(f"{verdict.outcome} {verdict.summary}\n")
    return int(verdict.outcome in {"FAIL", "ERROR"})


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter to try")
    parser.add_argument("--newest", action="store_true", help="the newest versions, not the oldest")
    parser.add_argument("--only", choices=["install", "tests", "checks"], action="append")
    parser.add_argument("--seconds", type=float, default=TESTS_S, help="of quick tests")
    parser.add_argument("--list-kinds", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--check", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list_kinds:
        sys.stdout.write(json.dumps(one_of_each_kind()))
        return 0
    if options.check:
        return check(*options.check)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = subprocess.run(
        [options.python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    environment = (
        ROOT / "build" / "floors" / f"{version}-{'newest' if options.newest else 'oldest'}"
    )
    python = install(options.python, environment, requirements(project), newest=options.newest)
    steps, wrong = options.only or ["tests", "checks"], []
    if "tests" in steps and run_tests(python, options.seconds):
        wrong.append("The quick tests fail.")
    if "checks" in steps:
        wrong += run_checks(python, environment.parent / "photos")
    for problem in wrong:
        sys.stderr.write(f"{problem}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
