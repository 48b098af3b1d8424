"""What the documentation shows is what stands in the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.measure.submission import collect_pristine
from bottleneck_lab.measure.verifier import check_lab

from ...weather import asked_again

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "example"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_the_pages_for_authors_show_the_examples_as_they_are():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "authors").glob("*.md"))
    shown = re.findall(r"<!-- example: (\S+) -->\n\n```\w+\n(.*?)\n```", pages, re.DOTALL)
    assert len(shown) == 5
    for name, text in shown:
        file = next(root / name for root in ROOT.glob("docs/example*") if (root / name).is_file())
        assert text == file.read_text().rstrip()


def test_addresses_on_the_site_are_pages_as_it_is_built():
    """The site opens from the disk, too, so its pages are NAME.html and not folders."""
    address = re.compile(r"(?:\{SITE\}|github\.io/bottleneck-lab)/([\w/-]+)(\S*)")
    texts = [
        path.read_text()
        for root, kind in (("checker", "*.py"), ("labs", "*.md"), ("solutions", "*.md"))
        for path in (ROOT / root).rglob(kind)
    ]
    addresses = [match.groups() for text in texts for match in address.finditer(text)]
    assert addresses
    for name, rest in addresses:
        assert rest.startswith(".html"), name
        assert (ROOT / "docs" / f"{name}.md").is_file(), name


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(EXAMPLE))
    load_labs.cache_clear()
    yield find_lab("running-mean")
    load_labs.cache_clear()


@pytest.mark.timed
@pytest.mark.parametrize(("which", "outcomes"), [("starter", {"FAIL"}), ("solution", {"PASS"})])
def test_the_example_is_a_whole_lab_that_works(example, tmp_path, which, outcomes):
    collect_pristine(example, tmp_path, overlay=example.solution if which == "solution" else None)
    verdict = asked_again(
        lambda: check_lab(example, tmp_path, "cpu", data=tmp_path),
        lambda found: f"{found.outcome} {found.summary}",
    )
    assert verdict.outcome in outcomes, verdict.summary
    assert which == "solution" or verdict.reason == example.spec.starter_fails


@pytest.mark.parametrize(
    "page",
    sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")),
    ids=lambda page: page.name,
)
def test_links_within_the_documentation_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} points to {target}"
