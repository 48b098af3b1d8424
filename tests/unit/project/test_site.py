"""The documentation: complete, each page in its place, and in sentences that can be read aloud."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
WRITTEN = [*DOCS.glob("*.md"), *DOCS.glob("authors/*.md"), *DOCS.glob("cli/*.md")]
PAGES = [ROOT / "README.md", *sorted(WRITTEN)]
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
    pages = {page.relative_to(DOCS).as_posix() for page in WRITTEN}
    assert places == {*pages, "measured/README.md"}  # docs/hooks.py places the rest of that folder


def _sentences(page: str) -> list[str]:
    # What is read off the program is no running text.
    text = re.sub(r"<!-- built: .*?<!-- built: end -->", "", page, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", text))
    parts = re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. |\|)|(?<!\\)\|", text)
    return [
        sentence
        for part in parts
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[\w*\[(\"“])", " ".join(part.split()))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_no_sentence_is_too_long_to_be_read_aloud(page):
    long = [
        one
        for one in _sentences(page.read_text())
        if len(re.findall(r"[\w’'-]*\w", one)) > LONGEST_SENTENCE
    ]
    assert not long, f"over {LONGEST_SENTENCE} words"
