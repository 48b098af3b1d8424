"""Users for slots, where these tests are root and some Python can be read by everybody; and the job
that such a user runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bottleneck_lab.cohort.running.job import main
from bottleneck_lab.cohort.running.slot_users import as_user

from .fake_job import verdict_of

NOT_ROOT = "" if os.geteuid() == 0 else "only root can run a check as another user"
CHECKER = Path(__file__).parents[2] / "checker"


@dataclass
class Users:
    """Two users, the folder for theirs, one that everybody may write to, and a Python that they can
    run.
    """

    uids: list[int]
    root: Path
    shared: Path
    python: str


def _runs_checks(python: str | Path, uid: int) -> bool:
    """Return True if `uid` may run it, and read what it imports."""
    command = as_user(uid, [str(python), "-c", "import bottleneck_lab.cohort.running.job"])
    return subprocess.run(command, check=False, cwd="/", capture_output=True).returncode == 0


def _readable_python(folder: Path, uid: int) -> str | None:
    """This Python where `uid` may run checks with it, otherwise a virtual environment of the
    system's with the same packages; None where neither will do.
    """
    if _runs_checks(sys.executable, uid):
        return sys.executable
    system = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin")
    if system is None:
        return None
    subprocess.run([system, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    imported = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "same.pth").write_text("\n".join([*imported, str(CHECKER)]))
    python = folder / "venv" / "bin" / "python"
    return str(python) if _runs_checks(python, uid) else None


@contextmanager
def slot_users() -> Iterator[Users | None]:
    """None where no Python can be found for them."""
    first = 61000 + os.getpid() % 60 * 3
    folder = Path(tempfile.mkdtemp(prefix="lab-slots-"))
    folder.chmod(0o711)
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o777)
    try:
        python = _readable_python(folder, first)
        yield (
            Users([first, first + 1], folder / "slots", folder / "shared", python)
            if python
            else None
        )
    finally:
        shutil.rmtree(folder)


def _can_read(path: Path) -> bool:
    try:
        return bool(list(path.iterdir()) if path.is_dir() else path.read_bytes())
    except OSError:
        return False


def pry(lab, files: Path, device, **_):
    """A check that notes who runs it, and which of the paths in $BOTTLENECK_LAB_PRY_INTO it can
    read; it waits while there is no file `go`.
    """
    shared = Path(os.environ["BOTTLENECK_LAB_PRY_FROM"])
    mine = Path(tempfile.mkdtemp()) / "mine"
    mine.write_text("private")
    paths = json.loads(os.environ["BOTTLENECK_LAB_PRY_INTO"])
    noted = {
        "uids": os.getresuid(),
        "gids": os.getresgid(),
        "groups": os.getgroups(),
        "owner": files.stat().st_uid,
        "mine": str(mine),
        "files": str(files),
        "read": [path for path in [*paths, str(mine), str(files)] if _can_read(Path(path))],
    }
    note = shared / f"{os.getuid()}.json"
    note.with_suffix(".tmp").write_text(json.dumps(noted))
    note.with_suffix(".tmp").rename(note)
    end = time.monotonic() + 60
    while not (shared / "go").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return verdict_of(lab, files, device)


if __name__ == "__main__":
    main(pry)
