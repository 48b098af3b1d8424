"""`make gpu` on a device that is not there: every lab with a `cuda` device is checked and captured
from start to end. Nothing is measured.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

STEPS = (
    "grade:roofline:solution",
    "grade:idle-gpu:solution",
    "grade:timing-pitfalls:solution",
    *(f"capture:stuttering-tagger:starter:{tool}" for tool in ("torch", "ncu", "sanitizer")),
    *(f"capture:past-the-plateau:starter:{tool}" for tool in ("torch", "nsys")),
)
"""Checks of calls, of a script and of measuring code, and captures with each tool, also of a
server. `make slow` goes through all the others.
"""


def rehearse(folder, photos, *begin):
    """Run the steps whose names begin so, in a checkout of its own. Return what came of each, by
    name.
    """
    root, page = folder / "root", Path("docs", "measured", "README.md")
    (root / page).parent.mkdir(parents=True)
    shutil.copy(ROOT / page, root / page)
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("benchmarks", "checker", "labs", "solutions", "tests"):
        (root / name).symlink_to(ROOT / name)
    (root / "datasets").mkdir()
    (root / "datasets" / "cases").symlink_to(ROOT / "datasets" / "cases")
    home = folder / "home"
    (home / "datasets").mkdir(parents=True)
    (home / "datasets" / "photos").symlink_to(photos)
    ran = subprocess.run(
        [
            *(sys.executable, root / "scripts" / "gpu.py", "--pretend"),
            *(f"--only={name}" for name in begin),
        ],
        env={**os.environ, "BOTTLENECK_LAB_HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nothing is recorded" in ran.stdout
    assert [path.name for path in (root / "datasets").iterdir()] == ["cases"]
    assert [path.name for path in (root / page).parent.iterdir()] == ["README.md"]
    assert (root / page).read_text() == (ROOT / page).read_text()
    state = root / "build" / "gpu" / "rehearsal-no-gpu" / "state.json"
    return json.loads(state.read_text())


@pytest.fixture(scope="module")
def rehearsed(photos, tmp_path_factory):
    return rehearse(tmp_path_factory.mktemp("rehearsal"), photos, *STEPS)


@pytest.mark.parametrize("step", STEPS)
def test_one_of_each_form_runs_from_start_to_end(rehearsed, step):
    assert rehearsed[step].get("outcome", "INCONCLUSIVE") == "INCONCLUSIVE"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_of_them_do(photos, tmp_path):
    assert len(rehearse(tmp_path, photos, "grade:", "capture:")) > 60
