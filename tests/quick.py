"""`pytest --quick SECONDS`, which `make quick` runs: as many tests as there is time for, by how
near they are to a change.

The change is what differs from the branch that this one goes back to. First come the tests of the
files, labs and modules that changed; then those that are fast; then those that take long and stand
on what changed, at some distance. A test takes long that is marked `long` or `timed`, or did when
it last ran.
"""

from __future__ import annotations

import ast
import math
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import grimp

ROOT = Path(__file__).parents[1]
FAST_S = 3.0
UNKNOWN_S = {False: 0.2, True: 5.0}
"""What a test that has not run here yet is taken for: one that is not marked as long, and one that
is.
"""
OF_PYTEST_S = 0.01
"""Seconds of pytest's own for a test: thousands that take no time add up."""
SECONDS = "quick/seconds"
LOADED_BY_NAME = {
    "bottleneck_lab.cli": "bottleneck_lab.commands.",
    "bottleneck_lab.measure.kinds.registry": "bottleneck_lab.measure.kinds.",
}
"""Modules that import others by their names alone, which no graph shows."""
_LAB = re.compile(r"(?:labs|solutions|tests/variants|tests/mutants)/([a-z0-9-]+)/")
_BASES = ("@{upstream}", "origin/HEAD", "main")


class Quick:
    """Chooses tests before a run, and remembers afterwards how long each took."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: dict[str, float] = config.cache.get(SECONDS, {})
        self.took: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)  # once `-m` has chosen
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what there is no time for."""
        room = self.config.getoption("quick")
        if not room:
            return
        chosen = set()
        for item in self._by_nearness(items, changed_files()):
            if self._seconds(item) <= room:
                room -= self._seconds(item)
                chosen.add(item.nodeid)
        self.config.hook.pytest_deselected(
            items=[item for item in items if item.nodeid not in chosen]
        )
        items[:] = [item for item in items if item.nodeid in chosen]

    def _by_nearness(self, items: list[pytest.Item], changed: set[str]) -> list[pytest.Item]:
        """The nearest first; without those that take long and stand on nothing that changed."""
        far = distances(modules_of(changed))
        labs = {found[1] for path in changed if (found := _LAB.match(path))}
        ranked = []
        for item in items:
            distance, long = distance_of(item, changed, labs, far), self._is_long(item)
            if distance is not None or not long:
                group = 0 if distance == 0 else 1 + long
                ranked.append(
                    (group, math.inf if distance is None else distance, self._seconds(item), item)
                )
        return [item for *_, item in sorted(ranked, key=lambda rank: rank[:3])]

    def _is_long(self, item: pytest.Item) -> bool:
        return is_marked(item) or self._seconds(item) > FAST_S

    def _seconds(self, item: pytest.Item) -> float:
        return OF_PYTEST_S + self.seconds.get(item.nodeid, UNKNOWN_S[is_marked(item)])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a test's set-up, call and teardown."""
        self.took[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Remember them. A worker of xdist leaves that to the process that started it."""
        if not hasattr(self.config, "workerinput"):
            took = {name: round(seconds, 2) for name, seconds in self.took.items()}
            self.config.cache.set(SECONDS, self.config.cache.get(SECONDS, {}) | took)


def long_files_first(items: list[pytest.Item]) -> None:
    """Workers take a file at a time: they end together where the last ones are short, and wait for
    one another where they are long.
    """
    long = {item.path for item in items if is_marked(item)}
    items.sort(key=lambda item: item.path not in long)


def is_marked(item: pytest.Item) -> bool:
    """Whether it is said to take long."""
    return any(item.get_closest_marker(name) for name in ("long", "timed"))


def changed_files() -> set[str]:
    """Paths that differ from the branch that this one goes back to, or where none do, in the last
    commit.
    """
    base = next(filter(None, (_git("merge-base", "HEAD", name) for name in _BASES)), ["HEAD"])[0]
    changed = {
        *_git("diff", "--name-only", base),
        *_git("ls-files", "--others", "--exclude-standard"),
    }
    return changed or {*_git("diff", "--name-only", "HEAD~1")}


def _git(*arguments: str) -> list[str]:
    """The lines that git prints; none where it fails, as outside of a clone."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")[:-1]


def distance_of(
    item: pytest.Item, changed: set[str], labs: set[str], far: dict[str, int]
) -> int | None:
    """0 where the test, its lab or a module that it imports has changed; None where nothing that it
    stands on has.
    """
    files, modules = stands_on(item.path)
    if changed & files or any(slug in item.name for slug in labs):
        return 0
    if any(f'"{slug}"' in item.path.read_text(encoding="utf-8") for slug in labs):
        return 0
    return min((far[module] for module in modules if module in far), default=None)


@cache
def stands_on(test: Path) -> tuple[set[str], set[str]]:
    """The files of `tests/` that a test is made of, itself among them, and the package's modules
    that these import.
    """
    files, modules, waiting = set(), set(), [test]
    while waiting:
        path = waiting.pop()
        if path.is_file() and (name := str(path.relative_to(ROOT))) not in files:
            files.add(name)
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
                    modules |= {node.module or "", *names}
                    if node.level:
                        above = path.parents[node.level - 1]
                        waiting += [
                            above.joinpath(*name.split(".")).with_suffix(".py")
                            for name in [node.module or "", *names]
                            if name
                        ]
                elif isinstance(node, ast.Import):
                    modules |= {alias.name for alias in node.names}
    return files, {module for module in modules if module.startswith("bottleneck_lab")}


def modules_of(changed: set[str]) -> set[str]:
    """The modules of the package among changed files."""
    parts = [
        Path(path).with_suffix("").parts[1:]
        for path in changed
        if path.startswith("checker/") and path.endswith(".py")
    ]
    return {".".join(part for part in names if part != "__init__") for names in parts}


@cache
def _graph() -> grimp.ImportGraph:
    import grimp  # not at the top: a GPU machine runs its own tests without it

    graph = grimp.build_graph("bottleneck_lab")
    for importer, prefix in LOADED_BY_NAME.items():
        for module in sorted(graph.modules - {importer}):
            if module.startswith(prefix):
                graph.add_import(importer=importer, imported=module)
    return graph


def distances(changed: set[str]) -> dict[str, int]:
    """For each module, how many imports lie between it and the nearest one that has changed."""
    graph = _graph() if changed else None
    far, steps, edge = {}, 0, changed
    while edge:
        far |= dict.fromkeys(edge, steps)
        steps += 1
        edge = {
            above
            for module in edge & graph.modules
            for above in graph.find_modules_that_directly_import(module)
        } - far.keys()
    return far
