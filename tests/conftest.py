"""What holds for every test: none is judged by its speed, an example of Hypothesis as little as
another, and nothing large is made twice.
"""

import gc
import hashlib
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import bottleneck_lab

from . import weather
from .quick import Quick, long_files_first
from .tools import LEFT_OUT

ROOT = Path(__file__).parents[1]
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")


def pytest_addoption(parser) -> None:
    """The option of `make quick`."""
    parser.addoption(
        "--quick",
        type=float,
        metavar="SECONDS",
        help="only tests for so many seconds, the nearest to the change first",
    )


def pytest_configure(config) -> None:
    """Every run remembers how long its tests took, for the next `--quick`. It ends at once if it
    would test another folder's code: an environment installed from elsewhere stays unnoticed
    otherwise.

    A shell that starts tests in the background has them, and what they start, ignore Ctrl-C.
    """
    if not Path(bottleneck_lab.__file__).is_relative_to(ROOT):
        pytest.exit(
            f"These tests are of {ROOT}, but import {bottleneck_lab.__file__}. `rm .venv/.installed"
            " && make setup` installs this folder.",
            4,
        )
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    weather.hurried = bool(config.getoption("quick"))
    if hasattr(config, "cache"):  # not with `-p no:cacheprovider`
        config.pluginmanager.register(Quick(config))


@pytest.hookimpl(tryfirst=True)  # before `-m` and `--quick` choose
def pytest_collection_modifyitems(items) -> None:
    """The order in which the workers of `make test` are given files."""
    long_files_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests stay until the end: no collection of garbage looks at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def torch():
    """PyTorch, imported by the first test that computes with it: every process of a run reads all
    test files, and the import costs 2 seconds.
    """
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def binomtest():
    """SciPy's exact test of a share, imported by the first test that needs it, as PyTorch is."""
    from scipy.stats import binomtest

    return binomtest


@pytest.fixture(scope="session")
def cubins(pytestconfig) -> Path:
    """Where kernels compiled with nvcc are kept, each for its content, command and compiler: with
    pytest's cache (`make clean` removes it).
    """
    return pytestconfig.cache.mkdir("cubins")


@pytest.fixture(scope="session")
def libraries(pytestconfig) -> Path:
    """Where kernels compiled with this g++ are kept in the same way, each for its content and
    command.
    """
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    folder = pytestconfig.cache.mkdir("libraries") / hashlib.sha256(version).hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def photos(pytestconfig) -> Path:
    """The photographs of the course, of the small ones as many as a check draws: made once and kept
    with pytest's cache (`make clean` removes it).
    """
    root = pytestconfig.cache.mkdir("photos")
    command = [
        sys.executable,
        str(ROOT / "datasets" / "photos.py"),
        "--root",
        str(root),
        "--small",
        "64",
    ]
    subprocess.run(
        [*command, "--progress", "none"], check=True
    )  # finds its work done, or goes on with it
    return root


def pytest_terminal_summary(terminalreporter) -> None:
    """Says in the last lines what was left out for want of a program, and how to install it."""
    skipped = Counter(
        reason
        for report in terminalreporter.stats.get("skipped", [])
        for reason in LEFT_OUT
        if reason in str(report.longrepr)
    )
    for reason, count in skipped.items():
        terminalreporter.write_line(f"{count} tests were left out: {reason}", yellow=True)
