"""The documentation: complete, each page in its place, and in sentences that can be read aloud."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LONGEST_SENTENCE = 40


class _Site(yaml.SafeLoader):
    """mkdocs.yml without what its own tags would import."""


_Site.add_multi_constructor("!", lambda *_: None)
_Site.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def _places(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(_places, parts))


def test_every_page_has_a_place_and_every_place_a_page():
    places = _places(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Site)["nav"])
    pages = {str(page.relative_to(DOCS)) for page in [*DOCS.glob("*.md"), *DOCS.glob("measured/*.md")]}
    assert places == pages


def _sentences(page: str) -> list[str]:
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", text))
    parts = re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. |\|)|(?<!\\)\|", text)
    return [
        sentence for part in parts for sentence in re.split(r"(?<=[.!?:])\s+(?=[\w*\[(\"“])", " ".join(part.split()))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_is_too_long_to_be_read_aloud(page):
    long = [one for one in _sentences(page.read_text()) if len(re.findall(r"[\w’'-]*\w", one)) > LONGEST_SENTENCE]
    assert not long, f"over {LONGEST_SENTENCE} words"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_no_other_host(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "lab dev check" in (tmp_path / "cli.html").read_text()
    assert (tmp_path / "gallery" / "dataloader.html").stat().st_size > 10_000
    for page in tmp_path.rglob("*.html"):
        if page.parent.name != "gallery":
            asked = re.findall(r"<(?:script|img|link)[^>]* (?:src|href)=\"?(https?://[^\" >]+)", page.read_text())
            assert not [one for one in asked if "bottleneck-lab.github.io" not in one], page.name
