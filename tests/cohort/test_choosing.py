"""The workshop that an instructor chooses: labs, their order and moments, and run sheets."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.catalog.spec import DeviceSpec
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.grading.exports import export_grades, find_export
from bottleneck_lab.cohort.grading.rules import extend, load_rules, set_rules
from bottleneck_lab.cohort.members import people, sessions
from bottleneck_lab.cohort.moments import iso, local, machine_zone, parse_moment, spoken
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.runsheet import HALF_DAY_MIN, make_run_sheet, use_run_sheet
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.view.choice import needs_of
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.view.standing import load_me
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.cohort.workshop import choose_labs, workshop_labs
from bottleneck_lab.errors import UsageError

from .serving import serving
from .test_grades import pages

NINE = datetime(2026, 10, 19, 9, 0, tzinfo=ZoneInfo("Europe/Zurich"))
"""A Monday in summer time, which ends in the week after."""


def choose(room, *labs: str) -> None:
    with room.cohort.database.writing() as connection:
        choose_labs(connection, list(labs), room.clock())


def test_without_a_choice_the_workshop_is_the_course(sqlite_room):
    with sqlite_room.cohort.database.reading() as connection:
        assert workshop_labs(connection) == list(load_labs())


def test_every_view_shows_the_chosen_labs_in_their_order(sqlite_room):
    room = sqlite_room
    person, token = room.join()
    room.submit(token, lab="broken")
    choose(room, "wrong", "slow")
    judge = verdict_reader_of(room.cohort.public_key)
    with room.cohort.database.reading() as connection:
        assert load_room(connection, judge, room.clock()).labs == ["wrong", "slow"]
        me = load_me(connection, judge, person, room.clock())
        assert [lab.slug for lab in me.labs] == ["wrong", "slow"]
        rows = export_grades(connection, room.cohort, find_export("csv")).decode().splitlines()
    assert [row.split(",")[7] for row in rows[1:]] == ["wrong", "slow"]


def test_what_is_not_chosen_or_not_open_is_refused(sqlite_room):
    room = sqlite_room
    person, token = room.join()
    choose(room, "wrong", "slow")
    with pytest.raises(RefusedError, match="not part of this workshop"):
        room.submit(token, lab="broken")
    opens = room.clock() + 3600
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", room.clock(), opens=opens)
    with pytest.raises(
        RefusedError, match=re.escape(f"opens at {spoken(opens, 'UTC')}")
    ) as refused:
        room.submit(token)
    assert refused.value.code == "not-open"
    room.clock.now = opens + 1
    room.submit(token)
    judge = verdict_reader_of(room.cohort.public_key)
    with room.cohort.database.reading() as connection:
        me = load_me(connection, judge, person, opens - 1)
        assert [lab.opens for lab in me.labs] == [None, iso(opens)]


@pytest.mark.browser
def test_what_was_typed_is_still_there_after_a_refusal(sqlite_room, browser):
    room = sqlite_room
    ada, _ = room.join("Ada")
    with room.cohort.database.writing() as connection:
        instructor = people.the_instructor(connection, time.time())
    moment = "2090-01-01T09:00"
    forms = {  # a page: what is typed there, the first of which is refused
        "/workshop": {"order-slow": "first", "opens-slow": moment},
        "/grades/rules": {"per_day": "some", "points-slow": "40"},
        "/labs/slow": {"budget": "a few", "due": moment},
        f"/people/{ada.handle}": {"extra_budget": "one", "due": moment},
        f"/people/{ada.handle}/grades/slow": {"points": "400", "comment": "At the board"},
        "/me/labs/slow": {"answer-gain": "a lot"},
    }
    with serving(room.cohort.folder) as (port, _):
        address, page = f"http://127.0.0.1:{port}", browser.new_page()
        page.goto(f"{address}/login/{_new_link(room, instructor)}")
        for path, fields in forms.items():
            if path.startswith("/me"):
                page.goto(f"{address}/login/{_new_link(room, ada)}")
            page.goto(f"{address}{path}")
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            if "extra_budget" in fields:
                page.select_option("[name=lab]", "slow")
            for name, value in fields.items():
                page.fill(f"[name={name}]", value)
            page.press(f"[name={next(iter(fields))}]", "Enter")
            page.wait_for_selector("text=That did not work")
            kept = {name: page.input_value(f"[name={name}]") for name in fields}
            assert kept == fields, path
            if "extra_budget" in fields:
                assert page.input_value("[name=lab]") == "slow"
            if "comment" not in fields and not path.startswith("/me"):
                wrong = page.locator("[aria-invalid=true]")
                assert wrong.get_attribute("name") == next(iter(fields))
                assert wrong.is_visible(), "what it is folded into is open"
        page.goto(f"{address}/login/{_new_link(room, instructor)}")
        for path in ("/workshop", "/settings", f"/people/{ada.handle}"):
            page.goto(f"{address}{path}")
            assert not page.is_visible("#saved")
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            page.click("button:text-is('Save'), button:text-is('Rename')")
            page.wait_for_url(f"**{path}#saved")
            assert page.is_visible("#saved")


def _new_link(room, person) -> str:
    with room.cohort.database.writing() as connection:
        return sessions.new_link(connection, person, time.time())


@pytest.mark.parametrize("labs", [[], ["slow", "slow"]])
def test_a_workshop_of_no_lab_or_of_one_twice_is_refused(sqlite_room, labs):
    with pytest.raises(UsageError, match="at least one lab"):
        choose(sqlite_room, *labs)


def test_a_lab_that_would_be_due_before_it_opens_is_refused(sqlite_room):
    with sqlite_room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=100.0)
        with pytest.raises(RefusedError, match="due before it opens"):
            set_rules(connection, "slow", 0.0, opens=200.0)
        assert load_rules(connection, "slow").opens is None


def test_an_extension_gives_more_time_or_is_refused_with_the_time_that_everybody_has(sqlite_room):
    room = sqlite_room
    person, _ = room.join()

    def grant(due: float) -> None:
        extend(connection, person.id, "slow", due, 0, 0.0)

    with room.cohort.database.writing() as connection:
        with pytest.raises(RefusedError, match="never due and never closes"):
            grant(500.0)
        set_rules(connection, "slow", 0.0, closes=200.0)
        with pytest.raises(RefusedError, match="closes at 1970-01-01 00:03"):
            grant(200.0)
        set_rules(connection, "slow", 0.0, due=100.0)
        with pytest.raises(RefusedError, match=re.escape("is due at 1970-01-01 00:01 UTC")):
            grant(90.0)
        assert load_rules(connection, "slow", person.id).due == 100.0
        grant(500.0)
        assert load_rules(connection, "slow", person.id).closes == 600.0
        set_rules(connection, "slow", 0.0, due=900.0)
        assert load_rules(connection, "slow", person.id).due == 900.0, "later than the extension"


def test_an_extension_moves_the_solution_too(sqlite_room):
    room = sqlite_room
    person, _ = room.join()
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=100.0, solution_at=100.0)
        extend(connection, person.id, "slow", 500.0, 0, 0.0)
        assert load_rules(connection, "slow", person.id).solution_at == 500.0
        assert load_rules(connection, "slow").solution_at == 100.0


def test_moments_are_typed_in_the_instructors_time_zone():
    assert iso(parse_moment("2026-07-01T09:00", "Europe/Zurich")) == "2026-07-01T07:00:00Z"
    assert iso(parse_moment("2026-12-01T09:00", "Europe/Zurich")) == "2026-12-01T08:00:00Z"
    assert iso(parse_moment("2026-12-01T09:00Z", "Europe/Zurich")) == "2026-12-01T09:00:00Z"
    assert local(parse_moment("2026-12-01T09:00", "Asia/Tokyo"), "Asia/Tokyo") == "2026-12-01T09:00"
    with pytest.raises(UsageError, match="not a time zone"):
        parse_moment("2026-12-01T09:00", "Europe/Nowhere")


@pytest.mark.parametrize(
    ("variable", "zone"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        (":Europe/Rome", "Europe/Rome"),
        ("X", "UTC"),
        ("Etc/UTC", "UTC"),
    ],
)
def test_a_new_cohort_has_the_time_zone_of_its_machine(monkeypatch, variable, zone):
    monkeypatch.setenv("TZ", variable)
    assert machine_zone() == zone


@pytest.fixture
def course(monkeypatch):
    """The course as it is shipped."""
    monkeypatch.delenv("BOTTLENECK_LAB_CONTENT")
    load_labs.cache_clear()
    return list(load_labs().values())


def test_a_new_cohort_starts_with_what_half_a_day_holds(course, tmp_path):
    def create(name: str, *words: str) -> tuple[str, list[str]]:
        folder = tmp_path / name
        done = CliRunner().invoke(app, ["cohort", "create", "New", "-f", str(folder), *words])
        assert done.exit_code == 0, done.output
        with open_cohort(folder) as cohort, cohort.database.reading() as connection:
            return " ".join(done.output.split()), workshop_labs(connection)

    output, labs = create("default")
    assert labs == list(make_run_sheet("half-day", course, NINE).labs)
    assert f"Its labs are {', '.join(labs)}, as many as half a day holds." in output
    assert create("all", "--labs", "all")[1] == [lab.slug for lab in course]
    assert create("two", "--labs", f"{labs[1]}, {labs[0]}")[1] == [labs[1], labs[0]]
    twice = ["--folder", str(tmp_path / "twice"), "--labs", f"{labs[0]},{labs[0]}"]
    refused = CliRunner().invoke(app, ["cohort", "create", "New", *twice])
    assert "each lab once" in refused.exception.message
    assert not (tmp_path / "twice").exists()


def test_two_labs_of_one_number_are_refused_by_name(sqlite_room):
    both = {f"in-{lab}": "yes" for lab in ("slow", "wrong")}
    with pages(sqlite_room) as (instructor, _, _):
        same = instructor.post("/workshop", **both, **{"order-slow": "1", "order-wrong": "1"})
        assert same.status == 400
        assert "slow and wrong have the same number, 1." in same.text
        assert instructor.post("/workshop", **both, **{"order-wrong": "1"}).status == 303
    with sqlite_room.cohort.database.reading() as connection:
        assert workshop_labs(connection) == ["wrong", "slow"]


def test_the_page_says_what_is_chosen_and_why(sqlite_room):
    with pages(sqlite_room) as (instructor, _, _):
        page = instructor.get("/workshop").text
        assert "This workshop has 5 of the course's 5 labs" in page
        assert "A new workshop starts with these" in page
        assert "<b>Sum of squares: slow</b> <code>slow</code>" in page
        assert "1 min · no GPU · quiet machine</small>\n<small>vectorising</small>" in page
        due = {"due-slow": "2090-01-01T09:00"}
        chosen = {"in-slow": "yes", "in-wrong": "yes", "order-slow": "2", "order-wrong": "1"}
        assert instructor.post("/workshop", action="save", **chosen, **due).status == 303
        page = instructor.get("/workshop").text
        assert "This workshop has 2 of the course's 5 labs" in page
        assert "Half a day holds them" in page
        assert "to set its times (time zone: <b>UTC</b>)" in page
        assert "Left out: 3 labs" in page
        assert 'due <time datetime="2090-01-01T09:00' in page
        assert page.index("in-wrong") < page.index("in-slow")
        assert instructor.post("/workshop", action="whole", **chosen).status == 303
    with sqlite_room.cohort.database.reading() as connection:
        assert len(workshop_labs(connection)) == 5


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, ["no GPU", "quiet machine"]),
        ({"datasets": ["photos"]}, ["no GPU", "data set photos", "quiet machine"]),
        (
            {"devices": {"cpu": DeviceSpec([], {"tools": ["g++"]})}},
            ["no GPU", "g++", "quiet machine"],
        ),
        ({"devices": {"cuda": DeviceSpec([], gpus=2)}}, ["2 GPUs", "quiet machine"]),
    ],
)
def test_a_lab_says_what_it_needs(changes, needs):
    lab = find_lab("slow")
    assert needs_of(replace(lab, spec=replace(lab.spec, **changes))) == needs


def test_half_a_day_has_the_labs_that_fit_without_gaps(course):
    sheet = make_run_sheet("half-day", course, NINE)
    assert [entry.begins for entry in sheet.entries[1:]] == [e.ends for e in sheet.entries[:-1]]
    assert sheet.entries[-1].ends - NINE <= timedelta(minutes=HALF_DAY_MIN)
    assert sum(entry.title == "Break" for entry in sheet.entries) == 1
    assert [*sheet.labs, *sheet.left_out] == [lab.slug for lab in course]
    for times in sheet.labs.values():
        assert times.opens < times.hints_at < times.due <= times.solution_at


def test_six_weeks_have_every_lab_in_order_and_keep_their_hour(course):
    sheet = make_run_sheet("six-weeks", course, NINE)
    assert list(sheet.labs) == [lab.slug for lab in course]
    assert {times.opens.hour for times in sheet.labs.values()} == {9}, "also in winter time"
    weeks = {(times.opens.date() - NINE.date()).days // 7 for times in sheet.labs.values()}
    assert weeks == set(range(6))


def test_a_lab_too_long_for_half_a_day_is_refused(course):
    spec = replace(course[0].spec, minutes=HALF_DAY_MIN)
    with pytest.raises(UsageError, match="too long for half a day"):
        make_run_sheet("half-day", [replace(course[0], spec=spec)], NINE)


def test_a_run_sheet_can_be_put_in_force(sqlite_room):
    sheet = make_run_sheet("half-day", list(load_labs().values())[:2], NINE)
    with sqlite_room.cohort.database.writing() as connection:
        use_run_sheet(connection, sheet, 0.0)
        assert workshop_labs(connection) == list(sheet.labs)
        for slug, times in sheet.labs.items():
            assert load_rules(connection, slug).due == times.due.timestamp()


def test_another_time_zone_lists_the_times_that_now_read_differently(sqlite_room):
    room = sqlite_room
    with pages(room) as (instructor, _, _):
        assert instructor.post("/workshop/zone", timezone="Etc/GMT").status == 303, "none is set"
        ada, _ = room.join("Ada")
        with room.cohort.database.writing() as connection:
            opens = parse_moment("2090-01-02T09:20")
            set_rules(connection, "slow", 0.0, opens=opens, closes=opens + 86400)
            extend(connection, ada.id, "slow", opens + 2 * 86400, 0, 0.0)
        assert instructor.post("/workshop/zone", timezone="UTC").status == 303, "all read alike"
        page = instructor.post("/workshop/zone", timezone="Europe/Zurich")
        assert page.status == 200
        assert "These pages are in Europe/Zurich now. 3 times stayed" in page.text
        cells = r"<tr><th scope=\"row\">slow</th>" + "<td>([^<]*)</td>" * 3
        assert re.findall(cells, page.text) == [
            ("Opens", "2090-01-02 09:20", "2090-01-02 10:20"),
            ("Closes", "2090-01-03 09:20", "2090-01-03 10:20"),
            ("Extension of Ada", "2090-01-04 09:20", "2090-01-04 10:20"),
        ]
        assert "stayed" not in instructor.get("/workshop").text


def test_a_start_that_is_past_is_asked_about_and_late_hints_are_marked(sqlite_room):
    room = sqlite_room
    words = ["half-day", "--start", "2020-11-30T09:00", "--folder", str(room.cohort.folder)]
    refused = CliRunner().invoke(app, ["cohort", "runsheet", *words, "--use"])
    assert "would be overdue at once: that start is past" in refused.stderr
    assert "--yes" in refused.exception.remedy
    with room.cohort.database.reading() as connection:
        assert load_rules(connection, "slow").due is None
    with pages(room) as (instructor, _, _):
        sheet = instructor.get("/workshop/runsheet?plan=half-day&start=2020-11-30T09:00").text
        assert "would be overdue at once" in sheet
        moments = {"due": "2090-01-01T10:00", "hints_at": "2090-01-01T11:00"}
        assert instructor.post("/labs/slow", action="save", **moments).status == 303
        page = instructor.get("/labs/slow").text
        warning = page.index("Hints open only when the lab is due")
        assert warning < page.index('class="grid" id="rules"'), "a cell would move every label"
        assert "hints open only when it is due" in instructor.get("/workshop").text


def test_the_command_prints_the_sheet_in_the_cohorts_time_zone(sqlite_room):
    with sqlite_room.cohort.database.writing() as connection:
        change_settings(connection, timezone="Asia/Tokyo")
    arguments = ["--start", "2026-11-30T09:00", "--folder", str(sqlite_room.cohort.folder), "--use"]
    arguments.append("--yes")  # that date passes
    done = CliRunner().invoke(app, ["cohort", "runsheet", "half-day", *arguments])
    assert "Monday, 30 November 2026, 09:00 (Asia/Tokyo)" in done.stdout
    assert "| 09:00 | 09:20 | Welcome |" in done.stdout
    with sqlite_room.cohort.database.reading() as connection:
        first = workshop_labs(connection)[0]
        assert iso(load_rules(connection, first).opens) == "2026-11-30T00:20:00Z"
