"""`make gpu` on a device that is not there: every lab with a `cuda` device is checked and captured
from start to end. Nothing is measured.
"""

import json
import shutil
from pathlib import Path

import pytest

from ..modules import load_file
from ..pretend import pretend_gpu

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long

STEPS = {
    "grade:roofline:solution": [],
    "grade:idle-gpu:solution": [],
    "grade:timing-pitfalls:solution": [],
    "grade:past-the-plateau:solution": [],
    "capture:stuttering-tagger:starter": ["torch", "nsys", "ncu", "sanitizer"],
    "capture:past-the-plateau:solution": ["torch", "nsys"],
}
"""Checks of calls, of a script, of measuring code and of a server, and captures with each tool.
`make slow` goes through all the others.
"""


@pytest.fixture
def rehearse(tmp_path, photos, monkeypatch, capsys):
    """Runs the steps whose names begin so, in a checkout of its own; what came of each, by name."""
    home, docs = tmp_path / "home", Path("docs", "measured", "README.md")
    (home / "datasets").mkdir(parents=True)
    (home / "datasets" / "photos").symlink_to(photos)
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(home))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    root = tmp_path / "root"
    (root / docs).parent.mkdir(parents=True)
    shutil.copy(ROOT / docs, root / docs)
    gpu = load_file(ROOT / "scripts" / "gpu.py", "gpu_script")

    def run(*begin):
        status = gpu.main([f"--only={name}" for name in begin], root=root, runner=without_data)
        said = capsys.readouterr().out
        assert status == gpu.OK, said
        assert "nothing is recorded" in said
        assert not (root / "datasets").exists()
        assert [path.name for path in (root / docs).parent.iterdir()] == ["README.md"]
        assert (root / docs).read_text() == (ROOT / docs).read_text()
        return json.loads((root / "build" / "gpu" / "rehearsal-no-gpu" / "state.json").read_text())

    def without_data(command, limit_s):
        return gpu.run(command, limit_s) if "--do" in command else gpu.Ran(0, "{}")

    with pretend_gpu.installed():
        yield run


@pytest.mark.parametrize("step", STEPS)
def test_one_of_each_form_runs_from_start_to_end(rehearse, step):
    found = rehearse(step)
    del found["data"]
    assert found
    assert all(row.get("outcome", "INCONCLUSIVE") == "INCONCLUSIVE" for row in found.values())
    tools = {name.rsplit(":", 1)[1] for name in found if name.startswith("capture:")}
    assert tools == set(STEPS[step])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_of_them_do(rehearse):
    assert len(rehearse("grade:", "capture:")) > 60
