"""A real Slurm with one node on the loopback interface, started by the test: jobs run there, and killing its parts makes no second verdict."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from bottleneck_lab.cohort.executors.slurm import SlurmExecutor
from bottleneck_lab.cohort.store import tables

from ..processes import soon
from .fake_job import COMMAND
from .serving import free_port
from .test_runner import outcomes, overlaps, run_until, settled

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")

CONFIG = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=lab Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """Its controller and its node, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name: str) -> None:
        command = {"slurmctld": ["slurmctld", "-D"], "slurmd": ["slurmd", "-D"]}[name]
        with (self.folder / "out.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()


def ready() -> bool:
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False, timeout=20)
    return done.stdout.strip() in ("idle", "mixed", "allocated")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"Slurm is not here ({', '.join(missing) or 'its test starts it as root'}): apt-get install slurm-wlm munge"
        )
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    about = {"host": socket.gethostname(), "folder": folder, "user": "root"}
    ports = {"controller_port": free_port(), "node_port": free_port()}
    (folder / "slurm.conf").write_text(CONFIG.format(**about, **ports))
    munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    saved = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    found = Cluster(folder)
    with (folder / "out.log").open("ab") as log:
        found.processes["munged"] = subprocess.Popen(munge, stdout=log, stderr=log, start_new_session=True)
    try:
        assert soon((folder / "munge.socket").exists), (folder / "out.log").read_text()
        for name in ("slurmctld", "slurmd"):
            found.start(name)
        assert soon(ready), (folder / "out.log").read_text()[-2000:]
        yield found
    finally:
        for process in reversed(found.processes.values()):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.environ.pop("SLURM_CONF")
        if saved is not None:
            os.environ["SLURM_CONF"] = saved


def submit(room, count: int, seconds: float) -> None:
    for number in range(count):
        _, token = room.join(f"learner {number}")
        room.submit(token, f"# right {seconds} {number}\n")


def real_clock(room) -> None:
    room.cohort.database.clock = time.time
    room.clock.now = time.time()


@pytest.mark.usefixtures("cluster")
def test_checks_run_as_jobs_one_at_a_time_on_a_node(sqlite_room, tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_FAKE_LOG", str(tmp_path / "log"))
    submit(sqlite_room, 4, 0.3)
    real_clock(sqlite_room)
    run_until(sqlite_room.runner(executor=SlurmExecutor(4, command=COMMAND)), settled(sqlite_room), 120)
    assert outcomes(sqlite_room) == ["PASS"] * 4
    assert overlaps(tmp_path / "log") == []


@pytest.mark.usefixtures("cluster")
def test_a_job_that_is_cancelled_by_the_cluster_is_measured_again(sqlite_room):
    submit(sqlite_room, 1, 2)
    real_clock(sqlite_room)
    runner = sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND))
    runner.step()
    (lease,) = sqlite_room.rows(tables.leases)
    subprocess.run(["scancel", lease.job], check=True)
    run_until(runner, settled(sqlite_room), 120)
    assert outcomes(sqlite_room) == ["PASS"]
    assert [row.state for row in sqlite_room.rows(tables.leases)] == ["lost", "done"]


@pytest.mark.usefixtures("cluster")
def test_a_runner_that_starts_again_goes_on_with_the_clusters_jobs(sqlite_room):
    submit(sqlite_room, 1, 2)
    real_clock(sqlite_room)
    sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND)).step()
    second = sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND))
    second.recover()
    run_until(second, settled(sqlite_room), 120)
    assert outcomes(sqlite_room) == ["PASS"]
    assert [row.state for row in sqlite_room.rows(tables.leases)] == ["done"]


@pytest.mark.slow  # Slurm takes a minute to find that its node knows nothing of a job
def test_a_controller_that_is_killed_makes_no_second_verdict(sqlite_room, cluster):
    """Killed within seconds of a start, Slurm forgets the job, or runs it twice, or gives its number to another."""
    submit(sqlite_room, 2, 1)
    real_clock(sqlite_room)
    runner = sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND))
    runner.step()
    cluster.kill("slurmctld")
    runner.step()
    cluster.start("slurmctld")
    run_until(runner, settled(sqlite_room), 200)
    assert outcomes(sqlite_room) == ["PASS"] * 2
    assert sorted(row.submission for row in sqlite_room.rows(tables.verdicts)) == [1, 2]


@pytest.mark.slow
def test_killing_controller_and_node_makes_one_verdict_each(sqlite_room, cluster):
    submit(sqlite_room, 6, 1)
    real_clock(sqlite_room)
    runner = sqlite_room.runner(executor=SlurmExecutor(4, command=COMMAND))
    for name in ("slurmctld", "slurmd", "slurmctld"):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            runner.step()
            time.sleep(0.1)
        cluster.kill(name)
        cluster.start(name)
    run_until(runner, settled(sqlite_room), 400)
    assert sorted(row.submission for row in sqlite_room.rows(tables.verdicts)) == list(range(1, 7))
