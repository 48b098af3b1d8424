"""A lab's brief on a learner's page."""

from __future__ import annotations

from bottleneck_lab.cohort.server.markdown import render_brief

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
