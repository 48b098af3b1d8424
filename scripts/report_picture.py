"""Draw docs/images/report.png and report-top.png: the page of a real capture, recorded on an H200.

    python scripts/report_picture.py

The capture is that of `lab report --example`. It is also that of docs/learners.md, which gives its
lab's answer away: the code that `stuttering-tagger` ships with. docs/images/report.json keeps a
digest of what the picture shows, by which a test notices that the page has changed since
(tests/unit/project/test_report_picture.py).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.trace import load

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CAPTURE = ROOT / "datasets" / "captures" / "h200" / "training.json.gz"
PICTURE, RECORD = IMAGES / "report.png", IMAGES / "report.json"
TOP = IMAGES / "report-top.png"  # of the README and the site's front page
SHOWN = ("time", "steps")  # sections of the page, by their ids
WIDTH, HEIGHT, TOP_HEIGHT = 1100, 900, 540


def page() -> str:
    """Return the page that the picture shows."""
    return render_html(title="stuttering-tagger on an H200", capture=analyse(load(CAPTURE)))


def digest(html: str) -> str:
    """Return a digest of what is drawn: the shown sections, without the packed rows of the
    timeline, whose compression may differ, and the style and script that draw them.
    """
    sections = [re.search(rf'<section id="{name}".*?</section>', html, re.DOTALL) for name in SHOWN]
    drawn = "".join(match[0] for match in sections if match)
    drawn = re.sub(r'(id="timeline-data">)[^<]*', r"\1", drawn)
    folder = files("bottleneck_lab.report") / "page"
    for name in ("page.css", "timeline.js"):
        drawn += (folder / name).read_text(encoding="utf-8")
    return hashlib.sha256(drawn.encode()).hexdigest()


def main() -> int:
    """Draw the picture and record what it shows."""
    from playwright.sync_api import sync_playwright

    browser_path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser_path is None:
        sys.exit("No browser: apt-get install chromium")
    html = page()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        file.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        shown.goto(file.as_uri())
        shown.wait_for_selector("#timeline[data-ready]", timeout=30_000)
        first = shown.locator(f"#{SHOWN[0]}").bounding_box() or {"y": 0.0}
        lanes = shown.locator("#timeline .legend").bounding_box() or {"y": HEIGHT, "height": 0.0}
        top, bottom = first["y"] - 12, lanes["y"] + lanes["height"] + 12
        clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
        shown.screenshot(path=PICTURE, full_page=True, clip=clip)
        shown.screenshot(path=TOP, full_page=True, clip=clip | {"height": TOP_HEIGHT})
        browser.close()
    record = {"capture": CAPTURE.name, "device": "NVIDIA H200", "shown": digest(html)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
