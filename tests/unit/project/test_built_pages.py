"""Parts of pages that are read off the program are in the repository as the program gives them."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_built_parts_of_pages_are_what_the_program_says_now():
    pages = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["built_pages"]()
    behind = [
        page.relative_to(ROOT).as_posix()
        for page, text in pages.items()
        if page.read_text(encoding="utf-8") != text
    ]
    assert not behind, "renew them with `python docs/hooks.py`"


def test_every_page_of_commands_has_its_part_between_marks():
    pages = list((ROOT / "docs").rglob("*.md"))
    marked = [page for page in pages if "<!-- built: " in page.read_text(encoding="utf-8")]
    assert {page.name for page in marked} >= {"cli.md", "cohorts.md", "grades.md", "index.md"}
    for page in marked:
        text = page.read_text(encoding="utf-8")
        begins, ends = text.count("<!-- built: "), text.count("<!-- built: end -->")
        assert begins == 2 * ends, page.name
        assert "-->\n\n<!-- built: end -->" not in text, f"{page.name} has nothing in its part"
