"""200 queued checks over 4 slots of an executor: does any slot ever do two at once, does each get
one verdict, is everybody served in turn.

    .venv/bin/python benchmarks/cohort_queue.py [--executor local|slurm|ray] [--checks 200] [--slots
    4] [--seconds 0.05]

For Slurm a controller and as many nodes as slots are started on this machine (as root), for Ray a
cluster of as many CPUs.

The check itself is a stand-in that takes a known time, so that what is left is the overhead of
queue, lease, process, signature and record.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
MINI = Path(__file__).resolve().parents[1] / "tests" / "integration" / "mini"
os.environ["BOTTLENECK_LAB_CONTENT"] = str(MINI)
os.environ["BOTTLENECK_LAB_HOME"] = tempfile.mkdtemp(prefix="lab-home-")

from tests.cohort.conftest import opened_room
from tests.cohort.fake_job import COMMAND
from tests.cohort.slurm import slurm_cluster
from tests.cohort.test_runner import run_until, settled

from bottleneck_lab.cohort.running.executors.base import Executor
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.executors.ray import RayExecutor
from bottleneck_lab.cohort.running.executors.slurm import SlurmExecutor
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables

LEARNERS = 10


@contextmanager
def executor_of(kind: str, room, folder: Path, slots: int) -> Iterator[Executor]:
    """The executor, with the cluster that it needs."""
    if kind == "local":
        yield LocalExecutor(room.cohort.folder / "slots", [], machine=slots, command=COMMAND)
    elif kind == "slurm":
        (folder / "slurm").mkdir()
        with slurm_cluster(folder / "slurm", slots):
            yield SlurmExecutor(slots, command=COMMAND)
    else:
        import ray

        ray.init(
            address="local",
            num_cpus=slots,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield RayExecutor(slots, command=COMMAND)
        ray.shutdown()


def main() -> None:
    """Print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executor", choices=["local", "slurm", "ray"], default="local")
    parser.add_argument("--checks", type=int, default=200)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.05)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened_room(Path(folder) / "cohort") as room:
        room.cohort.database.clock = room.clock = time.time
        os.environ["BOTTLENECK_LAB_FAKE_LOG"] = str(Path(folder) / "log")
        with room.cohort.database.writing() as connection:
            change_settings(connection, min_interval_s=0, max_waiting=options.checks)
        tokens = [room.join(f"learner {number}")[1] for number in range(LEARNERS)]
        per_learner = options.checks // LEARNERS
        # The first learner submits everything before the second submits anything.
        for token in tokens:
            for number in range(per_learner):
                submission = room.submission(f"# right {options.seconds} {token[:6]} {number}\n")
                room.intake.offer(token, submission).result(30)
        with executor_of(options.executor, room, Path(folder), options.slots) as executor:
            began = time.perf_counter()
            runner = room.runner(executor=executor, machine=options.slots)
            run_until(runner, settled(room), 1800)
            report(room, time.perf_counter() - began, options)


def report(room, wall_s: float, options: argparse.Namespace) -> None:
    """Overlaps on a slot, verdicts a submission, fairness, overhead."""
    leases = room.rows(tables.leases)
    overlaps = sum(
        one.slot == other.slot and one.taken < other.ended and other.taken < one.ended
        for at, one in enumerate(leases)
        for other in leases[at + 1 :]
    )
    verdicts = [row.submission for row in room.rows(tables.verdicts)]
    owner = {row.id: row.person for row in room.rows(tables.submissions)}
    order = [owner[lease.submission] for lease in sorted(leases, key=lambda lease: lease.taken)]
    unfair = max(
        abs(order[:at].count(person) - order[:at].count(other))
        for at in range(0, len(order), LEARNERS)
        for person in set(order)
        for other in set(order)
    )
    print(
        f"{len(verdicts)} verdicts of {options.checks} submissions, {len(set(verdicts))} different;"
        f" {overlaps} overlaps on a slot"
    )
    print(f"after every round of {LEARNERS}, learners had been served at most {unfair} apart")
    work_s = options.checks * options.seconds / options.slots
    overhead_ms = 1000 * (wall_s - work_s) * options.slots / options.checks
    print(
        f"{wall_s:.1f} s in all, {overhead_ms:.0f} ms of overhead a check on each of"
        f" {options.slots} slots"
    )
    log = [
        json.loads(line)
        for line in Path(os.environ["BOTTLENECK_LAB_FAKE_LOG"]).read_text().splitlines()
    ]
    places = {line["slot"] for line in log}
    together = sum(
        one["slot"] == other["slot"]
        and one["began"] < other["ended"]
        and other["began"] < one["ended"]
        for at, one in enumerate(log)
        for other in log[at + 1 :]
        if options.executor == "slurm"
    )
    nodes = (
        f" on {len(places)} nodes, {together} times beside another on the same"
        if options.executor == "slurm"
        else ""
    )
    print(f"the stand-in ran {len(log)} times{nodes}")


if __name__ == "__main__":
    main()
