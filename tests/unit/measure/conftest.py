"""Checks in a test run against the example of docs/authors.md: a whole lab, small enough to be
measured in seconds.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.sandbox.janitor import Janitor

EXAMPLE = Path(__file__).parents[3] / "docs" / "example"


SHORTER = {"max_s": 2, "judged": 20, "judge": {"samples": [1_200, 1_500]}}
"""Settings of a check that is not about speed: it takes a second instead of ten."""


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(EXAMPLE))
    load_labs.cache_clear()
    found = find_lab("running-mean")
    device = found.spec.devices["cpu"]
    shorter = msgspec.structs.replace(device, settings={**device.settings, **SHORTER})
    spec = msgspec.structs.replace(found.spec, devices={"cpu": shorter})
    yield msgspec.structs.replace(found, spec=spec)
    load_labs.cache_clear()


@pytest.fixture
def workspace(lab: Lab, tmp_path: Path) -> Path:
    """A workspace as `lab start` makes it, of the example lab."""
    folder = tmp_path / "work space é"
    folder.mkdir()
    shutil.copy(lab.path / "smooth.py", folder)
    return folder


@pytest.fixture
def context(lab: Lab, workspace: Path, tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    with Janitor() as janitor:
        yield Context(
            lab,
            "cpu",
            kind_of(lab).settings(lab, "cpu"),
            janitor.folder / "submission",
            workspace,
            data,
            janitor,
            lambda *_: None,
            random.Random(1),
        )
