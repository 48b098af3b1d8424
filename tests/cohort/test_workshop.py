"""A workshop from start to end: thirty learners who are right, wrong, hostile, slow or gone, and an
instructor who watches them in a browser.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from bottleneck_lab import catalog
from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.members import joining, people, sessions
from bottleneck_lab.cohort.protocol import Join, Submission
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.workspace.commitments import Commitment, Help, Record

from .fake_job import COMMAND
from .pages import look, picture
from .serving import RUNNER, Process, serving

TRACE = Path(__file__).parents[2] / "datasets" / "captures" / "synthetic-input.json.gz"
KINDS = ("right", "wrong", "hostile", "slow", "gone")
LEARNERS = 30
SHEET = "plan=six-weeks&start=2026-11-30T09:00"


@pytest.fixture
def workshop(sqlite_room):
    """A served cohort with a runner, on SQLite."""
    with served_with_runner(sqlite_room) as workshop:
        yield workshop


@contextmanager
def served_with_runner(room):
    """A served cohort with a runner, its clock the real one."""
    room.cohort.database.clock = room.clock = time.time
    with room.cohort.database.writing() as connection:
        change_settings(connection, min_interval_s=0)
    folder = room.cohort.folder
    with serving(folder) as (port, server):
        runner = Process(RUNNER, str(folder), "4", json.dumps(COMMAND), log=folder / "runner.log")
        try:
            yield room, port, server, runner
        finally:
            runner.kill()


def texts(kind: str, number: int) -> list[str]:
    """Return what a learner of this kind submits, one after the other."""
    unique = f"\n# learner {number}\n"
    return {
        "right": ["# wrong" + unique, "# right" + unique],
        "wrong": ["# wrong" + unique + f"# {attempt}\n" for attempt in range(4)],
        "hostile": [
            "# hostile" + unique + "</script><script>document.title='owned'</script>\x1b[2J"
        ],
        "slow": ["# slow 0.5" + unique],
        "gone": ["# right" + unique],
    }[kind]


def submission(text: str, key: str, capture: str | None = None) -> Submission:
    """With a diagnosis that was corrected once."""
    lab = catalog.find_lab("slow")
    causes = ("memory bandwidth", "the loop in Python")
    commitments = [
        Commitment("2026-11-23T09:00:00+00:00", {"cause": cause, "gain": 3.0}, hints=1)
        for cause in causes
    ]
    record = Record(commitments, Help(), 1)
    return Submission(
        key,
        "slow",
        lab.content_hash(),
        "cpu",
        {"work.py": text.encode()},
        hints=1,
        record=record,
        capture=capture,
    )


def learn(port: int, code: str, number: int, ended: dict[str, str]) -> None:
    """One learner, from joining to the last verdict; one who is gone never looks back."""
    kind = KINDS[number % len(KINDS)]
    name = f"{number:02} {kind}" + ("<img src=x onerror=alert(1)>" if kind == "hostile" else "")
    joined = Client(f"127.0.0.1:{port}").join(Join(code, name))
    client = Client(f"127.0.0.1:{port}", joined.token)
    if kind == "hostile":
        with pytest.raises(RefusedByServerError):
            client.submit(Submission("k" * 8, "slow", "0" * 64, "cpu", {"/etc/passwd": b""}))
        with pytest.raises(RefusedByServerError):
            Client(f"127.0.0.1:{port}", "guessed").me()
    capture = (
        client.send_capture({"capture.json": b"{}", TRACE.name: TRACE.read_bytes()})
        if kind == "wrong"
        else None
    )
    for attempt, text in enumerate(texts(kind, number)):
        accepted = client.submit(submission(text, f"learner-{number}-{attempt}", capture))
        if kind == "gone":
            return
        standing = client.standing(accepted.receipt.submission)
        while standing.state in ("queued", "running"):
            standing = client.standing(standing.submission, standing.version, 20)
        ended[name] = str(standing.outcome)


def link(room, person) -> str:
    with room.cohort.database.writing() as connection:
        return f"/login/{sessions.new_link(connection, person, time.time())}"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_learners_and_a_page_that_shows_them(workshop, browser):
    room, port, _, _ = workshop
    with room.cohort.database.writing() as connection:
        code, instructor = (
            joining.join_codes(connection)[0],
            people.the_instructor(connection, time.time()),
        )
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(120_000)
    complaints: list[str] = []
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.goto(f"http://127.0.0.1:{port}{link(room, instructor)}")
    page.wait_for_selector("text=Nobody has joined yet.")
    ended: dict[str, str] = {}
    learners = [
        threading.Thread(target=learn, args=(port, code, number, ended))
        for number in range(LEARNERS)
    ]
    for learner in learners:
        learner.start()
    while any(learner.is_alive() for learner in learners):
        page.wait_for_timeout(100)
    page.wait_for_selector("text=The queue is empty.")
    assert {outcome for name, outcome in ended.items() if name[3:] in ("right", "slow")} == {"PASS"}
    assert {outcome for name, outcome in ended.items() if "wrong" in name or "hostile" in name} == {
        "FAIL"
    }
    page.wait_for_function("document.querySelectorAll('.matrix .cell.pass').length === 18")
    assert page.locator(".matrix .cell.fail").count() == 12
    assert page.locator("#stuck-title + div tbody tr").count() == 6
    assert page.title() == "Room · Autumn workshop"
    look(page, "room")
    learners_stay_in_view(page)
    page.locator(".matrix a", has_text="01 wrong").click()
    page.wait_for_selector("text=Own checks")
    look(page, "person")
    person = page.url.rpartition("/people/")[2]
    page.locator("tbody a").first.click()
    page.wait_for_selector(".diff .added")
    assert page.locator("text=memory bandwidth → the loop in Python").count() == 1
    look(page, "submission")
    page.locator("text=Report of the capture").click()
    page.wait_for_selector("text=Findings")
    page.wait_for_selector("canvas")
    picture(page, "capture")
    page.goto(f"http://127.0.0.1:{port}/labs/slow")
    look_at_lab(page)
    paths = [
        "room/joining",
        "settings",
        "workshop",
        f"workshop/runsheet?{SHEET}",
        "grades",
        "grades/rules",
    ]
    for path in (*paths, f"people/{person}/grades/slow", "me", "leaderboard", f"join/{code}"):
        page.goto(f"http://127.0.0.1:{port}/{path}")
        look(page, path.partition("?")[0].replace("/", "-"))
    look_at_folds(page, f"http://127.0.0.1:{port}", person)
    page.goto(f"http://127.0.0.1:{port}/grades")
    learners_stay_in_view(page)
    page.context.clear_cookies()
    page.goto(f"http://127.0.0.1:{port}/room")
    page.wait_for_selector("text=Log in")
    look(page, "login")
    assert complaints == []


def look_at_lab(page) -> None:
    """The page of a lab, and what a due date in the past would do to points."""
    page.wait_for_selector("[data-histogram][data-ready]")
    look(page, "lab")
    page.fill("#due", "2020-01-01T09:00")
    page.click("text=Preview grades")
    page.wait_for_selector("text=Nothing is saved yet")
    look(page, "preview")


def look_at_folds(page, address: str, person: str) -> None:
    """The workshop's page with everything unfolded, and what a merge would do to points."""
    page.goto(f"{address}/workshop")
    page.uncheck("[name=in-slow]")
    page.click("text=Preview grades")
    page.wait_for_selector("text=Left out: 1 lab")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    look(page, "workshop-unfolded")
    page.goto(f"{address}/people/{person}")
    page.select_option("#into", index=1)
    page.click("summary:text-is('Merge')")
    page.click("button:has-text('Merge ')")
    page.wait_for_selector("text=Nothing is saved yet")
    look(page, "confirm")


def learners_stay_in_view(page) -> None:
    """A table of many labs scrolls in its own box; names and labs stay where they are."""
    page.set_viewport_size({"width": 390, "height": 500})
    table = page.locator(".tall").last
    name = table.locator("tbody th").last
    corner, head = table.locator("thead th").first, table.locator("thead th").nth(1)
    before = name.bounding_box()["x"], corner.bounding_box(), head.bounding_box()["y"]
    scrolled = table.evaluate(
        "box => { box.scrollLeft = 30; box.scrollTop = 90;"
        " return [box.scrollLeft, box.scrollTop]; }"
    )
    assert scrolled == [30, 90]
    after = name.bounding_box()["x"], corner.bounding_box(), head.bounding_box()["y"]
    assert after == before
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize(
    "database_url",
    [
        pytest.param("sqlite", marks=pytest.mark.slow),
        pytest.param("postgresql", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_killing_everything_loses_nothing_that_was_acknowledged(room, database_url, request):
    """`kill -9` of server, runner and, where it is a server, database: again and again, while eight
    learners submit and try again.
    """
    database = request.getfixturevalue("postgresql") if database_url else None
    with served_with_runner(room) as (_, port, server, runner):
        kill_while_learners_submit(room, port, (server, runner), database)


def kill_while_learners_submit(room, port, killed, database) -> None:
    with room.cohort.database.writing() as connection:
        change_settings(connection, min_interval_s=0, max_waiting=99, max_failures=99)
        code = joining.join_codes(connection)[0]
    tokens = [
        Client(f"127.0.0.1:{port}").join(Join(code, f"learner {number}")).token
        for number in range(8)
    ]
    acknowledged: list[str] = []

    def submit(number: int) -> None:
        client = Client(f"127.0.0.1:{port}", tokens[number])
        for attempt in range(3):
            accepted = client.submit(
                submission(f"# right\n# {number} {attempt}\n", f"learner-{number}-{attempt}")
            )
            acknowledged.append(accepted.receipt.submission)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.4)
        if database:
            database.kill_and_start()
        for each in killed:
            each.kill()
            each.start()
    for thread in threads:
        thread.join(120)
    assert len(set(acknowledged)) == len(acknowledged) == 24
    end = time.monotonic() + 120
    while any(row.state != "done" for row in room.rows(tables.submissions)):
        time.sleep(0.2)
        assert time.monotonic() < end
    assert {row.handle for row in room.rows(tables.submissions)} == set(acknowledged)
    measured = sorted(row.submission for row in room.rows(tables.verdicts))
    assert measured == [row.id for row in room.rows(tables.submissions)]
