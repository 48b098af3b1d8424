"""A real Slurm on the loopback interface: a controller, and nodes that are processes of this
machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..processes import ends_with_us, soon
from .serving import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")

CONFIG = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
JobRequeue=1
{nodes}
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Explain why no Slurm can be started here; empty where one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"Slurm is not here ({', '.join(absent)}): apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "Slurm is started as root"


class Cluster:
    """Its controller and its nodes (`node1`, `node2`, …), which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name: str) -> None:
        self.run(name, ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name])

    def run(self, name: str, command: list[str]) -> None:
        with (self.folder / "out.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ends_with_us(command), stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def resume_drained(self) -> None:
        """Do an administrator's part: Slurm drains a node on which it finds one job twice."""
        for name in self.processes:
            if name.startswith("node"):
                ask = ["sinfo", "-hN", "-n", name, "-o", "%T"]
                state = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
                if state.startswith("drain"):
                    resume = ["scontrol", "update", f"nodename={name}", "state=resume"]
                    subprocess.run(resume, check=False)

    def said(self) -> str:
        return (self.folder / "out.log").read_text()[-2000:]

    def close(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(nodes: int) -> bool:
    done = subprocess.run(
        ["sinfo", "-hN", "-o", "%T"], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.split() == ["idle"] * nodes


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 1) -> Iterator[Cluster]:
    """A cluster that answers, with everything of it in `folder`; SLURM_CONF names it as long as it
    lives.
    """
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host, names = socket.gethostname(), [f"node{number + 1}" for number in range(nodes)]
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2"
        for name in names
    ]
    about = {"host": host, "folder": folder, "port": free_port(), "nodes": "\n".join(lines)}
    (folder / "slurm.conf").write_text(CONFIG.format(**about))
    munge = [
        "munged",
        "--foreground",
        "--force",
        f"--key-file={folder}/munge.key",
        f"--socket={folder}/munge.socket",
    ]
    saved = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    cluster = Cluster(folder)
    cluster.run(
        "munged",
        [*munge, *(f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed"))],
    )
    try:
        assert soon((folder / "munge.socket").exists), cluster.said()
        for name in ("slurmctld", *names):
            cluster.start(name)
        assert soon(lambda: _ready(nodes)), cluster.said()
        yield cluster
    finally:
        cluster.close()
        os.environ.pop("SLURM_CONF")
        if saved is not None:
            os.environ["SLURM_CONF"] = saved
