"""Runs tests marked `alone` in a fresh process each: none that has threads is forked, and other tests leave some in theirs."""

import os
import subprocess
import sys

IS_ALONE = "LAB_TEST_IS_ALONE"


def pytest_pyfunc_call(pyfuncitem):
    if not pyfuncitem.get_closest_marker("alone") or os.environ.get(IS_ALONE):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    root, environment = pyfuncitem.config.rootpath, {**os.environ, IS_ALONE: "1"}
    run = subprocess.run(command, check=False, cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout
    return True
