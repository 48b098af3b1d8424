"""Prove the oldest versions that pyproject.toml allows: `make floors`, or

    python scripts/floors.py [--python python3.12] [--newest] [--only checks] [--with torch==2.12.0]

Installs the package with the lowest version of everything it names into an environment of its own
under build/floors/ (7 GB). There it runs the tests of the rooms that use those packages, walks
through every command without each extra, and checks the cheapest solution of every kind of lab in a
sandbox. A floor that does not hold is to be raised in pyproject.toml. With `--newest` the newest
versions are installed instead, which is how other Pythons are tried; `--with` names others for some
of them. Exit status: 0 all well, 1 something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("labs", "cohort", "sign-in")
"""Extras of the package whose floors are proved. Those of `gpu`, `nvcc`, `ncu` and `dali` need a
GPU to show anything.
"""
TEST_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "scipy", "grimp", "pyyaml")
"""What of the extra `test` the quick tests cannot do without."""
ROOMS = ("analysis", "capture", "catalog", "grading", "report", "trace", "workspace")
TESTS = (
    *(f"tests/unit/{room}" for room in ROOMS),
    "tests/cohort/test_server.py",
    "tests/cohort/test_sign_in.py",
)
WALK = "tests/integration/test_without_extras.py"
TESTS_S, CHECK_S = 600.0, 900.0
"""Longest that the tests and a check may take, on a machine that does something else as well."""


class Check(NamedTuple):
    """A check of a kind of lab. `content` is the folder of its course, if it is in another."""

    kind: str
    slug: str
    device: str
    content: str


EXAMPLES = [
    Check("http_server", "price-board", "cpu", "docs/example-http-server"),
    Check("speedup", "running-mean", "cpu", "docs/example"),
]
"""Kinds of which an example is cheaper than a lab of the course, or the only one."""


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


def install(
    python: str, environment: Path, required: list[str], others: list[str], *, newest: bool
) -> Path:
    """Install the package in place, and what it requires in the oldest or the newest versions.
    Requirements in `others` come on top. Returns the environment's Python.
    """
    own = environment / "bin" / "python"
    if not own.exists():
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
    subprocess.run([str(own), "-m", "pip", "install", "--quiet", "uv"], check=True, cwd=environment)
    wanted = environment / "requirements.txt"
    wanted.write_text("".join(f"{line}\n" for line in [*required, *others]), encoding="utf-8")
    # Only what is named gets its lowest version: a dependency of a dependency is its owner's floor.
    # Wheels alone: a release so old that it has none for this Python is no floor of ours to prove.
    resolution = "highest" if newest else "lowest-direct"
    uv = [str(own), "-m", "uv", "pip", "install", "--quiet", "--python", str(own)]
    lowest = ["--resolution", resolution, "--only-binary", ":all:", "-r", str(wanted)]
    subprocess.run([*uv, *lowest], check=True, cwd=environment)
    # Without its dependencies, which are there; the one thing that has to be built.
    subprocess.run([*uv, "--no-deps", "--editable", str(ROOT)], check=True, cwd=environment)
    return own


def run_tests(python: Path) -> list[str]:
    """Run the rooms' tests and the walk; return what is wrong, a sentence each."""
    # Old packages warn of what newer ones below them have planned: no fault of this project's.
    unstrict = ["-o", "filterwarnings=default", "--disable-warnings"]
    pytest = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *unstrict]
    chosen = ["-n", "2", "-m", "not (slow or gpu or nsys or timed or long or browser)"]
    problems = []
    for arguments in ([*chosen, *TESTS], [WALK]):
        try:
            done = subprocess.run(
                [*pytest, *arguments],
                check=False,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                timeout=TESTS_S,
            )
        except subprocess.TimeoutExpired:
            problems.append(f"Not done after {TESTS_S:.0f} s: {arguments[-1]} and its like.")
            continue
        if done.returncode:
            problems.append(f"Tests fail: {arguments[-1]} and its like.")
    return problems


def run_checks(python: Path, photos: Path, kinds: list[str]) -> list[str]:
    """Check a solution of every kind in a sandbox, or of `kinds` alone; return what is wrong, a
    sentence each.

    The labs' photographs are made in `photos`, as many as these checks draw.
    """
    made = [str(python), "datasets/photos.py", "--root", str(photos), "--progress", "none"]
    subprocess.run([*made, "--small", "64", "--large", "96"], check=True, cwd=ROOT)
    listed = subprocess.run(
        [str(python), __file__, "--list-kinds"], capture_output=True, check=True, cwd=ROOT
    )
    problems = []
    for kind, slug, device, content in json.loads(listed.stdout):
        if kinds and kind not in kinds:
            continue
        environment = dict(os.environ)
        if content:
            environment["BOTTLENECK_LAB_CONTENT"] = str(ROOT / content)
        begun = time.monotonic()
        try:
            done = subprocess.run(
                [str(python), __file__, "--check", slug, device, str(photos)],
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
        seconds = time.monotonic() - begun
        verdict = done.stdout.strip()
        sys.stdout.write(f"{kind}: {slug} on {device}, {seconds:.0f} s: {verdict}\n")
        sys.stdout.flush()
        if done.returncode:
            problems.append(f"{kind} ({slug} on {device}): {verdict} {done.stderr[-2000:]}")
    return problems


def one_of_each_kind() -> list[Check]:
    """Return a check of each kind of lab, on `virtual` where a lab can be: that costs least, and
    other programs least disturb it.
    """
    from bottleneck_lab.catalog import load_labs
    from bottleneck_lab.measure.kinds.registry import built_in

    chosen = {example.kind: example for example in EXAMPLES}
    for device in ("virtual", "cpu"):
        for lab in load_labs().values():
            if device in lab.spec.devices:
                chosen.setdefault(lab.spec.measure, Check(lab.spec.measure, lab.slug, device, ""))
    if missing := built_in() - set(chosen):
        raise ValueError(f"no check for {', '.join(sorted(missing))}")
    return sorted(chosen.values())


def check(slug: str, device: str, photos: str) -> int:
    """Check a lab's solution in a sandbox, print its verdict in a line, and return 1 unless it is
    right as far as a busy machine can tell.
    """
    from bottleneck_lab.catalog import find_lab
    from bottleneck_lab.measure.verifier import check_lab

    lab = find_lab(slug)
    verdict = check_lab(
        lab,
        lab.solution,
        device,  # type: ignore[arg-type]  # one of the lab's own
        data=Path(photos),
        sandbox_required=True,
    )
    sys.stdout.write(f"{verdict.outcome} {verdict.summary}\n")
    # The solution's answers were read on another machine with another PyTorch: which operator comes
    # third differs there.
    return int(verdict.outcome in {"FAIL", "ERROR"} and verdict.reason != "wrong diagnosis")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter to try")
    parser.add_argument("--newest", action="store_true", help="the newest versions, not the oldest")
    parser.add_argument("--only", choices=["install", "tests", "checks"], action="append")
    parser.add_argument("--kind", action="append", help="check this kind of lab only")
    parser.add_argument("--with", dest="others", action="append", metavar="REQUIREMENT", default=[])
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
    begun = time.monotonic()
    python = install(
        options.python, environment, requirements(project), options.others, newest=options.newest
    )
    sys.stdout.write(f"Installed in {time.monotonic() - begun:.0f} s.\n")
    steps, wrong = options.only or ["tests", "checks"], []
    if "tests" in steps:
        wrong += run_tests(python)
    if "checks" in steps:
        wrong += run_checks(python, environment.parent / "photos", options.kind or [])
    for problem in wrong:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(f"{time.monotonic() - begun:.0f} s in all.\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
