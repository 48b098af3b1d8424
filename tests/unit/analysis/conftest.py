"""Synthetic captures, made by the script that ships with the data sets."""

import json
from pathlib import Path

import pytest

from bottleneck_lab import load, summarise

from ...modules import load_file

MAKE = Path(__file__).parents[3] / "datasets" / "captures" / "make.py"


@pytest.fixture(scope="session")
def make():
    return load_file(MAKE, "make_captures")


@pytest.fixture
def timeline_of(make, tmp_path):
    def loaded(bottleneck: str, **settings):
        path = tmp_path / f"{bottleneck}.json"
        path.write_text(json.dumps(make.training(bottleneck, **settings).trace(bottleneck)))
        return load(path)

    return loaded


@pytest.fixture
def summary_of(timeline_of):
    return lambda bottleneck, **settings: summarise(timeline_of(bottleneck, **settings))
