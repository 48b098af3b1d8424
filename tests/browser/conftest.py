"""One headless Chromium for all browser tests, and a watch over everything a page does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ..chromium import open_chromium


@pytest.fixture(scope="module")
def chromium():
    """The system's Chromium, driven through Playwright; gone before anything else is measured."""
    with open_chromium() as browser:
        yield browser


@dataclass
class Watched:
    """An open page, with what it said, asked for and refused."""

    page: object
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def pixels(self, selector: str) -> int:
        """How many different colours a canvas shows."""
        return self.page.evaluate(
            """selector => {
              const canvas = document.querySelector(selector);
              const {width, height} = canvas;
              const pixels = canvas.getContext("2d").getImageData(0, 0, width, height);
              const data = new Uint32Array(pixels.data.buffer);
              return new Set(data).size;
            }""",
            selector,
        )

    def drawn(self) -> None:
        """Waits until what the page was asked for is drawn: it draws in the next frame."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    @property
    def shown_ns(self) -> int:
        """How much time the timeline shows, ns."""
        self.drawn()
        return int(self.page.get_attribute("#timeline", "data-shown-ns"))


@pytest.fixture
def open_page(chromium, tmp_path):
    """`open_page(html, width=…, dark=…)` → the page, opened from a file, once its timeline is
    drawn.
    """
    contexts = []

    def opened(html, *, width=1280, height=900, dark=False):
        file = tmp_path / "a report with späces.html"
        file.write_text(html, encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            offline=True,
        )
        contexts.append(context)
        watched = Watched(context.new_page())
        watched.page.on("console", lambda message: watched.complaints.append(message.text))
        watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        watched.page.on(
            "dialog", lambda dialog: (watched.complaints.append(dialog.message), dialog.dismiss())
        )
        watched.page.on("request", lambda request: watched.requests.append(request.url))
        watched.page.goto(file.as_uri())
        watched.page.wait_for_selector("#timeline[data-ready]", timeout=100_000)
        return watched

    yield opened
    for context in contexts:
        context.close()
