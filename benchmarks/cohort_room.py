"""A whole room: 300 scripted learners submit over HTTP, while a real Chromium shows the pages of
twelve more learners and of the instructor.

    .venv/bin/python benchmarks/cohort_room.py [--learners 300] [--browsers 12] [--kills 0]

Checks are stand-ins: a Python process that sleeps for `--check-s` seconds and says what the file
asks for. So a run is over in minutes, and its load on the server is that of a far larger room.

Every other scripted learner submits wrong work; every third sends the submission again, as a
client does after a lost answer. Learners in a browser join, hand in a wrong and then a right file
through the form (every other one by a double click), read each verdict from the page, and call for
help. The instructor keeps the room open, walks through the other pages, and answers the calls.
With `--kills`, server and runner are killed (`kill -9`) and started again that many times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["BOTTLENECK_LAB_HOME"] = tempfile.mkdtemp(prefix="lab-room-")
os.environ["BOTTLENECK_LAB_CONTENT"] = os.environ["BOTTLENECK_LAB_HOME"] + "/content"

import psutil
from markdown_tables import head, row
from playwright.async_api import Browser, Error, Page, async_playwright
from tests.chromium import FLAGS
from tests.cohort.conftest import MINI, Room, opened_room
from tests.cohort.fake_job import COMMAND
from tests.cohort.serving import RUNNER, Process, serving, wait_until_it_answers
from tests.tools import browser_path

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.members import joining, people, sessions
from bottleneck_lab.cohort.protocol import Join, Submission
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.structs import inspect_structs

FOLDER = Path(os.environ["BOTTLENECK_LAB_HOME"])
LABS = [f"lab-{number:02}" for number in range(1, 13)]
SLOTS = 4
WORDS = ("wrong", "right")
"""What a learner in a browser submits, one after the other."""
OUTCOMES = {"wrong": "FAIL", "right": "PASS"}
THINK_S = 6.0, 30.0
"""Between a verdict and the next submission: at least, at most."""
STEP_MS = 30_000.0
"""After this, whoever pressed a button takes the server to be down."""
LIMIT_S = 540.0
"""The run is given up after this."""


class Log:
    """What was measured and what went wrong, from all threads."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        """Handles of submissions with a receipt, or on their learner's page."""
        self.shown: dict[str, tuple[str, str]] = {}
        """By a submission's handle: its word, and the outcome that its learner was shown."""
        self.peaks: dict[str, float] = {}
        """Most memory of a program, MiB."""
        self.cpu: dict[str, float] = {}
        """Seconds of a core that a program used, since it was last started."""

    def again(self, error: Error) -> None:
        """Note why something in the browser is done again."""
        self.retries[error.message.splitlines()[0].split(" at http")[0]] += 1

    def print(self) -> None:
        """Print latencies as a table, then memory and errors."""
        print(head(["what", "times", "median, s", "95th percentile, s", "longest, s"]))
        for name, seconds in self.seconds.items():
            ordered = sorted(seconds)
            high = ordered[int(0.95 * len(ordered))]
            figures = [f"{value:.2f}" for value in (median(ordered), high, ordered[-1])]
            print(row([name, len(ordered), *figures]))
        print("most memory:", ", ".join(f"{name} {mb:.0f} MiB" for name, mb in self.peaks.items()))
        print("seconds of a core:", {name: round(used, 1) for name, used in self.cpu.items()})
        print("errors:", dict(self.errors) or "none")
        print("tried again:", dict(self.retries) or "nothing")


def make_content() -> None:
    """Lay out a course of twelve labs, each the miniature course's `slow`."""
    for slug in LABS:
        for part in ("labs", "solutions"):
            shutil.copytree(MINI / part / "slow", FOLDER / "content" / part / slug)
    course = f'title = "Room"\n[[stages]]\nname = "only"\nlabs = {json.dumps(LABS)}\n'
    (FOLDER / "content" / "labs" / "course.toml").write_text(course)


class Visit:
    """A page of the browser: how long its navigations take, and what it complains of."""

    def __init__(self, page: Page, base: str, log: Log) -> None:
        self.page, self._base, self._log = page, base, log
        page.set_default_timeout(300_000)
        page.on("pageerror", lambda error: self._count(f"script: {error}"))
        page.on("response", lambda reply: reply.status >= 400 and self._count(f"{reply.status}"))

    def _count(self, what: str) -> None:
        self._log.errors[f"a page: {what}"] += 1

    async def go(self, path: str, name: str) -> None:
        """Open a page, again and again while the server is down."""
        while True:
            try:
                await self.page.goto(self._base + path)
                break
            except Error as error:
                self._log.again(error)
                await asyncio.sleep(1)
        await self.note(name)

    async def note(self, name: str) -> None:
        """Note how long the navigation to this page took, as the browser itself measured it."""
        took = await self.page.evaluate(
            "new Promise(done => setTimeout(() => "
            "done(performance.getEntriesByType('navigation')[0].duration)))"
        )
        self._log.seconds[f"{name}, until loaded"].append(took / 1000)


@dataclass
class Workshop:
    """What all of its people share."""

    room: Room
    url: str
    code: str
    check_s: float
    spread_s: float
    log: Log
    instructor: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the instructor presses a button: a second press would end the first."""

    def work_of(self, word: str, mark: str) -> bytes:
        """Return a file whose stand-in check takes `check_s` seconds; no two are alike."""
        return f"# {word} {self.check_s}\n# {mark}\n".encode()

    def learn(self, number: int) -> None:
        """Do what a scripted learner does, from joining to the last verdict."""
        draw = random.Random(number)
        time.sleep(draw.uniform(0, self.spread_s))
        try:
            joined = Client(self.url).join(Join(self.code, f"scripted {number:03}"))
            # Whoever is told that the server does not answer runs the same command again.
            client = Client(self.url, joined.token, patience_s=LIMIT_S)
            lab = find_lab(draw.choice(LABS))
            word = WORDS[number % len(WORDS)]
            mark = f"scripted-{number:03}-{word}"
            files = {"work.py": self.work_of(word, mark)}
            self.submit(client, Submission(mark, lab.slug, lab.content_hash(), "cpu", files))
        except Exception as error:
            self.log.errors[f"a scripted learner: {error}"] += 1

    def submit(self, client: Client, submission: Submission) -> None:
        """Submit, every third one twice, and wait for the verdict."""
        began = time.perf_counter()
        handle = client.submit(submission).receipt.submission
        self.log.acknowledged.add(handle)
        self.log.seconds["a submission over HTTP, until its receipt"].append(
            time.perf_counter() - began
        )
        again = int(submission.key.split("-")[1]) % 3 == 0
        if again and client.submit(submission).receipt.submission != handle:
            self.log.errors["a submission sent again became another"] += 1
        standing = client.standing(handle)
        while standing.state in ("queued", "running"):
            standing = client.standing(handle, standing.version, 20)
        self.log.shown[handle] = submission.key.rpartition("-")[2], str(standing.outcome)

    async def learn_in_browser(self, browser: Browser, number: int, open_room: Visit) -> None:
        """Join, hand in, read each verdict, and call for help, as a person does."""
        draw = random.Random(f"browser {number}")
        await asyncio.sleep(draw.uniform(0, self.spread_s))
        name, lab = f"browser {number:02}", draw.choice(LABS)
        page = await (await browser.new_context()).new_page()
        visit = Visit(page, self.url, self.log)
        await visit.go(f"/join/{self.code}", "the form for joining")
        await page.fill("#name", name)
        await page.click("button:has-text('Join')")
        await page.wait_for_url("**/me")
        for count, word in enumerate(WORDS, 1):
            file = FOLDER / f"{name}-{word}.py"
            file.write_bytes(self.work_of(word, file.name))
            while await page.locator("[data-submission]").count() < count:
                await self.hand_in(visit, lab, file, twice=number % 2 == 0)
            await self.read_verdict(visit, word)
            await asyncio.sleep(draw.uniform(*THINK_S))
        await self.call_for_help(visit, name, open_room)
        await page.context.close()

    async def hand_in(self, visit: Visit, lab: str, file: Path, *, twice: bool) -> None:
        """Choose a file, answer the questions, and press the button; end on the learner's page."""
        page = visit.page
        await visit.go(f"/me/labs/{lab}", "a lab's page")
        await page.set_input_files("#file-1", file)
        await page.select_option("#answer-cause", "the loop in Python")
        await page.fill("#answer-gain", "3x")
        button = page.locator("button:has-text('Hand in')")
        try:
            await (button.dblclick() if twice else button.click())
            await page.wait_for_url("**/me", timeout=STEP_MS)
            await visit.note("handing in a file, with the page after it")
        except Error as error:  # the server is down: whoever is not sure looks at their page
            self.log.again(error)
            await visit.go("/me", "a learner's page")

    async def read_verdict(self, visit: Visit, word: str) -> None:
        """Wait until the learner's page shows the verdict, and look at the submission's page."""
        row = visit.page.locator("[data-submission]").first
        handle = await row.get_attribute("data-submission")
        self.log.acknowledged.add(handle)
        tag = visit.page.locator(f"[data-submission='{handle}'] .tag")
        await tag.wait_for()
        seen = time.time()
        self.log.shown[handle] = word, await tag.inner_text()
        ids = {one.handle: one.id for one in self.room.rows(tables.submissions)}
        recorded = {one.submission: one.recorded for one in self.room.rows(tables.verdicts)}
        self.log.seconds["a recorded verdict, until the learner's open page shows it"].append(
            seen - recorded[ids[handle]]
        )
        await visit.go(f"/me/submissions/{handle}", "a submission's page")
        await visit.go("/me", "a learner's page")

    async def call_for_help(self, visit: Visit, name: str, open_room: Visit) -> None:
        """Call, until the instructor, who has the room open, presses Done."""
        page, called = visit.page, time.time()
        seen = page.locator("text=The room has seen")
        while not await seen.count():
            try:
                await page.fill("#help", name)
                called = time.time()
                await page.click("button:has-text('Call')")
                await seen.wait_for(timeout=STEP_MS)
            except Error as error:
                self.log.again(error)
                await visit.go("/me", "a learner's page")
        done = open_room.page.locator(f"#help-title + ul li:has-text('{name}') button")
        await done.wait_for()
        self.log.seconds["a call for help, until the open room shows it"].append(
            time.time() - called
        )
        while await seen.count():
            async with self.instructor:
                try:
                    await done.click(timeout=STEP_MS)
                    await seen.wait_for(state="detached", timeout=STEP_MS)
                except Error as error:
                    self.log.again(error)
                    await open_room.go("/room", "the room")

    async def instruct(self, visit: Visit) -> None:
        """Walk through the instructor's pages until cancelled."""
        while True:
            for path, name in (
                ("/room", "the room"),
                ("/grades", "the grades"),
                (f"/labs/{LABS[0]}", "a lab's figures"),
            ):
                await visit.go(path, name)
                await asyncio.sleep(2)

    def report(self, handed_in: int) -> None:
        """Print what was lost, doubled or shown wrongly, then the latencies."""
        rows = self.room.rows(tables.submissions)
        lost = self.log.acknowledged - {row.handle for row in rows}
        doubled = len(rows) - len({(row.person, row.blob) for row in rows})
        verdicts = Counter(row.submission for row in self.room.rows(tables.verdicts))
        without = sum(verdicts[row.id] != 1 for row in rows)
        wrong = sum(OUTCOMES[word] != outcome for word, outcome in self.log.shown.values())
        print(
            f"{len(self.log.acknowledged)} of {handed_in} submissions acknowledged, {len(lost)}"
            f" lost, {doubled} doubled, {without} without exactly one verdict;"
            f" {len(self.log.shown)} verdicts shown, {wrong} wrong"
        )
        self.log.print()


def watch_processes(processes: dict[str, Process], log: Log, stop: threading.Event) -> None:
    """Keep the most memory (RSS) and the seconds of each process until told to stop."""
    while not stop.wait(1):
        for name, process in processes.items():
            try:
                program = psutil.Process(process.process.pid)
                memory, used = program.memory_info().rss / 2**20, program.cpu_times()
            except psutil.NoSuchProcess:  # just killed
                continue
            log.peaks[name] = max(log.peaks.get(name, 0), memory)
            log.cpu[name] = used.user + used.system


def kill_again_and_again(
    room: Room, processes: dict[str, Process], port: int, kills: int, learners: int
) -> None:
    """Kill every process and start it again, ten seconds apart, once everybody has joined."""
    while kills and sum(row.role == "learner" for row in room.rows(tables.people)) < learners:
        time.sleep(1)
    for _ in range(kills):
        time.sleep(10)
        for process in processes.values():
            process.kill()
            process.start()
        wait_until_it_answers(port)


async def browse(workshop: Workshop, browsers: int, learners: list[threading.Thread]) -> None:
    """Drive all pages until every learner, scripted or not, is done."""
    with workshop.room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, time.time())
        link = sessions.new_link(connection, instructor, time.time())
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        open_room = Visit(await context.new_page(), workshop.url, workshop.log)
        await open_room.go(f"/login/{link}", "the room")
        walking = Visit(await context.new_page(), workshop.url, workshop.log)
        instructing = asyncio.create_task(workshop.instruct(walking))
        await asyncio.gather(
            *(workshop.learn_in_browser(browser, number, open_room) for number in range(browsers))
        )
        while any(learner.is_alive() for learner in learners):
            await asyncio.sleep(0.5)
        instructing.cancel()
        await open_room.page.wait_for_selector("text=The queue is empty.")
        await browser.close()


def main() -> None:
    """Open the room, let everybody in, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=300)
    parser.add_argument("--browsers", type=int, default=12)
    parser.add_argument("--check-s", type=float, default=0.2)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--spread-s", type=float, default=120.0, help="all begin within this")
    options = parser.parse_args()
    make_content()
    inspect_structs()
    with opened_room(FOLDER / "cohort") as room, serving(room.cohort.folder) as (port, server):
        room.cohort.database.clock = room.clock = time.time
        with room.cohort.database.reading() as connection:
            code = joining.join_codes(connection)[0]
        folder, log = room.cohort.folder, Log()
        arguments = str(folder), str(SLOTS), json.dumps(COMMAND)
        runner = Process(RUNNER, *arguments, log=folder / "runner.log")
        processes = {"server": server, "runner": runner}
        url = f"http://127.0.0.1:{port}"
        workshop = Workshop(room, url, code, options.check_s, options.spread_s, log)
        everybody = options.learners + options.browsers
        stop = threading.Event()
        others = [
            threading.Thread(target=watch_processes, args=(processes, log, stop)),
            threading.Thread(
                target=kill_again_and_again,
                args=(room, processes, port, options.kills, everybody),
            ),
        ]
        learners = [
            threading.Thread(target=workshop.learn, args=(number,), daemon=True)
            for number in range(options.learners)
        ]
        began = time.monotonic()
        for thread in (*others, *learners):
            thread.start()
        try:
            asyncio.run(asyncio.wait_for(browse(workshop, options.browsers, learners), LIMIT_S))
        except TimeoutError:
            log.errors[f"given up after {LIMIT_S:.0f} s"] += 1
        finally:
            stop.set()
            for thread in others:
                thread.join()
            runner.kill()
            print(f"over after {time.monotonic() - began:.0f} s")
            workshop.report(options.learners + len(WORDS) * options.browsers)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
