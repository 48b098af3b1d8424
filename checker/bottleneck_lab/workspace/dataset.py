"""The data sets that labs use, created by their generators in `datasets/`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from bottleneck_lab.catalog import Lab, find_dataset, load_labs
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.needs import require_packages
from bottleneck_lab.workspace.home import dataset_root, home

Report = Callable[[int, int], None]
"""Called with how many files are done, of how many."""


def is_made(name: str) -> bool:
    """Return True if the data set `name` is complete.

    Its manifest marks it incomplete while it is being created or after an interruption.
    """
    with suppress(OSError, ValueError, AttributeError):
        manifest = json.loads((dataset_root(name) / "manifest.json").read_bytes())
        return manifest.get("complete") is True
    return False


def missing_datasets() -> list[str]:
    """Return the names of data sets that a lab needs and that are not complete on this machine."""
    needed = {name for lab in load_labs().values() for name in lab.spec.datasets}
    return sorted(name for name in needed if not is_made(name))


def require_dataset(name: str) -> Path:
    """Return the folder of the data set `name`.

    Raises MachineError when it has not been made, or not to the end.
    """
    root = dataset_root(name)
    if is_made(name):
        return root
    if (root / "manifest.json").is_file():
        raise MachineError(
            f"The data set '{name}' in {root} is incomplete.",
            f"`lab data {name}` completes it; if it is running now, wait until it has finished.",
        )
    raise MachineError(
        f"The data set '{name}' is not on this machine yet.", f"`lab data {name}` creates it."
    )


def data_folder(lab: Lab) -> Path:
    """Return the folder of the lab's data set; of all data sets for a lab that needs none.

    Raises MachineError when the data set has not been made, or not to the end.
    """
    folders = [require_dataset(name) for name in lab.spec.datasets]
    return folders[0] if folders else home() / "datasets"


def make_dataset(name: str, report: Report, *, options: dict[str, int] | None = None) -> Path:
    """Make the data set `name`, or verify and complete the one that is there; return its folder.

    `options` are passed to the generator as `--name value`. Raises UsageError for a data set
    without a generator, MachineError with the last line of the generator's errors when it fails.
    """
    generator = find_dataset(name)
    if generator is None:
        raise UsageError(
            f"There is no data set called '{name}'.",
            "`lab data photos` creates the one that the labs use.",
        )
    require_packages("labs", PIL="Pillow")
    root = dataset_root(name)
    command = [sys.executable, str(generator), "--root", str(root), "--progress", "json"]
    for key, value in (options or {}).items():
        command += [f"--{key}", str(value)]
    with tempfile.TemporaryFile() as errors:
        status = _run(command, errors, report)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if status:
        last = lines[-1] if lines else f"it exited with status {status}"
        raise MachineError(
            f"The data set '{name}' could not be created: {last}",
            f"Fix that and run `lab data {name}` again; what has been created is kept.",
        )
    return root


def _run(command: list[str], errors: IO[bytes], report: Report) -> int:
    """Run the generator and return its exit status. Ctrl-C and any error end it with us."""
    # In a session of its own, so that the processes it starts can be ended with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
    )
    try:
        for line in process.stdout or ():
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                report(int(row["done"]), int(row["total"]))
        return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout:
            process.stdout.close()
