"""The documentation site as `make docs` builds it: complete, and usable from the disk, where no
server answers and no other host is asked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place


def test_what_is_read_off_the_program_is_there(site):
    assert "lab dev check" in (site / "cli.html").read_text()
    assert "resnet-latency" in (site / "index.html").read_text()
    linked = re.findall(r"href=\"?(gallery/[\w-]+\.html)", (site / "gallery.html").read_text())
    assert len(linked) == 5
    assert all((site / page).stat().st_size > 10_000 for page in linked)


def test_no_page_names_another_host_to_load_from(site):
    for page in site.rglob("*.html"):
        if page.parent.name != "gallery":
            asked = re.findall(
                r"<(?:script|img|link)[^>]* (?:src|href)=\"?(https?://[^\" >]+)", page.read_text()
            )
            assert not [one for one in asked if "bottleneck-lab.github.io" not in one], page.name


@pytest.mark.browser
def test_it_is_searched_from_the_disk(site, chromium):
    page = chromium.new_page()
    asked: list[str] = []
    page.on(
        "request",
        lambda request: asked.append(request.url) if request.url.startswith("http") else None,
    )
    try:
        page.goto((site / "index.html").as_uri())
        page.wait_for_function("document.querySelectorAll('iframe').length > 0")
        page.click("label.md-search__icon[for=__search], input.md-search__input")
        page.keyboard.type("roofline")
        page.wait_for_selector("li.md-search-result__item", timeout=30_000)
        assert "Glossary" in page.inner_text(".md-search-result__list")
        assert asked == []
    finally:
        page.close()
