"""The report in a real browser: it draws, it zooms, it fetches nothing, and nothing in a trace can
make it do anything else.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.page.verdict import AnsweredQuestion, Diagnosis
from bottleneck_lab.trace.timeline import ActivityKind, DeviceTable, make_table

from ..modules import load_file

pytestmark = [pytest.mark.browser, pytest.mark.long]

UNIT = Path(__file__).parents[1] / "unit" / "report"


made_up = load_file(UNIT / "made_up.py", "browser_made_up")
made_up_capture = load_file(UNIT / "made_up_capture.py", "browser_made_up_capture")


def page_of(timeline, verdict):
    """A page with every section."""
    return render_html(
        title="idle-gpu",
        capture=analyse(timeline),
        attempts=[made_up.slow(), made_up.undecided(), verdict],
        diagnosis=Diagnosis(
            [
                AnsweredQuestion(
                    "cause", "What is the bottleneck?", "input-bound", "the device waits"
                )
            ]
        ),
    )


@pytest.fixture
def report(open_page):
    """The made-up capture's page, opened."""
    return open_page(page_of(made_up_capture.capture(), made_up.passed()))


def middle(report, selector="canvas.lanes"):
    box = report.page.locator(selector).bounding_box()
    return box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.3


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 768, 1600])
def test_it_opens_without_a_complaint_and_draws(open_page, width, dark):
    report = open_page(
        page_of(made_up_capture.capture(emulated=True), made_up.slow()), width=width, dark=dark
    )
    assert report.complaints == []
    assert report.requests == [report.page.url], "the file itself and nothing else"
    assert report.pixels("canvas.lanes") > 10
    assert report.pixels("canvas.overview") > 5
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
        "no sideways scrolling"
    )
    assert report.page.get_by_text("Emulated device").is_visible()


def test_hostile_names_are_drawn_and_do_nothing(open_page):
    report = open_page(page_of(made_up_capture.hostile(), made_up.hostile()))
    assert report.complaints == []
    assert report.requests == [report.page.url]
    assert report.pixels("canvas.lanes") > 10


def test_keys_zoom_and_move(report):
    page, whole = report.page, report.shown_ns
    assert whole == 30 * made_up_capture.MS
    page.focus("canvas.lanes")
    page.keyboard.press("+")
    assert report.shown_ns == whole / 2
    before = page.locator("canvas.lanes").screenshot()
    page.keyboard.press("ArrowRight")
    assert report.shown_ns == whole / 2
    assert page.locator("canvas.lanes").screenshot() != before
    page.keyboard.press("0")
    assert report.shown_ns == whole


def test_the_wheel_zooms_once_the_timeline_has_the_focus(report):
    page, whole = report.page, report.shown_ns
    page.locator("#steps").scroll_into_view_if_needed()
    page.mouse.move(*middle(report))
    page.mouse.wheel(0, -100)
    assert report.shown_ns == whole, "the page scrolls until the timeline was clicked"
    page.mouse.move(*middle(report))
    page.mouse.click(*middle(report))
    page.mouse.wheel(0, -100)
    assert report.shown_ns < whole


def test_dragging_along_the_ruler_marks_that_stretch_and_sums_it_up(report):
    page, whole = report.page, report.shown_ns
    page.locator("canvas.lanes").scroll_into_view_if_needed()
    box = page.locator("canvas.lanes").bounding_box()
    labels = 190
    left, right = (box["x"] + labels + (box["width"] - labels) * share for share in (0.25, 0.75))
    page.mouse.move(left, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 10, steps=4)
    page.mouse.up()
    sums = page.locator(".sums")
    assert sums.locator("b").first.inner_text() == "15.0 ms"
    begin, end = (
        float(part) for part in sums.locator("code").inner_text().removesuffix(" ms").split("-")
    )
    assert end - begin == pytest.approx(15, rel=0.01), "as `lab diagnose` takes it"
    rows = [
        row.split("\t") for row in sums.locator("tbody").inner_text().splitlines() if row.strip()
    ]
    assert any("kernel" in cells[-1] or "conv" in cells[-1] for cells in rows), rows
    assert report.shown_ns == whole
    sums.get_by_role("button", name="Zoom to it").click()
    assert report.shown_ns == pytest.approx(whole / 2, rel=0.01)
    page.focus("canvas.lanes")
    page.keyboard.press("Escape")
    assert not sums.is_visible()


def test_the_longest_gap_is_shown_with_its_cause(report):
    report.page.get_by_role("button", name="Next longest gap").click()
    report.drawn()
    detail = report.page.locator(".detail").inner_text()
    assert detail.startswith("input · 5.00 ms")
    assert report.shown_ns < 30 * made_up_capture.MS


def test_pointing_at_an_event_names_it(report):
    page = report.page
    page.locator("canvas.lanes").scroll_into_view_if_needed()
    box = page.locator("canvas.lanes").bounding_box()
    found = set()
    for y in range(30, int(box["height"]), 8):
        page.mouse.move(box["x"] + 190 + (box["width"] - 190) * 0.27, box["y"] + y)
        if page.locator(".tip").is_visible():
            found.add(page.locator(".tip b").inner_text())
    assert {"ProfilerStep#0", "forward", "aten::conv2d"} <= found


def test_a_name_can_be_highlighted(report):
    before = report.page.locator("canvas.lanes").screenshot()
    report.page.get_by_role("searchbox").fill("conv2d")
    report.drawn()
    assert report.page.locator("canvas.lanes").screenshot() != before


def test_every_section_is_reached_from_the_navigation_by_keyboard(report):
    names = report.page.locator("nav a").all_inner_texts()
    assert len(names) >= 8
    report.page.locator("nav a").first.focus()
    report.page.keyboard.press("Enter")
    report.page.wait_for_function("location.hash === '#verdict'")


def test_text_has_enough_contrast(open_page):
    """WCAG 2.2 AA: 4.5 to 1 for text, in both colour schemes."""
    for dark in (False, True):
        report = open_page(
            page_of(made_up_capture.capture(emulated=True), made_up.slow()), dark=dark
        )
        assert report.page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.endsWith(", 0)") && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const weak = [];
  const texts = "p, li, td, th, h1, h2, h3, a, b, span, dd, dt, small, caption, button, summary";
  for (const element of document.querySelectorAll(texts)) {
    if (!element.innerText?.trim() || element.closest("[hidden], details, svg")) continue;
    const both = [getComputedStyle(element).color, ground(element)].map(luminance);
    const [light, dark] = both.sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const where = `${element.tagName}.${element.className}`;
    if (ratio < 4.5) weak.push(`${where} ${ratio.toFixed(2)} ${element.innerText.slice(0, 30)}`);
  }
  return weak;
}"""


def test_a_pixel_has_the_colour_of_what_takes_most_of_its_time(open_page):
    """Of thousands of short kernels and few long copies on one stream, the copies take most."""
    count, short, long = 8_000, 1_000, 15_000
    rows = count + count // 10
    lengths = [long if row % 11 == 10 else short for row in range(rows)]
    start = list(accumulate(lengths[:-1], initial=0))
    copies = [length == long for length in lengths]
    whole = made_up_capture.capture()
    kinds = [ActivityKind.COPY if copy else ActivityKind.KERNEL for copy in copies]
    device = make_table(
        DeviceTable,
        rows,
        start=start,
        end=[begin + length for begin, length in zip(start, lengths, strict=True)],
        name=[7 if copy else 8 for copy in copies],
        correlation=[-1] * rows,
        kind=kinds,
        stream=[7] * rows,
    )
    report = open_page(page_of(replace(whole, device=device), made_up.slow()))
    shown = report.page.evaluate(
        """() => {
          const pen = document.createElement("canvas").getContext("2d");
          const ink = (name) => {
            pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
            return [1, 3, 5].map((at) => parseInt(pen.fillStyle.slice(at, at + 2), 16));
          };
          const inks = {copy: ink("--cat-copy"), kernel: ink("--cat-kernel")};
          const canvas = document.querySelector("canvas.lanes");
          const {width, height} = canvas;
          const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
          const counts = {copy: 0, kernel: 0};
          for (let i = 0; i < data.length; i += 4)
            for (const kind in inks)
              counts[kind] += inks[kind].every((part, k) => Math.abs(part - data[i + k]) < 24);
          return counts;
        }"""
    )
    assert shown["copy"] > shown["kernel"], shown
