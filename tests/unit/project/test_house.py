"""The counts of scripts/house.py, on a few lines whose figures can be counted by hand."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "house.py"

SAMPLE = '''"""Whether it is a module."""

import os as place  # noqa: F401


def _helper(said):
    """Return `said`.

    Twice, if it is set.
    """
    # A reason.
    return said * 2 if said else said


class Thing:
    def __init__(self):
        self.found = 1
        found = [told for told in ()]  # A second reason.
'''


def test_every_figure_is_counted(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE + f"x = {'1' * 100}\n")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "sample.py").write_text("y = 1\n")
    output = subprocess.run(
        [sys.executable, SCRIPT, "--json", tmp_path], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(output)[str(tmp_path)] == {
        "files": 1,
        "lines": 19,
        "statements": 10,
        "function lines, median / p90 / max": "5 / 7 / 7",
        "private functions per 1,000 lines": round(1000 / 19, 1),
        "private functions per 1,000 statements": 100.0,
        "comment lines, %": round(200 / 19, 1),
        "one-line docstrings, %": 50.0,
        "one-paragraph docstrings, %": 50.0,
        "ternaries per 1,000 lines": round(1000 / 19, 1),
        "ternaries per 1,000 statements": 100.0,
        "lines over 100 columns, %": round(100 / 19, 1),
        "bindings called found/told/said/asked/place": 4,
        "docstrings that begin with What/Whether": 1,
    }


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "gone"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert f"{tmp_path / 'gone'} does not exist" in result.stderr
