"""The servers that tests start end with them, also where a test's process is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from ..processes import lives, soon
from .conftest import postgresql_server
from .slurm import missing

ROOT = Path(__file__).parents[2]
TELL = """
import json, os, psutil, signal
children = psutil.Process().children(recursive=True)
print(json.dumps([process.pid for process in children]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by(script: str, *arguments: str) -> list[psutil.Process]:
    """Return what a process had started before it killed itself."""
    done = subprocess.run(
        [sys.executable, "-c", script + TELL, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    started = []
    for pid in json.loads(done.stdout.splitlines()[-1]):
        try:
            started.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return started


def test_a_killed_test_leaves_no_postgresql():
    with postgresql_server():  # skips where there is none
        pass
    script = (
        "import sys\nfrom pathlib import Path\nfrom tests.cohort.conftest import"
        " PostgreSQL\nPostgreSQL(Path(sys.argv[1]))"
    )
    with tempfile.TemporaryDirectory(prefix="lab-pg-", dir="/tmp") as folder:
        servers = left_by(script, folder)
        assert soon(lambda: not any(map(lives, servers)))
        assert "received immediate shutdown request" in (Path(folder) / "log").read_text()


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_killed_test_leaves_no_slurm(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\nfrom tests.cohort.slurm import slurm_cluster\nheld ="
        " slurm_cluster(Path(sys.argv[1]))\nheld.__enter__()"
    )
    daemons = left_by(script, str(tmp_path))
    assert soon(lambda: not any(map(lives, daemons)))
    assert "slurmd" in "".join(path.name for path in tmp_path.iterdir())
