"""Fixtures of the tests of a course."""

import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.workspace.start import start_workspace


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a lab, and return its workspace."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))

    def started(slug, device="virtual"):
        return start_workspace(load_labs()[slug], tmp_path / "work", device)[0]

    return started
