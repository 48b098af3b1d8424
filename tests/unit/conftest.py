"""Runs tests marked `alone` in a fresh process for each file: none that has threads is forked, and
other tests leave some in theirs.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

IS_ALONE = "LAB_TEST_IS_ALONE"


def pytest_pyfunc_call(pyfuncitem):
    if not pyfuncitem.get_closest_marker("alone") or os.environ.get(IS_ALONE):
        return None
    said = _alone(pyfuncitem.config.rootpath, pyfuncitem.path)
    assert f"PASSED {pyfuncitem.nodeid}\n" in said, said
    return True


@cache
def _alone(root: Path, file: Path) -> str:
    """What pytest says of all such tests of a file."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-m",
        "alone",
        str(file),
    ]
    environment = {**os.environ, IS_ALONE: "1", "COLUMNS": "200"}
    return subprocess.run(
        command, check=False, cwd=root, env=environment, capture_output=True, text=True
    ).stdout
