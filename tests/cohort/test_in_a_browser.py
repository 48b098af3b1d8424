"""A learner with nothing but a browser: joining, handing in, verdict, report, and cases."""

from __future__ import annotations

import io
import json
import shutil
import time
import zipfile
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from zoneinfo import ZoneInfo

import msgspec
import pytest

from bottleneck_lab import catalog
from bottleneck_lab.cohort.client import Client
from bottleneck_lab.cohort.members import joining, people
from bottleneck_lab.cohort.protocol import Join, content_of, files_of
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables

from .conftest import MINI, opened_room
from .pages import look
from .serving import Visitor, log_in, serving
from .test_runner import run_until

CASES = Path(__file__).parents[2] / "datasets" / "cases"
CASE = "bird-calls"
ANSWERS = {"answer-cause": "the loop in Python", "answer-gain": "3"}


@contextmanager
def content(folder: Path):
    """The miniature course with one case of the library."""
    shutil.copytree(MINI, folder)
    library = json.loads((CASES / "manifest.json").read_text())
    library["cases"] = [each for each in library["cases"] if each["name"] == CASE]
    shutil.copytree(CASES / CASE, folder / "datasets" / "cases" / CASE)
    (folder / "datasets" / "cases" / "manifest.json").write_text(json.dumps(library))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOTTLENECK_LAB_CONTENT", str(folder))
        patch.setenv("BOTTLENECK_LAB_HOME", str(folder.parent / "home"))
        catalog.load_labs.cache_clear()
        yield library["cases"][0]
    catalog.load_labs.cache_clear()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A served cohort of that course: its room, port, join code and case."""
    folder = tmp_path_factory.mktemp("browser")
    with content(folder / "content") as case, opened_room(folder / "cohort") as room:
        room.cohort.database.clock = room.clock = time.time
        with room.cohort.database.writing() as connection:
            change_settings(connection, min_interval_s=0, timezone="Asia/Tokyo")
            code = joining.join_codes(connection)[0]
        with serving(room.cohort.folder) as (port, _):
            yield room, port, code, case


def joined(served, name: str) -> Visitor:
    visitor = Visitor(served[1])
    assert visitor.post(f"/join/{served[2]}", name=name).headers["location"] == "/me"
    return visitor


def hand_in(visitor: Visitor, work: bytes = b"# right\n", **fields: str):
    """The form of the lab `slow` as a browser sends it."""
    fields = {"csrf": visitor.csrf(), "key": token_hex(16), "device": "cpu", **ANSWERS, **fields}
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = 'Content-Disposition: form-data; name="file-work.py"; filename="work.py"'
    parts.append(f"--edge\r\n{head}\r\n\r\n".encode() + work + b"\r\n--edge--\r\n")
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    return visitor.ask("POST", "/me/labs/slow", b"".join(parts), **kind)


def test_who_joins_in_a_browser_is_asked_who_they_are(served):
    _, port, code, _ = served
    assert joined(served, "Ada").get("/me").status == 200
    again = Visitor(port).post(f"/join/{code}", name="ada")
    assert again.status == 409
    assert "Was that you?" in again.text
    assert Visitor(port).post(f"/join/{code}", name="ada", same="no").status == 303
    assert Visitor(port).post("/join/AAAA-BBBB-CCCC", name="Eve").status == 403
    assert Visitor(port).post(f"/join/{code}", name="Eve", student_id="s1").status == 403


def test_a_submission_from_a_form_is_one_like_any_other(served):
    room = served[0]
    visitor = joined(served, "Grace")
    page = visitor.get("/me/labs/slow").text
    assert "Where does the time go?" in page
    packed = zipfile.ZipFile(io.BytesIO(visitor.ask("GET", "/me/labs/slow/files.zip").body))
    assert "slow/work.py" in packed.namelist()
    key = token_hex(16)
    for _ in range(2):  # sent twice, as an impatient click does
        assert hand_in(visitor, b"# right\nfast = True\n", key=key).status == 303
    row = room.rows(tables.submissions)[-1]
    assert [each.request_key for each in room.rows(tables.submissions)].count(key) == 1
    submitted = files_of(room.cohort.blobs.get(row.blob))
    assert b'cause = "the loop in Python"' in submitted["diagnosis.toml"]
    run_until(room.runner(), settled_but_captured(room))
    page = visitor.get(f"/me/submissions/{row.handle}").text
    assert "PASS" in page
    assert "+fast = True" in page
    (commitment,) = json.loads(row.circumstances)["record"]["commitments"]
    assert commitment["answers"] == {"cause": "the loop in Python", "gain": 3.0}
    assert hand_in(visitor).status == 303  # the same answers again are no second diagnosis
    latest = json.loads(room.rows(tables.submissions)[-1].circumstances)["record"]
    assert latest["commitments"] == [commitment]


@pytest.mark.parametrize(
    ("work", "fields", "words"),
    [
        (b"", {}, "No file was chosen."),
        (b"# right\n", {"answer-gain": ""}, "It is not answered yet."),
        (b"# right\n", {"answer-gain": "a lot"}, "How many times faster"),
        (b"# right\n", {"device": "cuda"}, "This form was changed."),
        (b"# right\n", {"tool": "gdb"}, "This form was changed."),
        (b"x" * (257 << 10), {}, "at most 262144 are accepted"),
        (b"x" * (2 << 20), {}, "This form is too large."),
        (b"# right\n", {"csrf": "guessed"}, "not sent from its own page"),
    ],
    ids=["no file", "no answer", "no number", "device", "tool", "large", "huge", "csrf"],
)
def test_a_form_that_cannot_be_taken_says_why(served, work, fields, words):
    before = len(served[0].rows(tables.submissions))
    visitor = joined(served, f"Wrong {token_hex(3)}")
    answer = hand_in(visitor, work, **fields)
    assert 400 <= answer.status < 500
    assert words in answer.text
    assert len(served[0].rows(tables.submissions)) == before


def test_a_capture_needs_no_answers_and_its_report_is_blind_until_there_are_some(served):
    room = served[0]
    visitor = joined(served, "Linus")
    assert hand_in(visitor, b"", tool="torch", **dict.fromkeys(ANSWERS, "")).status == 303
    row = room.rows(tables.submissions)[-1]
    assert (row.tool, row.state) == ("torch", "queued")
    trace = CASES / CASE / "trace.json.gz"
    (name,) = room.cohort.blobs.put(
        [content_of({"capture.json": b"{}", trace.name: trace.read_bytes()})]
    )
    with room.cohort.database.writing() as connection:
        table = tables.submissions
        connection.execute(
            table.update().where(table.c.id == row.id).values(made=name, state="captured")
        )
    path = f"/me/submissions/{row.handle}/capture"
    assert "Report of the capture" in visitor.get(f"/me/submissions/{row.handle}").text
    report = visitor.get(path)
    assert "sandbox" in report.headers["content-security-policy"]
    assert 'id="findings"' not in report.text
    assert hand_in(visitor).status == 303
    assert room.rows(tables.submissions)[-1].capture == name, "made of the code as shipped"
    assert 'id="findings"' in visitor.get(path).text
    assert joined(served, "Mallory").get(path).status == 404
    run_until(room.runner(), settled_but_captured(room))


def settled_but_captured(room):
    states = ("done", "failed", "captured")
    return lambda: all(row.state in states for row in room.rows(tables.submissions))


def test_a_terminal_joins_as_the_one_in_the_browser(served):
    _, port, _, _ = served
    visitor = joined(served, "Barbara")
    page = visitor.post("/me/terminal").text
    token = page.partition(f"lab join http://127.0.0.1:{port} ")[2].split("<")[0]
    client = Client(f"127.0.0.1:{port}")
    joined_there = client.join(Join(token, "whoever"))
    assert joined_there.name == "Barbara"
    assert Client(f"127.0.0.1:{port}", joined_there.token).me().name == "Barbara"
    body = msgspec.json.encode(Join(token, "whoever"))
    assert Visitor(port).ask("POST", "/api/join", body).json()["code"] == "wrong-code"


def test_a_case_is_answered_once_and_then_explained(served):
    room, _, _, case = served
    visitor = joined(served, "Katherine")
    path = f"/me/cases/{CASE}"
    assert case["title"] in visitor.get("/me/cases").text
    before = visitor.get(path).text
    assert case["explanation"] not in before
    assert "memory-bound: the speed of the device&#39;s memory" in before
    assert 'placeholder="such as 0.35, or 35%"' in before
    assert 'id="findings"' not in visitor.get(f"{path}/capture").text
    answers = {"cause": case["cause"], "evidence": "0,5", "line": "1", "gain": "2"}
    fields = {f"answer-{name}": value for name, value in answers.items()}
    assert visitor.post(path, **{**fields, "answer-line": "9999"}).status == 400
    assert visitor.post(path, **{**fields, "answer-cause": ""}).status == 400
    assert visitor.post(path, **fields).status == 303
    assert visitor.post(path, **{**fields, "answer-cause": "healthy"}).status == 303
    after = visitor.get(path).text
    assert f"✓ cause: It is {case['cause']}." in after
    assert 'id="findings"' in visitor.get(f"{path}/capture").text
    assert "Cause named in 1 of 1 case." in visitor.get("/me/cases").text
    assert len(room.rows(tables.answered_cases)) == 1
    assert visitor.get("/me/cases/none").status == 404
    with room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, time.time())
    person = next(row for row in room.rows(tables.people) if row.name == "Katherine")
    page = log_in(room, served[1], instructor).get(f"/people/{person.handle}").text
    assert "Cases answered in a browser: 1; the cause named in 1." in page


def shows_times_of(page, zone: str) -> None:
    page.wait_for_selector(f"text=Times are those of {zone}")
    moment = page.locator("td time").first
    utc = datetime.fromisoformat(moment.get_attribute("datetime"))
    assert utc.astimezone(ZoneInfo(zone)).strftime("%H:%M") in moment.inner_text()


@pytest.mark.browser
@pytest.mark.timeout(300)
def test_a_learner_works_through_a_lab_and_a_case(served, browser, tmp_path):
    """By mouse and keyboard, every page looked at."""
    room, port, code, _ = served
    page = browser.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"http://127.0.0.1:{port}/join/{code}")
    look(page, "join-form")
    page.fill("#name", "Dorothy")
    page.click("button:has-text('Join')")
    page.click("th a:has-text('slow')")
    page.wait_for_url("**/me/labs/slow")
    look(page, "my-lab")
    work = tmp_path / "work.py"
    work.write_text("# right\nfast = True\n")
    page.set_input_files("#file-1", work)
    page.select_option("#answer-cause", "the loop in Python")
    page.fill("#answer-gain", "3x")
    page.click("button:has-text('Hand in')")
    page.wait_for_selector("text=My submissions")
    run_until(room.runner(), settled_but_captured(room))
    page.wait_for_selector("[data-submission] .tag.pass")
    page.click("[data-submission] a")
    page.wait_for_selector(".diff .added")
    look(page, "my-submission")
    page.goto(f"http://127.0.0.1:{port}/me/labs/slow/grade")
    look(page, "my-grade")
    page.goto(f"http://127.0.0.1:{port}/me")
    shows_times_of(page, "Asia/Tokyo")
    page.set_viewport_size({"width": 390, "height": 800})
    # In one call: the page replaces its tables meanwhile, and those that were replaced end at 0.
    ends = (
        "Array.from(document.querySelectorAll('.cards td'), c => c.getBoundingClientRect().right)"
    )
    assert 0 < max(page.evaluate(ends)) <= 390
    page.set_viewport_size({"width": 1280, "height": 800})
    page.click("nav a:has-text('Cases')")
    page.wait_for_url("**/me/cases")
    look(page, "cases")
    page.click("tbody th a")
    page.wait_for_url("**/me/cases/*")
    look(page, "case-open")
    page.select_option("#answer-cause", "healthy")
    for name, value in {"evidence": "50%", "line": "1", "gain": "2"}.items():
        page.fill(f"#answer-{name}", value)
    page.click("button:has-text('Answer')")
    page.wait_for_selector("text=What was measured")
    look(page, "case-answered")
    page.goto(f"http://127.0.0.1:{port}/me")
    page.click("button:has-text('Work in a terminal')")
    page.wait_for_url("**/me/terminal")
    look(page, "terminal")
    assert complaints == []
