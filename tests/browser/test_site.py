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
    assert "lab dev check" in (site / "cli" / "authors.html").read_text()
    assert "lab profile" in (site / "cli" / "labs.html").read_text()
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
@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("roofline", "glossary.html"),
        ("inconclusive", "verdict.html"),
        ("new lab", "authors.html"),
        ("without torch", "install.html"),
        ("kineto trace", "own-code.html"),
    ],
)
def test_a_search_from_the_disk_leads_to_the_answer(site, chromium, words, first):
    page = chromium.new_page()
    requests: list[str] = []
    page.on(
        "request",
        lambda request: requests.append(request.url) if request.url.startswith("http") else None,
    )
    try:
        page.goto((site / "index.html").as_uri())
        page.wait_for_function("document.querySelectorAll('iframe').length > 0")
        page.click("label.md-search__icon[for=__search], input.md-search__input")
        page.keyboard.type(words)
        page.wait_for_selector("li.md-search-result__item", timeout=100_000)
        # The list is drawn anew with every letter; it is settled when it says so of all of them.
        page.wait_for_function(
            """([words, first]) => {
              const link = document.querySelector("li.md-search-result__item > a");
              return link && link.getAttribute("href").includes(first);
            }""",
            arg=[words, first],
            timeout=100_000,
        )
        assert requests == []
    finally:
        page.close()


@pytest.mark.parametrize("page", ["judges.html", "exploits.html", "measured/"])
def test_evidence_is_not_found_before_answers(site, page):
    index = (site / "search" / "search_index.json").read_text()
    assert f'"location":"{page}' not in index.replace('": "', '":"')
