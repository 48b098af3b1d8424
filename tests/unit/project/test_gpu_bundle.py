"""What the archive for GPU machines asks the package index for, and how it starts."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from ...modules import load_file

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bundle():
    return load_file(ROOT / "scripts" / "gpu_bundle.py", "gpu_bundle")


def test_it_brings_what_the_labs_need_except_what_a_gpu_machine_has(bundle):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = bundle.needed()
    assert not [one for one in needed if one.startswith(("torch", "numpy"))]
    assert {one for one in project["dependencies"] if not one.startswith("numpy")} <= {*needed}
    assert "pytest-timeout" in needed


def test_its_start_script_is_valid_and_hands_arguments_on(bundle, tmp_path):
    (tmp_path / "bottleneck-lab").mkdir()
    (tmp_path / "bottleneck-lab" / "Makefile").write_text("gpu:\n\t@echo '$(ARGS)' $$PYTHONPATH\n")
    (tmp_path / "start").write_text(bundle.START)
    done = subprocess.run(
        ["bash", tmp_path / "start", "--only", "grade:"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.split() == ["--only", "grade:", f"{tmp_path}/wheels"]
