"""Forms that were refused keep what was typed, and what there is not is said in words."""

from __future__ import annotations

import html
import re

from bottleneck_lab.cohort.server.typed import refill
from bottleneck_lab.cohort.settings import load_settings

from .serving import Visitor
from .test_grades import pages

PAGE = """<!doctype html><html><body><main id="main" tabindex="-1">
<!-- a page --><p>5 &lt; 6 &#38; &auml; <svg><path d="M0 0"/></svg></p>
<form action="/other"><input name="budget" value="1"></form>
<form method="post"><input type="hidden" name="csrf" value="secret">
<details class="fold"><summary>More</summary><input name="budget" value="2"></details>
<details><input type="checkbox" name="partial" value="yes" checked></details>
<input type="password" name="password"><input type="file" name="roster">
<select name="lab"><option value="">Choose</option><option value="slow">slow</option></select>
</form></main></body></html>"""


def test_a_form_is_filled_with_what_was_typed_and_the_page_is_left_as_it_is():
    fields = {"budget": "a <few>", "lab": "slow", "password": "p", "csrf": "forged"}
    notice = "<p>&#39;a &lt;few&gt;&#39; is not a number.</p>"
    filled = refill(PAGE, "/labs/slow", "/labs/slow", fields, notice)
    expected = PAGE.replace('tabindex="-1">', f'tabindex="-1">{notice}')
    expected = expected.replace(
        '<input name="budget" value="2">',
        '<input name="budget" value="a &lt;few&gt;" aria-invalid="true" autofocus>',
    )
    expected = expected.replace('<details class="fold">', '<details open class="fold">')
    expected = expected.replace(' value="yes" checked>', ' value="yes">')
    expected = expected.replace('<option value="slow">', '<option value="slow" selected>')
    assert filled == expected


def test_a_form_that_is_refused_comes_back_on_its_own_page(sqlite_room):
    room = sqlite_room
    ada, _ = room.join("Ada")
    with pages(room) as (instructor, visit, _):
        answer = instructor.post(f"/people/{ada.handle}/extend", lab="slow", extra_budget="one")
        assert answer.status == 400
        assert f"<h1>{ada.name}</h1>" in answer.text
        assert "&#39;one&#39; is not a whole number" in answer.text
        assert '<option value="slow" selected>' in answer.text
        answer = instructor.post("/settings/staff", name="Grace", role="assistant", password="x")
        assert "A password has at least 12 characters" in answer.text
        assert re.search(r'name="name"[^>]* value="Grace"', answer.text)
        assert 'value="x"' not in answer.text, "no password is shown"
        answer = instructor.post("/settings", max_waiting="0" * 3 + "x")
        assert answer.text.count("<h1>") == 1
        foreign = instructor.ask(
            "POST",
            "/settings",
            b"max_waiting=7777",
            Origin="https://elsewhere.example",
            **{"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert (foreign.status, "7777" in foreign.text) == (403, False), "not another site's words"
        learner = visit(ada)
        answer = learner.post("/settings", max_waiting="9")
        assert (answer.status, "This page is not for you" in answer.text) == (403, True)
    with room.cohort.database.reading() as connection:
        assert load_settings(connection).max_waiting != 9


def test_a_preview_does_not_say_that_it_is_saved(sqlite_room):
    with pages(sqlite_room) as (instructor, _, _):
        preview = instructor.post("/labs/slow", action="preview", budget="3").text
        assert "Nothing is saved yet" in preview
        assert "Saved: what this page shows" not in preview
        assert "Saved: what this page shows" in instructor.get("/labs/slow").text


def test_a_form_that_asks_for_a_page_is_refused_on_its_own_page(sqlite_room):
    with pages(sqlite_room) as (instructor, _, _):
        answer = instructor.get("/workshop/runsheet?plan=six-weeks&start=soon")
        assert answer.status == 400
        assert "<h1>Workshop" in answer.text
        assert "&#39;soon&#39;" in answer.text
        assert '<option value="six-weeks" selected>' in answer.text
        assert instructor.get("/submissions/none?against=before").text.count("<form") == 1, (
            "a link with a query is no form"
        )


def test_what_there_is_not_is_said_in_words(sqlite_room):
    with pages(sqlite_room) as (instructor, _, port):
        for visitor in (instructor, Visitor(port)):
            page = visitor.get("/no/such/page")
            assert page.status == 404
            assert "There is no page at /no/such/page" in page.text
            assert "<nav" in page.text or visitor is not instructor
        page = html.unescape(instructor.get("/courses").text)
        assert "neither accounts nor courses" in page
        assert instructor.get("/export/csv?altered=perhaps").status == 400
        assert "<h1>" in instructor.get("/export/csv?altered=perhaps").text
        assert instructor.get("/room/pause").status == 405
        assert Visitor(port).get("/api/none").json()["code"] == "not-found"
