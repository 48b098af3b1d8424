"""`lab cohort runner`: measure what learners submit."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Annotated, Literal

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.logs import log_json
from bottleneck_lab.cohort.running.executors.base import Executor
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.executors.ray import RayExecutor
from bottleneck_lab.cohort.running.executors.slurm import SlurmExecutor
from bottleneck_lab.cohort.running.job import end_with
from bottleneck_lab.cohort.running.preflight import Preflight
from bottleneck_lab.cohort.running.runner import Runner, keep_lock
from bottleneck_lab.commands.cohort.options import (
    SHARED_USER,
    Folder,
    Gpus,
    NoCgroup,
    Quiet,
    Uids,
    Unsandboxed,
    parse_gpus,
)
from bottleneck_lab.commands.ui import say

EXAMPLE = "lab cohort runner --folder autumn-workshop --gpus 0,1"


def command(
    folder: Folder = Path(),
    executor: Annotated[
        Literal["local", "slurm", "ray"], typer.Option("--executor", help="Where checks run.")
    ] = "local",
    jobs: Annotated[
        int, typer.Option("--jobs", help="On a cluster: how many checks to run at once.")
    ] = 4,
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", help="An option for sbatch, such as --reservation=lab."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="This runner's name (default: the machine's).", show_default=False
        ),
    ] = None,
    gpus: Gpus = None,
    allow_unsandboxed: Unsandboxed = False,
    allow_no_cgroup: NoCgroup = False,
    uids: Uids = None,
    quiet: Quiet = 20.0,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Measure submissions until stopped. `lab cohort serve` starts a runner of its own."""
    log_json()
    if parent is not None:
        end_with(parent)
    users: list[int] = []
    indices = parse_gpus(gpus) if executor == "local" else []
    if executor == "local":  # on a cluster, each job checks its own node
        preflight = Preflight()
        preflight.check_containment(
            allow_unsandboxed=allow_unsandboxed, allow_no_cgroup=allow_no_cgroup
        )
        users = preflight.check_slot_users(
            uids, len(indices) + 1, allow_unsandboxed=allow_unsandboxed
        )
        preflight.finish("This machine cannot measure")
        if not users and parent is None:
            say(SHARED_USER, style="yellow", err=True)
    # A handler that only notes it: the loop stops between two steps, with leases given back.
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))
    label = name or socket.gethostname()
    with open_cohort(folder) as cohort:
        lock = keep_lock(cohort, label)
        try:
            engine: Executor
            if executor == "slurm":
                engine = SlurmExecutor(jobs, gpus=gpus != "", options=sbatch or [])
            elif executor == "ray":
                engine = RayExecutor(jobs, gpus=gpus != "")
            else:
                engine = LocalExecutor(cohort.folder / "slots", indices, uids=users)
            Runner(
                cohort,
                engine,
                label,
                sandbox_required=not allow_unsandboxed,
                limits_required=not allow_no_cgroup,
                quiet_s=quiet,
            ).run(lambda: bool(stopping))
        finally:
            os.close(lock)
