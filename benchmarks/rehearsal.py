"""The forecast of `lab cohort rehearse` beside a real run: 30 scripted learners, a real server and
a real runner.

    .venv/bin/python benchmarks/rehearsal.py [--learners 30] [--seed 1]
    .venv/bin/python benchmarks/rehearsal.py --table

The checks are stand-ins that take a known time, so that a run is over in three minutes: the room
works on a lab that needs the machine to itself, then on one whose checks run side by side. The
runner first measures a few checks of each, and the forecast rests on what it recorded.

`--table` prints the table of the instructors' guide: waits in a workshop of half a day, with the
seconds that checks of right and wrong work took in docs/measured/judged_work.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["BOTTLENECK_LAB_HOME"] = tempfile.mkdtemp(prefix="lab-rehearsal-")
os.environ["BOTTLENECK_LAB_CONTENT"] = os.environ["BOTTLENECK_LAB_HOME"] + "/content"

from markdown_tables import head, row
from tests.cohort.conftest import MINI, Room, opened_room
from tests.cohort.fake_job import COMMAND
from tests.cohort.serving import Process, serving

from bottleneck_lab.catalog import Device, find_lab, load_labs
from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.protocol import Submission
from bottleneck_lab.cohort.rehearsal.learners import Block, Script, lay_out, make_scripts
from bottleneck_lab.cohort.rehearsal.play import Machines, play
from bottleneck_lab.cohort.rehearsal.summary import quantile, waits_of
from bottleneck_lab.cohort.running.durations import Durations, load_durations
from bottleneck_lab.cohort.runsheet import make_run_sheet
from bottleneck_lab.cohort.store import tables

JUDGED = Path(__file__).resolve().parents[1] / "docs" / "measured" / "judged_work.jsonl"
FOLDER = Path(os.environ["BOTTLENECK_LAB_HOME"])
SLOTS = 2
SECONDS = {"slow": 1.6, "wrong": 3.0}
"""How long the stand-ins take, without the process around them."""
BLOCKS = [Block("slow", "cpu", 0.0, 75.0), Block("wrong", "virtual", 75.0, 150.0)]
TRIES = 1.6
RUNNER = f"""
import sys
from pathlib import Path
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.running.dispatch import LocalDispatcher
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.runner import Conditions, Runner
with open_cohort(Path(sys.argv[1])) as cohort:
    executor = LocalExecutor(
        cohort.folder / "slots", [], machine={SLOTS}, command={COMMAND!r}
    )
    dispatcher = LocalDispatcher(cohort, "runner")
    conditions = Conditions(sandbox_required=False, limits_required=False)
    Runner(dispatcher, executor, "runner", cohort.jobs, conditions).run(lambda: False)
"""


def make_content() -> None:
    """Lay out the miniature course, with a lab whose figures are modelled."""
    shutil.copytree(MINI, FOLDER / "content")
    file = FOLDER / "content" / "labs" / "wrong" / "lab.toml"
    text = file.read_text().replace('measure = "speedup"', 'measure = "training"')
    file.write_text(text + "[devices.virtual]\ncriteria = []\n")


def submission(block: Block, passes: bool, mark: str) -> Submission:
    """Return a stand-in's submission."""
    text = f"# {'right' if passes else 'wrong'} {SECONDS[block.lab]}\n# {mark}\n"
    lab = find_lab(block.lab)
    files = {"work.py": text.encode()}
    return Submission(f"rehearsal-{mark}", lab.slug, lab.content_hash(), block.device, files)


def learn(url: str, token: str, script: Script, start: float) -> None:
    """Do what a script says, in real time."""
    client = Client(url, token)
    for block, tries in zip(script.blocks, script.tries, strict=True):
        for number, one in enumerate(tries):
            at = max(time.time(), start + block.begins) + one.think_s
            if at > start + block.ends:
                break
            time.sleep(max(0.0, at - time.time()))
            mark = f"{script.name}-{block.lab}-{number}".replace(" ", "-")
            standing = client.standing(
                client.submit(submission(block, one.passes, mark)).receipt.submission
            )
            while standing.state in ("queued", "running"):
                standing = client.standing(standing.submission, standing.version, 20)


def record_durations(room: Room) -> None:
    """Have the runner measure six checks of each lab, as many at once as it may."""
    tokens = [room.join(f"calibration {number}")[1] for number in range(6)]
    for block in BLOCKS:
        for number, token in enumerate(tokens):
            offer = submission(block, passes=True, mark=f"calibration-{block.lab}-{number}")
            room.intake.offer(token, offer).result(20)
        while any(row.state in ("queued", "running") for row in room.rows(tables.submissions)):
            time.sleep(0.2)
        time.sleep(5.1)  # the interval between two submissions of a learner


def waits_in(room: Room, since: float) -> dict[str, list[float]]:
    """Return how long each submission since then waited for its check, by lab."""
    taken = {lease.submission: lease.taken for lease in room.rows(tables.leases)}
    waits: dict[str, list[float]] = {block.lab: [] for block in BLOCKS}
    for submission in room.rows(tables.submissions):
        if submission.received >= since:
            waits[submission.lab].append(taken[submission.id] - submission.received)
    return waits


def figures_of(waits: dict[str, list[float]], ended: float) -> dict[str, float]:
    """Return what is compared, by name; all but the submissions in seconds."""
    figures = {"until the last verdict": ended, "submissions": sum(map(len, waits.values()))}
    for lab, own in waits.items():
        figures[f"{lab}: mean wait"] = mean(own)
        figures[f"{lab}: 9 of 10 within"] = quantile(own, 0.9)
        figures[f"{lab}: longest"] = max(own)
    return figures


def forecast_figures(scripts: list[Script], durations: Durations) -> dict[str, float]:
    """Return the figures of a forecast."""
    outcomes = play(scripts, Machines(1, 0, SLOTS), durations)
    waits = {
        block.lab: waits_of([check for check in outcomes.checks if check.lab == block.lab])
        for block in BLOCKS
    }
    return figures_of(waits, outcomes.ended)


def compare(scripts: list[Script], before: Durations, room: Room, start: float) -> None:
    """Print the real run between two forecasts: from what was recorded before, and afterwards.

    Both rest on the same scripts. If other programs slow down checks, only the second can know.
    """
    during = {pair: seconds[6:] for pair, seconds in load_durations().items()}
    for pair, seconds in before.items():
        print(f"{pair[0]}: {mean(seconds):.2f} s a check before, {mean(during[pair]):.2f} s in it")
    ended = max(lease.ended for lease in room.rows(tables.leases)) - start
    real = figures_of(waits_in(room, start), ended)
    first, second = forecast_figures(scripts, before), forecast_figures(scripts, during)
    ratios = ["forecast / real", "by the run's own durations"]
    print(head(["figure", "forecast", "real run", *ratios]))
    for name, value in real.items():
        cells = (f"{first[name]:.1f}", f"{value:.1f}", f"{first[name] / value:.2f}")
        print(row([name, *cells, f"{second[name] / value:.2f}"]))


def print_table() -> None:
    """Forecast half a day with the labs of the course, for rooms and machines of several sizes."""
    os.environ.pop("BOTTLENECK_LAB_CONTENT")
    load_labs.cache_clear()
    durations: defaultdict[tuple[str, Device], list[float]] = defaultdict(list)
    for line in JUDGED.read_text().splitlines():
        judged = json.loads(line)
        durations[judged["work"]["lab"], judged["work"]["device"]] += judged["seconds"]
    labs = list(load_labs().values())
    begins = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
    chosen = [find_lab(slug) for slug in make_run_sheet("half-day", labs, begins).labs]
    blocks = lay_out(chosen, gpus=0)
    for block in blocks:
        seconds = durations[block.lab, block.device]
        print(f"{block.lab} on {block.device}: a check takes {median(seconds):.0f} s")
    print(head(["learners", "one machine", "two machines", "four machines"]))
    for learners in (10, 30, 60):
        scripts = make_scripts(blocks, learners, 2.5, seed=1)
        cells = []
        for count in (1, 2, 4):
            waits = waits_of(play(scripts, Machines(count, 0, SLOTS), durations).checks)
            cells.append(f"{quantile(waits, 0.9) / 60:.0f} min, at most {max(waits) / 60:.0f} min")
        print(row([learners, *cells]), flush=True)


def main() -> None:
    """Record durations, forecast, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print_table()
        return
    make_content()
    with opened_room(FOLDER / "cohort") as room:
        room.cohort.database.clock = room.clock = time.time
        with serving(room.cohort.folder) as (port, _):
            runner = Process(RUNNER, str(room.cohort.folder), log=FOLDER / "runner.log")
            try:
                record_durations(room)
                scripts = make_scripts(BLOCKS, options.learners, TRIES, options.seed)
                before = load_durations()
                tokens = [room.join(script.name)[1] for script in scripts]
                start = time.time()
                threads = [
                    threading.Thread(
                        target=learn, args=(f"http://127.0.0.1:{port}", token, script, start)
                    )
                    for token, script in zip(tokens, scripts, strict=True)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            finally:
                runner.kill()
            compare(scripts, before, room, start)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
