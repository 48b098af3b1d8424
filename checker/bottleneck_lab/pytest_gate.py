"""A pytest plugin: is this code slower than that of another git revision? `perf_gate` in a test,
`--perf-baseline REVISION` on the command line.

The test runs in two further pytest processes, one in a checkout of the revision and one in the
working tree, with the same test file. They stop at `perf_gate` and time the function whenever this
process says so: alternately, in random order, until `analysis.gate` has an answer.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bottleneck_lab.analysis.gate import BenchmarkChange

SIDE = "BOTTLENECK_LAB_PERF_SIDE"
"""Set in the two further processes: the descriptor over which they learn what to time."""
SHORTEST_S = 0.005
"""A measurement is of as many calls as take this long: a clock's own time is then below one part in
10,000.
"""
START_S, ANSWER_S = 120.0, 300.0
RESULTS = pytest.StashKey[list[str]]()
TREES = pytest.StashKey["Trees"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("perf_gate", "performance against another revision (bottleneck-lab)")
    group.addoption(
        "--perf-baseline",
        metavar="REVISION",
        help="gate tests with `perf_gate` against this git revision",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = []
    if config.getoption("perf_baseline") and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(
            "--perf-baseline measures: leave out -n, or the tests time each other."
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    if trees := config.stash.get(TREES, None):
        trees.remove()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := config.stash[RESULTS]:
        terminalreporter.section(f"performance against {config.getoption('perf_baseline')}")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def perf_gate(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Call it with a function and its arguments, once in a test: the test fails where that is
    surely slower than at the baseline.

    Without `--perf-baseline` the function is called once. An answer that cannot be had is a
    warning, not a failure.
    """
    called: list[bool] = []

    def gate(function: Callable[..., object], *args: object, **kwargs: object) -> None:
        if called:
            raise pytest.UsageError(
                "perf_gate was called twice in one test: write a test for each."
            )
        called.append(True)
        if SIDE in os.environ:
            _serve(lambda: function(*args, **kwargs))
        elif request.config.getoption("perf_baseline"):
            _report(request, _measure(request))
        else:
            function(*args, **kwargs)

    return gate


def _report(request: pytest.FixtureRequest, change: BenchmarkChange) -> None:
    name = request.node.nodeid
    request.config.stash[RESULTS].append(f"{name}: {change.sentence}")
    if change.outcome == "worse":
        pytest.fail(f"{name} is {change.sentence}", pytrace=False)
    if change.outcome == "cannot tell":
        warnings.warn(pytest.PytestWarning(f"{name}: {change.sentence}"), stacklevel=2)


def _measure(request: pytest.FixtureRequest) -> BenchmarkChange:
    """Time both versions alternately, and the old one once more as a control, until the gate has
    decided or has seen enough.
    """
    # A pytest that gates nothing needs no NumPy.
    from bottleneck_lab.analysis.gate import Rules, judge_suite  # noqa: PLC0415 - as above

    rules = Rules()
    before: list[float] = []
    after: list[float] = []
    control: list[float] = []
    trees = request.config.stash.setdefault(TREES, Trees(request.config))
    with trees.baseline(request.node) as old, trees.working(request.node) as new:
        # Several calls a sample, until the clock resolves them well; both sides are then warm.
        calls = 1
        while old.seconds(calls) < SHORTEST_S:
            calls *= 2
        new.seconds(calls)
        wanted = rules.looks[0]
        while wanted:
            for _ in range(wanted - len(before)):
                turns: list[tuple[list[float], Side]] = [
                    (before, old),
                    (after, new),
                    (control, old),
                ]
                random.shuffle(turns)
                for times, side in turns:
                    times.append(side.seconds(calls))
            judged = judge_suite({"this": (before, after)}, rules, same_code=(before, control))[
                "this"
            ]
            wanted = judged.wanted
    return judged


class Trees:
    """The two checkouts: the baseline's, made when it is first needed, and the working tree."""

    def __init__(self, config: pytest.Config) -> None:
        self.revision, self.root = str(config.getoption("perf_baseline")), config.rootpath
        self._top = Path(self._git("rev-parse", "--show-toplevel").strip())
        self._folder = Path(tempfile.mkdtemp(prefix="perf-gate-"))
        self._tree = self._folder / "baseline"
        try:
            self._git("worktree", "add", "--quiet", "--detach", str(self._tree), self.revision)
        except pytest.UsageError:
            shutil.rmtree(self._folder)
            raise

    def baseline(self, item: pytest.Item) -> Side:
        """Return the test at the baseline, as it is written now: both sides time the same thing."""
        ours = item.path.relative_to(self._top)
        (self._tree / ours).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(item.path, self._tree / ours)
        return Side(
            self._tree / self.root.relative_to(self._top), item.nodeid, self._paths(self._tree)
        )

    def working(self, item: pytest.Item) -> Side:
        """Return the test in the working tree."""
        return Side(self.root, item.nodeid, self._paths(self._top))

    def remove(self) -> None:
        self._git("worktree", "remove", "--force", str(self._tree))
        shutil.rmtree(self._folder)

    def _paths(self, tree: Path) -> list[str]:
        """Return the entries of this process's search path that lie in the repository, as they are
        in `tree`: before what is installed.
        """
        inside = [
            Path(entry) for entry in sys.path if entry and Path(entry).is_relative_to(self._top)
        ]
        environment = Path(sys.prefix)
        kept = [path for path in inside if not path.is_relative_to(environment)]
        return [str(tree / path.relative_to(self._top)) for path in kept]

    def _git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.root), *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise pytest.UsageError(
                f"--perf-baseline {self.revision}: git says: {done.stderr.strip()}"
            )
        return done.stdout


class Side:
    """One version's process, which waits at `perf_gate`."""

    def __init__(self, folder: Path, nodeid: str, paths: list[str]) -> None:
        self._ours, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "pytest",
            nodeid,
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            __name__,
        ]
        path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
        environment = {**os.environ, "PYTHONPATH": path, SIDE: str(theirs.fileno())}
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._folder = folder
        self._lines = self._ours.makefile("rw", buffering=1)

    def __enter__(self) -> Side:
        self._ours.settimeout(START_S)
        self._hear()
        self._ours.settimeout(ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._ours.close()
        self._process.kill()
        self._process.wait()
        self._output.close()

    def seconds(self, calls: int) -> float:
        """Return how long that many calls take together."""
        self._lines.write(f"{calls}\n")
        return float(self._hear())

    def _hear(self) -> str:
        try:
            line = self._lines.readline()
        except OSError:
            line = ""
        if line:
            return line
        self._process.kill()
        self._process.wait()
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")[-2000:]
        pytest.fail(f"The test did not reach perf_gate in {self._folder}:\n{output}", pytrace=False)


def _serve(call: Callable[[], object]) -> None:
    """Time as many calls as the other end names, until it closes."""
    for line in _orders():
        begin = time.perf_counter()
        for _ in range(int(line)):
            call()
        seconds = time.perf_counter() - begin
        _answer(f"{seconds!r}\n")


def _channel() -> socket.socket:
    return socket.socket(fileno=os.dup(int(os.environ[SIDE])))


def _answer(text: str) -> None:
    with _channel() as channel:
        channel.sendall(text.encode())


def _orders() -> Iterator[str]:
    _answer("ready\n")
    with _channel() as channel, channel.makefile() as lines:
        yield from lines
