"""The folder of the user's own state and data sets."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return `BOTTLENECK_LAB_HOME`, or this platform's folder for application data.

    It need not exist yet.
    """
    override = os.environ.get("BOTTLENECK_LAB_HOME")
    if override:
        return Path(override).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("bottleneck-lab")


def dataset_root(name: str) -> Path:
    """Return the folder of the data set called `name`."""
    return home() / "datasets" / name
