"""What is taken of a workspace, and what is refused before anything runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.submission import MAX_FILE_BYTES, collect

EXAMPLE = Path(__file__).parents[3] / "docs" / "example"


@pytest.fixture
def workspace(lab, tmp_path) -> Path:
    return shutil.copytree(lab.path, tmp_path / "workspace")


def test_only_the_editable_files_are_taken_and_later_changes_are_not_seen(lab, workspace, tmp_path):
    (workspace / "smooth.py").write_text("mine")
    (workspace / "numpy.py").write_text("a trojan")
    collect(lab, workspace, tmp_path / "submission")
    (workspace / "smooth.py").write_text("changed meanwhile")
    assert [path.name for path in (tmp_path / "submission").iterdir()] == ["smooth.py"]
    assert (tmp_path / "submission" / "smooth.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("spoil", "reason", "words"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "tampered", "not a plain file"),
        (os.mkfifo, "tampered", "not a plain file"),
        (lambda path: None, "crashed", "is missing"),
        (lambda path: path.write_bytes(bytes(MAX_FILE_BYTES + 1)), "tampered", "may have 1048576"),
    ],
    ids=["link", "pipe", "nothing", "too-large"],
)
def test_what_is_no_small_plain_file_is_refused(lab, workspace, tmp_path, spoil, reason, words):
    entry = workspace / "smooth.py"
    entry.unlink()
    spoil(entry)
    with pytest.raises(LearnerFault, match=words) as caught:
        collect(lab, workspace, tmp_path / "submission")
    assert caught.value.reason == reason


def test_a_file_that_labs_share_by_a_link_is_a_file_of_the_submission(tmp_path):
    lab = find_lab("resnet-latency")
    shutil.copytree(lab.path, tmp_path / "workspace")
    collect(lab, tmp_path / "workspace", tmp_path / "submission")
    shared = tmp_path / "submission" / "weights.py"
    assert not shared.is_symlink()
    assert shared.read_bytes() == (lab.path / "weights.py").read_bytes()
