"""What holds for every test: none is judged by its speed, an example of Hypothesis as little as another, and no kernel is compiled twice."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from .tools import NO_BROWSER, NO_SANDBOX

settings.register_profile("lab", deadline=None)
settings.load_profile("lab")


@pytest.fixture(scope="session")
def cubins(tmp_path_factory) -> Path:
    """Where compiled kernels are kept: one folder of a run, whichever of its processes a test is in."""
    place = tmp_path_factory.getbasetemp()
    return (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "cubins"


def pytest_terminal_summary(terminalreporter) -> None:
    """Says in the last lines what was left out for want of a program, and how to install it."""
    skipped = Counter(
        reason
        for report in terminalreporter.stats.get("skipped", [])
        for reason in filter(None, (NO_SANDBOX, NO_BROWSER))
        if reason in str(report.longrepr)
    )
    for reason, count in skipped.items():
        terminalreporter.write_line(f"{count} tests were left out: {reason}", yellow=True)
