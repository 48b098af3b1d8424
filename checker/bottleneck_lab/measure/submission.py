"""Collect what is graded: the learner's editable files and pristine copies of everything else, in a
fresh folder.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from bottleneck_lab.catalog import Lab
from bottleneck_lab.measure.faults import LearnerFault

MAX_FILE_BYTES = 1 << 20


def collect(lab: Lab, workspace: Path, folder: Path) -> str:
    """Copy the lab's files into `folder`, the editable ones from `workspace`, and return the
    submission's hash.

    Nothing else in the workspace is taken, so nothing there can stand in for a module, a test or
    the checker. Raises LearnerFault for an editable file that is missing, is a link, or is larger
    than 1 MiB.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in lab.spec.files:
        source = workspace / name if name in lab.spec.editable else lab.path / name
        if name in lab.spec.editable:
            _require_plain(source, name)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target, follow_symlinks=name not in lab.spec.editable)
    return lab.code_hash(folder)


def collect_pristine(lab: Lab, folder: Path, overlay: Path | None = None) -> None:
    """Copy the shipped files, or those of `overlay` (a solution or variant) where it has them."""
    shutil.copytree(lab.path, folder, dirs_exist_ok=True)
    for name in lab.spec.editable:
        if overlay is not None and (overlay / name).is_file():
            shutil.copyfile(overlay / name, folder / name)


def _require_plain(source: Path, name: str) -> None:
    """Raise LearnerFault for an editable file that is missing, a link, or too large."""
    try:
        status = source.lstat()
    except OSError as error:
        raise LearnerFault(
            "crashed", f"{name} is missing from the workspace; `lab reset` restores it."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise LearnerFault(
            "tampered", f"{name} is not a plain file; links and devices are not graded."
        )
    if status.st_size > MAX_FILE_BYTES:
        raise LearnerFault(
            "tampered",
            f"{name} has {status.st_size} bytes; an edited file may have {MAX_FILE_BYTES}.",
        )
