"""Nothing that changes points is saved before somebody has seen whose, and by how much."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.grading.grades import DAY_S
from bottleneck_lab.cohort.grading.rules import extend, set_rules
from bottleneck_lab.cohort.moments import iso, parse_moment, spoken
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.verdict import Outcome

from .test_exports import grades, measured
from .test_grades import changed, pages, saved

CHOSEN = {f"in-{lab}": "yes" for lab in ("slow", "wrong")}


def scores(room) -> dict[str, float]:
    return {one.student.name: one.score for (_, lab), one in grades(room).items() if lab == "slow"}


def forms(room) -> dict[str, tuple[str, dict[str, str]]]:
    """Return a form of every page that can cost Ada 30 of her 100 points in `slow`, by its name.

    Bob, who submitted two days earlier, keeps his.
    """
    due = iso(room.clock() - 2.5 * DAY_S)
    lateness = {"per_day": "30", "most": "50", "grace_min": "10", "partial_credit": "yes"}
    return {
        "lab": ("/labs/slow", {"due": due}),
        "workshop": ("/workshop", {**CHOSEN, "due-slow": due}),
        "lateness": ("/grades/rules", lateness),
    }


def settings_shown(page: str) -> list[str]:
    """Return the settings that a preview names as what changes points."""
    named = re.search(r'aria-label="What changes them">(.*?)</ul>', page, re.DOTALL)
    return re.findall(r"<li>(.*?)</li>", named[1]) if named else []


@pytest.fixture
def two(room):
    """Ada and Bob, who both pass; Ada's submission is three days after Bob's."""
    bob, bobs = room.join("Bob")
    ada, adas = room.join("Ada")
    measured(room, bobs)
    room.clock.now += 3 * DAY_S
    measured(room, adas)
    return ada, bob


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("kind", ["lab", "workshop", "lateness"])
def test_what_costs_points_is_shown_by_learner_and_lab_before_it_is_saved(room, kind):
    path, fields = forms(room)[kind]
    with pages(room) as (instructor, _, _):
        if kind == "lateness":
            assert saved(instructor, "/labs/slow", due=iso(room.clock() - 60 * 60))
            before, after = {"Ada": 90.0, "Bob": 100.0}, {"Ada": 70.0, "Bob": 100.0}
        else:
            before, after = {"Ada": 100.0, "Bob": 100.0}, {"Ada": 70.0, "Bob": 100.0}
        assert scores(room) == before
        for action in ("preview", "save"):
            answer = instructor.post(path, action=action, **fields)
            assert answer.status == 200
            assert changed(answer.text) == {"Ada": (before["Ada"], after["Ada"])}
            assert "Points change for 1 of 2 learners" in answer.text
            assert f"{before['Ada']} → {after['Ada']}" in answer.text
            due = spoken(parse_moment(forms(room)["lab"][1]["due"]), "UTC")
            moved = "off for each day late: 10% → 30%"
            if kind != "lateness":
                moved = f"slow, due: never → {due}"
            assert settings_shown(answer.text) == [moved]
            assert scores(room) == before
        assert instructor.post(path, action="save", seen="0" * 16, **fields).status == 200
        assert saved(instructor, path, **fields)
    assert scores(room) == after


def test_a_preview_says_for_whom_by_the_shorter_list_and_why_an_override_goes(sqlite_room):
    room = sqlite_room
    learners = {name: room.join(name) for name in ("Ada", "Bob", "Chen", "Dora")}
    measured(room, learners["Ada"][1])
    late = room.clock() - 3 * DAY_S
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, due=late)
        extend(connection, learners["Chen"][0].id, "slow", late + 9 * DAY_S, 0, 0.0)
    with pages(room) as (instructor, _, _):
        page = instructor.post("/labs/slow", action="preview", due=iso(late - DAY_S)).text
        assert "slow, due for everybody but Chen: " in page
        ada = learners["Ada"][0].handle
        grade = f"/people/{ada}/grades/slow"
        assert instructor.post(grade, points="50", comment="As agreed").status == 303
        page = instructor.post(f"/people/{ada}/remove").text
        assert "<small>overridden: counts only while the learner counts alone" in page
        assert "no more than the lab is worth" not in page


def test_a_shorter_extension_shows_what_it_costs(sqlite_room):
    room = sqlite_room
    ada, token = room.join("Ada")
    measured(room, token)
    path, now = f"/people/{ada.handle}/extend", room.clock()
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", now, due=now - 3.5 * DAY_S)
        extend(connection, ada.id, "slow", now + DAY_S, 0, now)
    assert scores(room) == {"Ada": 100.0}
    with pages(room) as (instructor, _, _):
        shorter = {"lab": "slow", "due": iso(now - 2.5 * DAY_S)}
        page = instructor.post(path, action="save", **shorter).text
        assert "100.0 → 70.0" in page
        assert [one.partition(":")[0] for one in settings_shown(page)] == ["slow, due"]
        assert scores(room) == {"Ada": 100.0}
        assert saved(instructor, path, **shorter)
        early = instructor.post(path, action="save", lab="slow", due=iso(now - 4 * DAY_S))
        assert (early.status, "gives no more time" in early.text) == (400, True)
    assert scores(room) == {"Ada": 70.0}


def test_merging_and_removing_show_whose_points_change_before_they_are_done(sqlite_room):
    room = sqlite_room
    (ada, first), (twin, second) = room.join("Ada"), room.join("Ada L.")
    again, third = room.join("Ada", same=True)
    measured(room, first)
    measured(room, second, Outcome.FAIL)
    measured(room, third, Outcome.FAIL)
    both = {"Ada": 100.0, again.name: 50.0}
    everybody = {**both, "Ada L.": 50.0}
    with pages(room) as (instructor, _, _):

        def changes(path: str, after: dict[str, float], **fields: str) -> dict:
            """Return what is shown of a change, which is then made; after a look, nothing is."""
            before = scores(room)
            shown = instructor.post(path, **fields).text
            assert scores(room) == before
            assert saved(instructor, path, **fields)
            assert scores(room) == after
            return changed(shown)

        merge, remove = f"/people/{twin.handle}/merge", f"/people/{ada.handle}/remove"
        assert changes(merge, both, into=ada.handle) == {"Ada L.": (50.0, 0.0)}
        assert changes(merge, everybody, how="separate") == {"Ada L.": (0.0, 50.0)}
        left = {name: score for name, score in everybody.items() if name != "Ada"}
        assert changes(remove, left) == {"Ada": (100.0, 0.0)}
        assert changes(remove, everybody, how="restore") == {"Ada": (0.0, 100.0)}
        claim = f"/people/{again.handle}/claim"
        assert changes(claim, {"Ada": 100.0, "Ada L.": 50.0}, same="yes") == {
            again.name: (50.0, 0.0)
        }
        page = instructor.post(remove)
        assert "<h1>Remove Ada</h1>" in page.text
        assert "not counted" in page.text
        assert "change the points of 2 learners" in page.text
        freed = {"Ada": (100.0, 0.0), again.name: (0.0, 50.0)}
        assert changes(remove, {again.name: 50.0, "Ada L.": 50.0}) == freed
        # Bringing her back undoes all of it: who was merged into her is so again.
        back = {name: (after, before) for name, (before, after) in freed.items()}
        assert changes(remove, {"Ada": 100.0, "Ada L.": 50.0}, how="restore") == back
        assert changes(remove, {again.name: 50.0, "Ada L.": 50.0}) == freed
        merge = f"/people/{again.handle}/merge"
        assert changes(merge, {"Ada L.": 50.0}, into=twin.handle) == {again.name: (50.0, 0.0)}
        both = {"Ada": 100.0, "Ada L.": 50.0}
        assert changes(remove, both, how="restore") == {"Ada": (0.0, 100.0)}, "she is Ada L. now"


def test_what_costs_nobody_points_is_saved_at_once(sqlite_room):
    _, token = sqlite_room.join("Ada")
    measured(sqlite_room, token)
    with pages(sqlite_room) as (instructor, _, _):
        later = iso(sqlite_room.clock() + DAY_S)
        shown = instructor.post("/labs/slow", action="preview", due=later)
        assert "Nobody" in shown.text
        assert later[:16] in shown.text, "what was typed is still in the form"
        assert instructor.post("/labs/slow", action="save", due=later).status == 303
    assert [row.due is not None for row in sqlite_room.rows(tables.labs)] == [True]


def test_a_lab_that_leaves_the_workshop_takes_its_points_along(sqlite_room):
    room = sqlite_room
    person, token = room.join("Ada")
    measured(room, token)
    with pages(room) as (instructor, _, _):
        page = instructor.post("/workshop", action="save", **{"in-wrong": "yes"})
        assert "100.0 → not counted" in page.text
        assert settings_shown(page.text) == ["slow, part of the workshop: yes → no"]
        assert (person.handle, "slow") in grades(room)


def test_a_run_sheet_shows_what_its_moments_cost_on_its_page_and_in_the_terminal(
    sqlite_room, monkeypatch
):
    room = sqlite_room
    _, token = room.join("Ada")
    measured(room, token)
    start = iso(room.clock() - 60 * DAY_S)[:16]
    folder = ["--folder", str(room.cohort.folder)]
    words = ["cohort", "runsheet", "half-day", "--start", start, *folder]
    dry = CliRunner().invoke(app, words)
    assert "With --use, Ada would have 50 points instead of 100." in dry.stderr
    assert "With --use, slow: due 20" in dry.stderr
    assert scores(room) == {"Ada": 100.0}
    refused = CliRunner().invoke(app, [*words, "--use"])
    assert "Ada would have 50 points instead of 100." in refused.stderr
    assert isinstance(refused.exception, UsageError)
    # Not on `sys.stdin`, which the runner replaces.
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("bottleneck_lab.commands.cohort.runsheet.sys", terminal)
    assert "Nothing was saved" in CliRunner().invoke(app, [*words, "--use"], input="n\n").stderr
    assert scores(room) == {"Ada": 100.0}
    with pages(room) as (instructor, _, _):
        assert saved(instructor, "/workshop/runsheet", plan="half-day", start=start)
    assert scores(room) == {"Ada": 50.0}
    assert "points instead" not in CliRunner().invoke(app, [*words, "--use"]).stderr
    later = [*words[:4], iso(room.clock())[:16], *folder]
    assert CliRunner().invoke(app, [*later, "--use", "--yes"]).exit_code == 0
    assert scores(room) == {"Ada": 100.0}


@pytest.mark.parametrize(
    ("path", "kept"),
    [("/workshop", True), ("/grades/rules", True), ("/labs/slow", True), ("/settings", False)],
)
def test_browsers_keep_what_was_typed_where_no_secret_is(sqlite_room, path, kept):
    with pages(sqlite_room) as (instructor, _, _):
        header = instructor.get(path).headers["cache-control"]
        assert instructor.post("/logout").headers["clear-site-data"] == '"cache"'
    assert (header == "no-store") is not kept
    assert re.search("private|no-store", header)
