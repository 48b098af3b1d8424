"""A lab's brief on a learner's page."""

from __future__ import annotations

from msgspec.structs import replace

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.cohort.server.markdown import render_brief
from bottleneck_lab.cohort.server.state import _templates
from bottleneck_lab.grading.answers import describe_choices

from .test_grades import pages


def test_a_brief_stands_below_the_pages_title():
    html = render_brief("# The title\n\nRun `lab`.\n\n## Rules\n\n- *one*\n")
    assert "The title" not in html
    assert "<p>Run <code>lab</code>.</p>" in html
    assert "<h2>Rules</h2>" in html
    assert "<li><em>one</em></li>" in html
    assert render_brief("No title.") == "<p>No title.</p>\n"


def test_a_brief_cannot_run_anything():
    html = render_brief("<script>x()</script>\n\n[here](javascript:x()) <b onclick=x()>b</b>\n")
    assert "<script" not in html
    assert "<b" not in html
    assert "href" not in html


def test_a_learner_reads_the_brief_as_text_and_not_as_its_source(sqlite_room):
    ada, _ = sqlite_room.join("Ada")
    with pages(sqlite_room) as (_, log_in, _):
        page = log_in(ada).get("/me/labs/slow").text
    assert '<div class="brief"><p>The sum takes long.' in page
    assert "# Sum of squares" not in page


def test_a_form_that_asks_for_cause_and_evidence_at_once_has_the_rule_for_every_cause():
    names = ["waits: it waits for numbers", "copies: it waits for copies"]
    reply, *rules = "Look again.", "Take a row of `waits`.", "Take a row of `copies`."
    cause = QuestionSpec("cause", "choice", "Why?", names, {names[1]: reply})
    evidence = QuestionSpec("evidence", "share", "How long?", follows="cause")
    questions = [cause, replace(evidence, rules=dict(zip(names, rules, strict=True)))]
    templates = _templates()
    templates.filters["moment"] = str
    form = templates.from_string(
        '{% from "parts.html" import questions_fields %}'
        "{{ questions_fields(questions, {}, choices, rules=true) }}"
    )
    page = form.render(questions=questions, choices=describe_choices)
    assert "<b>waits</b>: Take a row of <code>waits</code>." in page
    assert "<b>copies</b>: Take a row of <code>copies</code>." in page
    assert reply not in page
