"""A lab's older names: accepted everywhere a lab is named, and never shown."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .. import warm

OLD, NEW = "dataloader", "idle-gpu"


@pytest.fixture
def lab(tmp_path):
    """Run `lab` in the learner's folder; whatever it prints must not contain the old name."""
    environment = {
        **os.environ,
        "BOTTLENECK_LAB_HOME": str(tmp_path / "home"),
        "BOTTLENECK_LAB_CONTENT": "",
    }

    def run(*arguments: str, at: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        done = warm.lab(*arguments, at=at, environment=environment)
        # Nothing uses the older name but the sentence that says so.
        output = (done.stdout + done.stderr).replace(f"The lab '{OLD}' is called '{NEW}' now.", "")
        assert OLD not in output
        return done

    return run


@pytest.fixture
def old_workspace(lab, tmp_path) -> Path:
    """A workspace and progress as an earlier version left them, under the old name."""
    assert lab("start", NEW, "work", "--no-data", "--device", "virtual").returncode == 0
    for file in (tmp_path / "work/.lab/workspace.json", tmp_path / "home/progress.json"):
        text = file.read_text()
        assert f'"{NEW}"' in text
        file.write_text(text.replace(f'"{NEW}"', f'"{OLD}"'))
    return tmp_path / "work"


def test_starting_by_the_old_name_makes_the_folder_of_the_new_one(lab, tmp_path):
    done = lab("start", OLD, "--no-data", "--device", "virtual")
    assert done.returncode == 0, done.stderr
    assert f"Started '{NEW}'" in done.stdout
    assert (tmp_path / NEW / "README.md").is_file()
    assert not (tmp_path / OLD).exists()
    again = lab("start", OLD, "--no-data", "--device", "virtual")
    assert f"'{NEW}' was already started in this folder" in again.stdout


def test_a_workspace_of_the_old_name_goes_on_under_the_new_one(lab, old_workspace):
    assert lab(at=old_workspace).stdout.startswith(f"{NEW}: ")
    assert "Hint 1 of" in lab("hint", at=old_workspace).stdout
    assert lab("diagnose", at=old_workspace).returncode == 0
    assert lab("history", at=old_workspace).returncode == 0
    assert lab("reset", "--yes", at=old_workspace).returncode == 0
    again = lab("start", NEW, str(old_workspace), "--no-data")
    assert f"'{NEW}' was already started in this folder" in again.stdout
    other = lab("start", "resnet-latency", str(old_workspace), "--no-data")
    assert other.returncode == 2
    assert f"already holds the lab '{NEW}'" in other.stderr


def test_progress_under_the_old_name_counts_for_the_lab(lab, old_workspace, tmp_path):
    row = next(row for row in json.loads(lab("list", "--json").stdout) if row["lab"] == NEW)
    assert (row["state"], row["workspace"]) == ("started", str(old_workspace))
    assert f"cd {old_workspace}" in lab().stdout
    lab("hint", at=old_workspace)
    labs = json.loads((tmp_path / "home/progress.json").read_text())["labs"]
    assert [*labs] == [NEW], "one entry for the lab, under its present name"
    assert labs[NEW]["hints"] == 1


def test_authors_may_use_it_too(lab):
    rows = json.loads(lab("dev", "check", OLD, "--static", "--json").stdout)
    assert rows == [{"lab": NEW, "what": "files", "problems": []}]
