"""The page: whole, offline, and deaf to whatever a trace or a learner writes."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import pytest

from bottleneck_lab.analysis.comparing.compare import compare
from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.report.page.attempts_chart import attempts_chart
from bottleneck_lab.report.page.html import render_comparison_html, render_html
from bottleneck_lab.report.page.markup import Markup, tag
from bottleneck_lab.report.page.packing import PackedTimeline, pack_timeline
from bottleneck_lab.report.page.timeline import timeline_section
from bottleneck_lab.report.page.verdict import AnsweredQuestion, Diagnosis
from bottleneck_lab.trace.names import CALIBRATED

from . import made_up, made_up_capture


class Page(HTMLParser):
    """Tags with their attributes, and what each script holds."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.words, self._inside = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        self._inside = name
        if name == "script":
            self.scripts.append("")

    def handle_endtag(self, name):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def whole(timeline, verdict):
    """A page with every section."""
    return render_html(
        title="idle-gpu",
        capture=analyse(timeline),
        attempts=[made_up.slow(), made_up.undecided(), verdict],
        diagnosis=Diagnosis(
            [
                AnsweredQuestion(
                    "cause",
                    "What is the bottleneck?",
                    "input-bound",
                    "the device waits for 50% of the time",
                )
            ],
            "It is about capture 0001-torch.",
        ),
    )


def test_the_page_says_what_matters():
    text = Page(whole(made_up_capture.capture(emulated=True), made_up.passed())).text
    for words in (
        "idle-gpu PASS",
        "Emulated device: its times are modelled",
        "between 90% and 92%, 12 samples",
        "idle: input",
        "You predicted 2.20x and measured 2.28x: close, too low by a factor of 1.04.",
        "the device waits for 50% of the time",
        "Copies",
        "Example CPU 9000, 2 cores",
        "Self-attested",
    ):
        assert words in text


def test_what_is_not_given_is_left_out():
    page = Page(render_html(title="Only a verdict", attempts=[made_up.broken()]))
    assert not [name for name, _ in page.tags if name == "canvas"]
    assert "Findings" not in page.text
    assert "Emulated" not in page.text


def compared(timeline, _verdict):
    """The page about a capture beside itself."""
    capture = analyse(timeline)
    return render_comparison_html(
        compare(timeline, timeline), capture, capture, names=("before", "after")
    )


def test_a_comparison_says_what_changed_above_both_timelines():
    page = Page(compared(made_up_capture.capture(), None))
    assert "Cannot tell: 1.00x for a step (no interval)" in page.text
    assert [name for name, _ in page.tags if name == "canvas"]
    assert "times as fast" in page.text
    assert "between" not in page.text, "no row has an interval"


@pytest.mark.parametrize("page_of", [whole, compared])
@pytest.mark.parametrize("make", [made_up_capture.capture, made_up_capture.hostile])
def test_no_text_becomes_markup_or_script(make, page_of):
    hostile = make is made_up_capture.hostile
    page = Page(page_of(make(), made_up.hostile() if hostile else made_up.passed()))
    kinds = [attributes.get("type") for name, attributes in page.tags if name == "script"]
    assert kinds == [
        "application/json",
        "text/plain",
        None,
    ], "data, columns, and the one script of this package"
    assert not [
        name
        for name, _ in page.tags
        if name in ("img", "iframe", "object", "embed", "link", "base", "form")
    ]
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert ("alert(1)" in page.text) == hostile, "hostile text is shown as the text it is"


def test_a_word_set_as_code_in_a_table_is_no_wider_than_it_is():
    html = whole(made_up_capture.capture(), made_up.passed())
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert "td .code-name { display: inline-block; min-width" in style
    assert "td code {" not in style
    assert 'class="code-name"' in html


def test_only_this_script_and_this_style_may_be_used():
    html = whole(made_up_capture.hostile(), made_up.hostile())
    page = Page(html)
    policy = next(a["content"] for name, a in page.tags if name == "meta" and a.get("http-equiv"))
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    for text, source in ((page.scripts[-1], "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{source} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_nothing_is_fetched():
    page = Page(whole(made_up_capture.capture(), made_up.passed()))
    for _, attributes in page.tags:
        assert not attributes.keys() & {"src", "srcset", "style", "action", "data"}
        assert attributes.get("href", "#").startswith("#")
    html = whole(made_up_capture.capture(), made_up.passed())
    assert not re.search(r"https?://|url\(|@import", html)


def test_every_link_of_the_navigation_leads_somewhere():
    page = Page(whole(made_up_capture.capture(), made_up.passed()))
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {attributes["href"][1:] for _, attributes in page.tags if "href" in attributes}
    assert links
    assert links <= ids


def test_every_drawing_has_words_for_those_who_cannot_see_it():
    page = Page(whole(made_up_capture.capture(), made_up.passed()))
    tags = [name for name, _ in page.tags]
    assert tags.count("svg") == sum(
        1 for at, name in enumerate(tags) if name == "svg" and tags[at + 1] == "title"
    )
    assert all(
        a.get("aria-label") or a.get("aria-hidden") for name, a in page.tags if name == "canvas"
    )


def test_unreliable_captures_are_called_so():
    import msgspec

    timeline = made_up_capture.capture()
    capture = analyse(timeline)
    quality = msgspec.structs.replace(
        capture.summary.quality, reliable=False, reasons=["a window was dropped"]
    )
    doubtful = capture._replace(summary=msgspec.structs.replace(capture.summary, quality=quality))
    page = Page(render_html(title="x", capture=doubtful))
    assert "Unreliable, because a window was dropped" in page.text


def test_what_a_reader_must_know_first_stands_at_the_top():
    page = Page(
        render_html(title="x", attempts=[made_up.passed()], warning="Capture 1 is of older code.")
    )
    assert page.text.index("Capture 1 is of older code.") < page.text.index("The check")


def test_strings_are_escaped_and_markup_is_not():
    assert tag("p", "<b>", Markup("<b>"), title='"') == '<p title="&quot;">&lt;b&gt;<b></p>'


def test_the_large_figure_of_a_gain_is_for_the_same_work() -> None:
    text = Page(whole(made_up_capture.capture(), made_up.passed())).text
    assert "x as fast, without the first finding's time, with the same work" in text


def test_an_undecided_figure_is_drawn_as_what_bounds_it():
    """Of a figure that may be anything between 19% and 100% no point is drawn, and above the target
    least of all.
    """
    drawn = str(attempts_chart([made_up.slow(), made_up.undecided(), made_up.passed()]))
    assert drawn.count("<circle") == 2
    assert drawn.count('class="span"') == 1
    assert "INCONCLUSIVE: " in drawn


def test_words_between_backticks_are_code_in_prose_and_nowhere_else():
    assert (
        tag("p", "Run `lab <check>`, `now`")
        == "<p>Run <code>lab &lt;check&gt;</code>, <code>now</code></p>"
    )
    assert tag("text", "`a`") == "<text>`a`</text>"
    assert tag("p", Markup("`a`")) == "<p>`a`</p>"


def test_a_share_far_beyond_1_stays_in_its_chart():
    """A worst error of 1,922% was drawn over the rest of the page."""
    off = CriterionResult("cost", "target", False, "", value=0.82, target=0.05, unit="share")
    far = msgspec.structs.replace(off, value=19.22)
    attempts = [msgspec.structs.replace(made_up.slow(), criteria=[each]) for each in (off, far)]
    drawn = str(attempts_chart(attempts))
    height = float(re.search(r"height=.?([\d.]+)", drawn)[1])
    heights = [float(cy) for cy in re.findall(r'cy="([-\d.]+)"', drawn)]
    assert len(heights) == 2
    assert all(0 < each < height for each in heights)


def test_a_capture_s_facts_are_for_readers():
    """Keys of the trace's format, and moments of its clock, say nothing to them."""
    timeline = made_up_capture.capture(emulated=True)
    facts = {"schemaVersion": "1", "baseTimeNanoseconds": "1790957026000000000"}
    facts |= {"record_shapes": "1", "with_stack": "0", CALIBRATED: "174318029"}
    timeline = dataclasses.replace(timeline, facts=facts)
    page = render_html(title="x", capture=analyse(timeline))
    measured = page[page.index("How it was measured") :]
    assert "set to 174 ms for a full batch, by this machine" in measured
    assert re.search(r"shapes recorded.{1,40}yes", measured)
    assert re.search(r"Python frames recorded.{1,40}no", measured)
    for internal in (*facts, "1790957026000000000", "174318029"):
        assert internal not in re.sub(r"<script.*?</script>", "", measured, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("of_steps", "counted_ms", "before_ms", "lead"),
    [
        (True, 30, 0, "over 40.0 ms, of which the steps take 30.0 ms (10.0 ms after left out);"),
        (False, 30, 8, "over 40.0 ms, of which this report is of 30.0 ms (8.00 ms before and"),
        (False, 40, 0, "over 40.0 ms; gaps"),
    ],
)
def test_the_timeline_says_what_part_of_it_the_report_is_of(of_steps, counted_ms, before_ms, lead):
    packed = pack_timeline(analyse(made_up_capture.capture()))
    packed = PackedTimeline({**packed.head, "span_ns": 40_000_000}, packed.data)
    drawn = timeline_section(
        packed,
        events=9,
        counted_ns=counted_ms * 1_000_000,
        before_ns=before_ms * 1_000_000,
        of_steps=of_steps,
    )
    assert lead in str(drawn)
