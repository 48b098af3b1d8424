"""Every export of a course of 100 learners and 12 labs, each submission's signature checked.

.venv/bin/python benchmarks/cohort_exports.py [--learners 100] [--labs 12] [--attempts 3]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
MINI = Path(__file__).resolve().parents[1] / "tests" / "integration" / "mini"


def course(folder: Path, labs: int) -> None:
    """A course of so many copies of one miniature lab."""
    slugs = [f"lab-{number:02}" for number in range(labs)]
    for slug in slugs:
        shutil.copytree(MINI / "labs" / "slow", folder / "labs" / slug)
        shutil.copytree(MINI / "solutions" / "slow", folder / "solutions" / slug)
    (folder / "labs" / "course.toml").write_text(
        f'title = "Many"\n[[stages]]\nname = "only"\nlabs = {slugs}\n'
    )


def fill(room, learners: int, attempts: int) -> int:
    """Submissions with a signed verdict each, put into the database as a runner would; how many."""
    from tests.cohort.fake_job import verdict_of

    from bottleneck_lab.catalog import load_labs
    from bottleneck_lab.cohort.running import leases
    from bottleneck_lab.cohort.settings import change_settings
    from bottleneck_lab.grading.attest import sign

    key, done = room.cohort.key(), 0
    with room.cohort.database.writing() as connection:
        change_settings(connection, min_interval_s=0, max_waiting=1000)
    for number in range(learners):
        _, token = room.join(f"learner {number}")
        submissions = [
            room.submission(f"# right {number} {attempt}\n", lab=slug)
            for slug in load_labs()
            for attempt in range(attempts)
        ]
        for answer in [room.intake.offer(token, one) for one in submissions]:
            answer.result(30)
        with room.cohort.database.writing() as connection:
            while lease := leases.claim(
                connection, "r", ("cpu",), lambda _one: "cpu0", room.clock()
            ):
                lab = load_labs()[lease.lab]
                verdict = msgspec.structs.replace(
                    verdict_of(lab, lab.path, "cpu"), binding=lease.binding
                )
                document = msgspec.json.encode(sign(verdict, key)).decode()
                leases.finish(
                    connection, lease.nonce, document, key.public_key(), "benchmark", room.clock()
                )
                done += 1
    return done


def main() -> None:
    """One line an export; the first pays for checking the signatures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--labs", type=int, default=12)
    parser.add_argument("--attempts", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BOTTLENECK_LAB_CONTENT"] = str(Path(folder) / "content")
        course(Path(folder) / "content", options.labs)
        from tests.cohort.conftest import opened_room

        from bottleneck_lab.cohort.grading.exports import EXPORTS, export_grades

        with opened_room(Path(folder) / "cohort") as room:
            count = fill(room, options.learners, options.attempts)
            print(f"{options.learners} learners x {options.labs} labs, {count} signed verdicts:")
            for export in EXPORTS.values():
                began = time.perf_counter()
                with room.cohort.database.reading() as connection:
                    data = export_grades(connection, room.cohort, export)
                took_s = time.perf_counter() - began
                print(f"  {export.name:9} {took_s:5.2f} s  {len(data) / 1000:8.0f} KB")


if __name__ == "__main__":
    main()
