"""The looks at every page: widths, colours, and what axe-core finds."""

from __future__ import annotations

import os
from pathlib import Path


def look(page, name: str) -> None:
    """The page at both widths, in both colour schemes: nothing wider than the screen, nothing that
    axe-core finds.
    """
    from axe_playwright_python.sync_playwright import Axe

    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            picture(page, f"{name}-{width}-{scheme}")
        wide = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"{name} is {wide} px too wide at {width}"
        violations = Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == [], (
            f"{name} at {width}"
        )
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")


def picture(page, name: str) -> None:
    """Of the whole page, for people to look at, where $LAB_PICTURES says in which folder."""
    if folder := os.environ.get("LAB_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
