"""`lab cohort runner`: measure what learners submit."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.logs import log_json
from bottleneck_lab.cohort.running.dispatch import Dispatcher, LocalDispatcher
from bottleneck_lab.cohort.running.executors.base import Executor
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.executors.ray import RayExecutor
from bottleneck_lab.cohort.running.executors.slurm import SlurmExecutor
from bottleneck_lab.cohort.running.job import end_with
from bottleneck_lab.cohort.running.preflight import Preflight
from bottleneck_lab.cohort.running.remote import RemoteDispatcher
from bottleneck_lab.cohort.running.runner import Conditions, Runner, only_runner
from bottleneck_lab.commands.cohort.options import (
    SHARED_USER,
    Folder,
    Gpus,
    Measuring,
    NoCgroup,
    Quiet,
    Slots,
    Uids,
    Unsandboxed,
    default_slots,
    parse_gpus,
)
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.home import home

EXAMPLE = "lab cohort runner --server http://192.168.1.20:8321 --token TOKEN"
TOKEN = "BOTTLENECK_LAB_RUNNER_TOKEN"


_Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="URL of a server on another machine. Needs --token.",
        show_default=False,
    ),
]
_Token = Annotated[
    str,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar=TOKEN,
        help="The runners' token, which `lab cohort token` prints.",
        show_default=False,
    ),
]
_Executor = Annotated[
    Literal["local", "slurm", "ray"], typer.Option("--executor", help="Where checks run.")
]
_Jobs = Annotated[
    int, typer.Option("--jobs", metavar="N", help="On a cluster: how many checks to run at once.")
]
_Sbatch = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch", metavar="OPTION", help="An option for sbatch, such as --reservation=lab."
    ),
]
_Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="This runner's name (default: the machine's).",
        show_default=False,
    ),
]
_Parent = Annotated[int | None, typer.Option("--parent", metavar="PID", hidden=True)]


def command(
    folder: Folder = Path(),
    server: _Server = None,
    token: _Token = "",
    executor: _Executor = "local",
    jobs: _Jobs = 4,
    sbatch: _Sbatch = None,
    name: _Name = None,
    gpus: Gpus = None,
    slots: Slots = None,
    allow_unsandboxed: Unsandboxed = False,
    allow_no_cgroup: NoCgroup = False,
    uids: Uids = None,
    quiet: Quiet = 20.0,
    parent: _Parent = None,
) -> None:
    """Measure submissions until stopped. `lab cohort serve` starts a runner of its own.

    Exit code 4 if this machine cannot measure, or if other runners hold all of its slots.
    """
    if server is not None and (executor != "local" or not token):
        raise UsageError(
            "--server needs --token, and works only with --executor local.",
            "`lab cohort token` on the server's machine prints the whole command.",
        )
    log_json()
    if parent is not None:
        end_with(parent)
    measuring = Measuring(
        gpus, slots or default_slots(), uids, allow_unsandboxed, allow_no_cgroup, quiet
    )
    users: list[int] = []
    if executor == "local":  # on a cluster, each job checks its own node
        preflight = Preflight()
        users = measuring.choose_users(preflight)
        preflight.finish("This machine cannot measure")
        if not users and parent is None:
            say(SHARED_USER, style="yellow", err=True)
    # A handler that only notes it: the loop stops between two steps, with leases given back.
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))
    label = name or socket.gethostname()
    with _dispatcher(folder, server, token, label) as (dispatcher, own), only_runner(own, label):
        engine: Executor
        if executor == "slurm":
            engine = SlurmExecutor(jobs, gpus=gpus != "", options=sbatch or [])
        elif executor == "ray":
            engine = RayExecutor(jobs, gpus=gpus != "")
        else:
            # Locks of the machine, not of the cohort: two cohorts may be measured on it.
            engine = LocalExecutor(
                home() / "slots", parse_gpus(gpus), machine=measuring.slots, uids=users
            )
        conditions = Conditions(not allow_unsandboxed, not allow_no_cgroup, quiet)
        Runner(dispatcher, engine, label, own / "jobs", conditions).run(
            lambda: bool(stopping), 0.2 if server is None else 1.0
        )


@contextmanager
def _dispatcher(
    folder: Path, server: str | None, token: str, name: str
) -> Iterator[tuple[Dispatcher, Path]]:
    """Open what hands out work, and the folder in which the runner keeps its lock and its jobs."""
    if server is None:
        with open_cohort(folder) as cohort:
            yield LocalDispatcher(cohort, name), cohort.folder
        return
    own = home() / "runners" / urlsplit(server).netloc.replace(":", "-")
    (own / "jobs").mkdir(parents=True, exist_ok=True, mode=0o700)
    yield RemoteDispatcher(server, token, name), own
