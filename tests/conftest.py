"""What holds for every test: none is judged by its speed, an example of Hypothesis as little as another, and no kernel is compiled twice."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("lab", deadline=None)
settings.load_profile("lab")


@pytest.fixture(scope="session")
def cubins(tmp_path_factory) -> Path:
    """Where compiled kernels are kept: one folder of a run, whichever of its processes a test is in."""
    place = tmp_path_factory.getbasetemp()
    return (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "cubins"
