"""Real checks for a rehearsal: shipped work and solution of each lab, by the runner's own job."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex

from bottleneck_lab.catalog import Lab, find_lab
from bottleneck_lab.cohort.rehearsal.learners import Block
from bottleneck_lab.cohort.running.durations import keep_duration
from bottleneck_lab.cohort.running.executors.local import JOB
from bottleneck_lab.cohort.running.job import Job, read_result, write_job
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap


def measure_durations(
    blocks: Sequence[Block],
    progress: Callable[[str, float], None],
    command: Sequence[str] = JOB,
) -> None:
    """Check each lab's shipped files and its solution on this machine, and keep how long it took.

    Raises MachineError if a check comes to no verdict.
    """
    for number, block in enumerate(blocks):
        lab = find_lab(block.lab)
        for half, source in enumerate((lab.path, lab.solution)):
            what = f"checking {lab.slug} on {block.device}"
            progress(what, (2 * number + half) / (2 * len(blocks)))
            keep_duration(lab.slug, block.device, _measure(lab, block, source, command))


def _measure(lab: Lab, block: Block, source: Path, command: Sequence[str]) -> float:
    """Return how long a check of the files in `source` takes, s."""
    files = {name: (source / name).read_bytes() for name in lab.spec.editable}
    with tempfile.TemporaryDirectory(prefix="lab-rehearsal-") as name:
        folder, began = Path(name, "job"), time.monotonic()
        job = Job(
            token_hex(8),
            lab.slug,
            lab.content_hash(),
            block.device,
            sandbox_required=bubblewrap() is not None,
            limits_required=False,
        )
        write_job(folder, job, files, {})
        subprocess.run(
            [*command, str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        result = read_result(folder)
        if result is None or result.verdict is None:
            problem = result.problem if result else "the job ended without a result"
            raise MachineError(
                f"A check of {lab.slug} on {block.device} came to no verdict: {problem}",
                "`lab doctor` shows what is missing here.",
            )
        return time.monotonic() - began
